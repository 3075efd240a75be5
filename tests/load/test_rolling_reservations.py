"""A rolling restart of the box office under load, while a primary is killed."""

import asyncio
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import pytest

from tests.lengths import in_full
from tests.load.accounting import Asked
from tests.load.rolling import Fleet
from tests.load.run import Side
from tests.load.shoppers import Shopping, Told

BOX_OFFICE = Side("box office", "tests.load.box_office:app", uses_motor=False)
SHOW, SEATS = "hamlet", 5_000
CLIENTS, MORE, SETTLE = 9, 20, 30.0
DEADLINES = (20.0, 20.0, 1.0)
CLOSED = ("ServerDisconnectedError", "ClientConnectorError", "ClientOSError")
PROBLEMS = "https://box-office.example.org/problems"
REASONS = {"deadline_exceeded", "key_in_use", "no_turn", "not_free"}


@dataclass(frozen=True, slots=True)
class Reserving(Shopping):
    """Clients that reserve seats, and give some of them back, until that is known."""

    given_back: set[str] = field(default_factory=set)

    def _request(self, order):
        return "/reservations", {"show": SHOW, "seat": int(order.sku)}

    async def _client(self, session, told, deadline):
        while told.now < told.closes:
            seat = Asked(uuid.uuid4().hex, random.choice(self.skus), quantity=1)
            told.asked.append(seat)
            await self._until_decided(session, told, seat, deadline)
            if random.random() < 0.1:
                await self._send(session, told, seat, deadline)  # its answer had been lost
            elif seat.ids and random.random() < 0.3:
                await self._give_back(session, told, *seat.ids)

    async def _give_back(self, session, told, reservation):
        while told.now < told.closes + self.settle:
            url = f"{random.choice(self.services)}/reservations/{reservation}"
            try:
                async with session.delete(url, headers={"X-Request-Timeout": "5"}) as response:
                    status = response.status
            except aiohttp.ClientError:
                status = 503
            if status == 204:
                self.given_back.add(reservation)
                return
            assert status in {503, 504}, status
            await asyncio.sleep(0.1)
        raise AssertionError(f"reservation {reservation} is still given back")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("three_members")
async def test_while_a_primary_is_killed(replica_set, tmp_path, plain, open_transactions):
    """Each seat is reserved once, and nobody is told what is not so."""
    plain.drop_database("box_office")
    told = Told()
    flags = "--timeout-graceful-shutdown", "26"
    async with Fleet(BOX_OFFICE, tmp_path, replica_set.uri, told, *flags) as fleet:
        for _ in range(2):
            await fleet.until_ready(await fleet.start())
        async with aiohttp.ClientSession(fleet.ready[0]) as session:
            async with session.put(f"/shows/{SHOW}", json={"seats": SEATS}) as response:
                assert response.status == 204
        seats = [str(number) for number in range(1, SEATS + 1)]
        clients = Reserving(fleet.ready, CLIENTS, SETTLE, DEADLINES, seats)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.run(told))
            await told.accepted.more(MORE)
            for _ in range(in_full(2, otherwise=1)):
                first, second = fleet.instances[-2:]
                primary = await replica_set.primary()
                await replica_set.kill(primary)
                # In an election one ends, and another one begins.
                begins = await fleet.start()
                await fleet.stop(first)
                await fleet.until_ready(begins)
                await fleet.until_ready(await fleet.start())
                await fleet.stop(second)
                await replica_set.restart(primary)
                await told.accepted.more(MORE)
            told.closes = told.now
        async with aiohttp.ClientSession(fleet.ready[0]) as session:
            async with session.get(f"/shows/{SHOW}") as response:
                free = (await response.json())["free"]
        for instance in fleet.instances:
            if not instance.process.has_ended:
                await fleet.stop(instance)
    assert not open_transactions()
    judge(plain.box_office, told, clients.given_back, free)
    for instance in fleet.instances:
        assert "Application shutdown complete." in instance.process.log, instance.process.log
        assert "Traceback" not in instance.process.log, instance.process.log
        assert "db.client.connection.count" in instance.process.output  # observed, and printed
    ended = {each.url: each.ended for each in fleet.instances}
    for answer in told.answers:
        if answer.status is None:
            assert answer.at > ended[answer.service], answer
            assert answer.text.startswith(CLOSED), answer


def judge(office, told, given_back, free):
    """What clients were told is what is stored, and nobody is left without an answer."""
    accepted = {reservation: each for each in told.asked for reservation in each.ids}
    stored = {str(each["_id"]): each["seat"] for each in office.reservations.find()}
    expected = {each: int(asked.sku) for each, asked in accepted.items() if each not in given_back}
    assert expected == stored
    assert all(len(each.ids) == 1 or each.refused == 409 for each in told.asked)
    held = {each["_id"]["seat"]: each for each in office.seats.find({"reservation": {"$ne": None}})}
    assert stored == {str(each["reservation"]): seat for seat, each in held.items()}
    assert sorted(set(range(1, SEATS + 1)) - held.keys()) == sorted(free)
    taken = Counter(each.sku for each in accepted.values())
    assert all(taken[each.sku] for each in told.asked if each.refused), "nobody had that seat"
    assert office["aioretry.answers"].count_documents({}) == len(accepted)
    problems = [each.text for each in told.answers if each.text and each.status is not None]
    assert all(any(f"{PROBLEMS}#{reason}" in text for reason in REASONS) for text in problems), (
        problems
    )
