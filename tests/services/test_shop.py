"""The shop of the examples: two processes of uvicorn, real HTTP, a real set that fails over."""

import asyncio
import uuid
from contextlib import AsyncExitStack, ExitStack, closing

import httpx
import pytest

from aioretry.testing._ports import ReservedPort
from tests.services.processes import answers, process

# What a client repeats with the same key; so it does where it gets no answer.
AGAIN = {500, 503, 504}


class Customer:
    """A client as the page about frameworks wants it: it repeats requests, with their keys."""

    def __init__(self, services):
        self.services = services
        self.sent = 0

    async def post(self, path, key=None, json=None):
        """Send a request until there is an answer that says how it has ended."""
        key = key or uuid.uuid4().hex
        while True:
            self.sent += 1
            service = self.services[self.sent % len(self.services)]
            try:
                answer = await service.post(path, headers={"Idempotency-Key": key}, json=json)
            except httpx.TransportError:  # a connection that was kept for too long
                continue
            running = answer.status_code == 409 and answer.json()["reason"] == "key_in_use"
            if answer.status_code not in AGAIN and not running:
                return answer
            assert answer.headers["Content-Type"] == "application/problem+json"
            await asyncio.sleep(int(answer.headers.get("Retry-After", 0)))

    async def ten(self, path, json=None):
        """Send one request ten times at once."""
        key = uuid.uuid4().hex
        return await asyncio.gather(*[self.post(path, key, json) for _ in range(10)])


@pytest.fixture
async def services(replica_set, plain):
    """Clients of two processes of the shop."""
    plain.drop_database("shop")
    environment = {"MONGODB_URI": replica_set.uri, "SHOP_SECRET": "0123456789abcdef"}
    async with AsyncExitStack() as stack:
        with ExitStack() as processes:
            ports = [processes.enter_context(closing(ReservedPort())).number for _ in range(2)]
            for port in ports:
                arguments = ("examples.shop.app:app", "--port", str(port), "--log-level", "warning")
                processes.enter_context(process("-m", "uvicorn", *arguments, **environment))
            clients = [
                await stack.enter_async_context(
                    httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=120)
                )
                for port in ports
            ]
            await answers(clients)
            yield clients


@pytest.fixture
def customer(services) -> Customer:
    """A customer of both."""
    return Customer(services)


@pytest.fixture
def faults(replica_set):
    """The faults of the set, disarmed after the test."""
    yield replica_set.faults
    replica_set.faults.clear()


@pytest.fixture
async def stocked(services):
    """A hundred lamps in stock."""
    answer = await services[0].put("/stock/lamp", json={"quantity": 100})
    assert (answer.status_code, answer.json()) == (200, {"sku": "lamp", "quantity": 100})


def one_of(answers):
    """What all answers say: status and body."""
    ((status, body),) = {(answer.status_code, answer.content) for answer in answers}
    return status, httpx.Response(status, content=body).json()


LAMPS = {"sku": "lamp", "quantity": 2}


class TestOrders:
    @pytest.mark.slow
    async def test_ten_at_once(self, customer, stocked, services, plain):
        """Ten requests with one key at two processes: one order, ten equal answers."""
        status, order = one_of(await customer.ten("/orders", LAMPS))
        assert (status, order) == (201, {**LAMPS, "id": order["id"]})
        assert (await services[1].get("/stock/lamp")).json()["quantity"] == 98
        assert [str(found["_id"]) for found in plain.shop.orders.find()] == [order["id"]]

    async def test_with_a_lost_reply(self, customer, stocked, services, plain, faults):
        """The same with the reply to the commit lost."""
        faults.drop_reply("commitTransaction")
        assert one_of(await customer.ten("/orders", LAMPS))[0] == 201
        assert (await services[0].get("/stock/lamp")).json()["quantity"] == 98
        assert plain.shop.orders.count_documents({}) == 1
        faults.verify()
        metrics = [(await each.get("/metrics")).text for each in services]
        assert any('operation="commit_transaction",reason="AutoReconnect"' in at for at in metrics)
        assert all('aioretry_connections{server="' in at for at in metrics)

    @pytest.mark.usefixtures("three_members")
    async def test_with_a_killed_primary(self, customer, stocked, services, plain, replica_set):
        """The same with the primary killed in between."""
        faults = replica_set.faults
        with faults.hang("commitTransaction") as fault:
            orders = asyncio.create_task(customer.ten("/orders", LAMPS))
            await fault.wait_until_fired(timeout=60)
            await replica_set.kill(await replica_set.primary())
            assert one_of(await orders)[0] == 201
        assert (await services[0].get("/stock/lamp")).json()["quantity"] == 98
        assert plain.shop.orders.count_documents({}) == 1

    @pytest.mark.slow
    async def test_sold_out(self, services, customer, stocked):
        """No order without stock; and once there is stock again, the same request gets one."""
        key = uuid.uuid4().hex
        answer = await customer.post("/orders", key, {"sku": "lamp", "quantity": 101})
        assert (answer.status_code, answer.json()["reason"]) == (409, "sold_out")
        await services[0].put("/stock/lamp", json={"quantity": 101})
        answer = await customer.post("/orders", key, {"sku": "lamp", "quantity": 101})
        assert answer.status_code == 201
        assert (await services[0].get("/stock/lamp")).json()["quantity"] == 0

    async def test_wrong_requests(self, services, stocked):
        """What is wrong with a request is said."""
        answer = await services[0].post("/orders", json=LAMPS)
        assert (answer.status_code, answer.json()["reason"]) == (400, "key_missing")
        assert answer.json()["type"] == "https://shop.example.org/problems#key_missing"
        answer = await services[0].get("/stock/chair")
        assert (answer.status_code, answer.json()["reason"]) == (404, "no_such_sku")
        for quantity in -1, 2**63:
            answer = await services[0].put("/stock/chair", json={"quantity": quantity})
            assert answer.status_code == 422
        header = {"Idempotency-Key": uuid.uuid4().hex}
        wanted = {"sku": "lamp", "quantity": 2**63}
        answer = await services[0].post("/orders", headers=header, json=wanted)
        assert answer.status_code == 422


class TestFailover:
    @pytest.mark.slow
    @pytest.mark.usefixtures("three_members")
    async def test_orders_and_tickets(self, customer, stocked, services, plain, replica_set):
        """A primary is killed under load: each order and each ticket is there exactly once."""
        load = [customer.post("/orders", json={"sku": "lamp", "quantity": 1}) for _ in range(40)]
        load += [customer.post("/events/fair/tickets") for _ in range(40)]
        under_way = [asyncio.create_task(call) for call in load]
        await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        await replica_set.kill(await replica_set.primary())
        orders_and_tickets = await asyncio.gather(*under_way)
        assert {answer.status_code for answer in orders_and_tickets} == {201}
        orders, tickets = orders_and_tickets[:40], orders_and_tickets[40:]
        assert (await services[0].get("/stock/lamp")).json()["quantity"] == 60
        ordered = {answer.json()["id"] for answer in orders}
        assert ordered == {str(found["_id"]) for found in plain.shop.orders.find()}
        assert len(ordered) == 40
        numbers = sorted(answer.json()["number"] for answer in tickets)
        assert numbers == list(range(1, 41))

    @pytest.mark.slow
    async def test_ten_tickets_at_once(self, customer):
        """Ten requests with one key: one ticket, and the next key has the next one."""
        for number in 1, 2:
            answers = await customer.ten("/events/fair/tickets")
            assert one_of(answers) == (201, {"event": "fair", "number": number})
