"""A rolling restart of the shop under load: of its instances, while a primary is killed."""

import asyncio
import json
from collections import Counter

import pytest

from tests.lengths import FULL, in_full
from tests.load.accounting import compare
from tests.load.rolling import Fleet
from tests.load.run import ASYNCIO, OURS, fill, read
from tests.load.shoppers import Drawing, Shopping, Told

SIDES = [OURS, ASYNCIO] if FULL else [OURS]
BUYERS, DRAWERS = 9, 3
MORE = 20  # orders
SETTLE = 30.0  # in less than the minute for which servers keep a transaction that nobody ends
# Some ask for less than an election takes: they are answered with 504, and ask again.
DEADLINES = (20.0, 20.0, 1.0)
EVENT, HELD = "fair", "held"
OTHERS = [f"sku-{number}" for number in range(20)]
STOCK = dict.fromkeys([*OTHERS, HELD], 1_000_000)

REASONS = {"deadline_exceeded", "key_in_use", "no_turn"}
# What is told of a connection that its server closes, or does not accept, when it is asked.
CLOSED = ("ServerDisconnectedError", "ClientConnectorError", "ClientOSError")
# uvicorn's own answer to a request that it cancels.
CUT = (500, "Internal Server Error")

PATIENT = ("--timeout-graceful-shutdown", "26")  # as the page on production has it
IMPATIENT = ("--timeout-graceful-shutdown", "0")

pytestmark = pytest.mark.usefixtures("three_members")


def is_broken(answer):
    """Tell whether a request has no answer of the shop's."""
    return answer.status is None or (answer.status, answer.text) == CUT


class Load:
    """Clients of a fleet: some order, some draw tickets.

    Args:
        fleet: What they are sent to, wherever it is ready.
        orders: What those are told who order; its clock counts.
    """

    def __init__(self, fleet, orders):
        self.fleet = fleet
        self.orders = orders
        self.tickets = Told(started=orders.started)

    async def __aenter__(self):
        started = [await self.fleet.start() for _ in range(2)]
        for instance in started:
            await self.fleet.until_ready(instance)
        await fill(self.fleet.ready[0], STOCK)
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self.send(Shopping(self.fleet.ready, BUYERS, SETTLE, DEADLINES, OTHERS), self.orders)
        self.send(Drawing(self.fleet.ready, DRAWERS, SETTLE, DEADLINES, [EVENT]), self.tickets)
        await self.more()
        return self

    async def __aexit__(self, *raised):
        """Have each request answered, and then stop the instances."""
        self.orders.closes = self.tickets.closes = self.orders.now
        await self._tasks.__aexit__(*raised)
        for instance in self.fleet.instances:
            if not instance.process.has_ended:
                await self.fleet.stop(instance)

    def send(self, clients, told):
        """Send more clients."""
        self._tasks.create_task(clients.run(told))

    async def more(self):
        """Wait until more orders are accepted."""
        await self.orders.accepted.more(MORE)

    @property
    def answers(self):
        """The answers to all."""
        return [*self.orders.answers, *self.tickets.answers]

    @property
    def broken(self):
        """The requests without an answer of the shop's."""
        return [answer for answer in self.answers if is_broken(answer)]

    def is_after_sigterm(self, answer):
        """Tell whether an answer came when its instance had been told to end."""
        (ended,) = {each.ended for each in self.fleet.instances if each.url == answer.service}
        return answer.at > ended

    def figures(self):
        """What came of all requests, for people."""
        answers, broken = self.answers, self.broken
        wanted = [*self.orders.asked, *self.tickets.asked]
        told = [json.loads(each.text) for each in answers if each.text and not is_broken(each)]
        after = [each for each in answers if self.is_after_sigterm(each) and not is_broken(each)]
        return {
            "seconds": round(self.orders.now, 1),
            "requests": len(answers),
            "by status": dict(Counter(answer.status for answer in answers)),
            "accepted": sum(bool(each.ids) for each in wanted),
            "repeated": len(answers) - len(wanted),
            "broken": dict(Counter(answer.text.partition("(")[0] for answer in broken)),
            "problems": dict(Counter(problem["reason"] for problem in told)),
            "outcomes": dict(Counter(problem.get("outcome") for problem in told)),
            "answered after SIGTERM": len(after),
            "slowest": round(max(answer.seconds for answer in answers), 1),
        }

    def judge(self, uri, plain):
        """Nothing was answered wrongly, and what was accepted is there, once, with what it takes.

        Returns:
            The figures.
        """
        figures = self.figures()
        stored, stock = read(uri)
        books = compare(self.orders.asked, stored, STOCK, stock)
        assert books.is_true, (books, figures)
        assert not books.undecided, (books, figures)
        kept = plain.shop["aioretry.answers"].count_documents({})
        assert (kept, books.accepted) == (len(stored), len(stored)), (kept, books, figures)
        numbers = sorted(int(number) for each in self.tickets.asked for number in each.ids)
        assert numbers == list(range(1, len(self.tickets.asked) + 1)), figures
        assert plain.shop.events.find_one({"_id": EVENT})["tickets"] == len(numbers), figures
        assert figures["problems"].keys() <= REASONS, figures
        # All answers that uvicorn has begun have arrived: so none of those was broken.
        arrived = Counter(each.status for each in self.answers if each.status is not None)
        answered = sum((instance.answered for instance in self.fleet.instances), Counter())
        assert arrived == answered, figures
        for answer in self.broken:
            assert self.is_after_sigterm(answer), (answer, figures)
            assert answer.status or answer.text.startswith(CLOSED), (answer, figures)
        for instance in self.fleet.instances:
            assert "Application shutdown complete." in instance.process.log, instance.process.log
            assert "drain: " not in instance.process.log, instance.process.log
        print(figures)
        return figures


@pytest.fixture
def orders(plain):
    """What clients are told of their orders; the shop is empty."""
    plain.drop_database("shop")
    return Told()


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.name)
@pytest.mark.long
async def test_while_a_primary_is_killed(
    side, orders, replica_set, tmp_path, plain, open_transactions
):
    """What an instance has begun it answers; the rest is answered elsewhere, with the same key."""
    async with Fleet(side, tmp_path, replica_set.uri, orders, *PATIENT) as fleet:
        async with Load(fleet, orders) as load:
            for _ in range(in_full(2, otherwise=1)):
                first, second = fleet.instances[-2:]
                await fleet.until_ready(await fleet.start())
                primary = await replica_set.primary()
                await replica_set.kill(primary)
                # In an election one ends, and another one begins.
                begins = await fleet.start()
                await fleet.stop(first)
                await fleet.until_ready(begins)
                await fleet.stop(second)
                await replica_set.restart(primary)
                await load.more()
    assert not open_transactions()
    figures = load.judge(replica_set.uri, plain)
    assert figures["answered after SIGTERM"], figures
    for instance in fleet.instances:
        # It has cancelled nothing, so what was broken had not begun.
        assert "ERROR" not in instance.process.log, instance.process.log
        assert "Traceback" not in instance.process.log, instance.process.log


@pytest.mark.slow
async def test_requests_that_are_cut(orders, replica_set, tmp_path, plain, open_transactions):
    """A server that does not wait cuts requests; the drain ends what they have begun.

    The statement that begins a transaction arrives after the abort, which has found nothing. If
    nobody aborted it again, it would bar others for a minute.
    """
    sessions = []

    def is_held(command):
        is_it = command["updates"][0]["q"].get("_id") == HELD
        if is_it:
            sessions.append(command["lsid"]["id"])
        return is_it

    async with Fleet(OURS, tmp_path, replica_set.uri, orders, *IMPATIENT) as fleet:
        async with Load(fleet, orders) as load:
            ending, other = fleet.instances
            held = replica_set.faults.hang("update", namespace="shop.stock", where=is_held)
            aborted = replica_set.faults.watch(
                "abortTransaction", where=lambda command: command["lsid"]["id"] in sessions
            )
            asked = [ending.url]
            load.send(Shopping(asked, 1, SETTLE, (20.0,), [HELD]), orders)
            await held.wait_until_fired(timeout=60)
            asked[:] = [other.url]
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fleet.stop(ending))
                await aborted.wait_until_fired(timeout=60)
                held.disarm()
            await load.more()
    assert not open_transactions()
    figures = load.judge(replica_set.uri, plain)
    assert 0 < ending.cut >= figures["by status"].get(500, 0), figures
