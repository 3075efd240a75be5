"""Whose turn it is to work, by the rules: no server, no time."""

import asyncio

import pytest

from aioretry import Deadline, Outcome, outcome_of
from aioretry.idempotent import NoTurnError
from aioretry.idempotent._once_turns import Places, Turn, Turns, acquired
from tests.idempotent.turning import ended, settled

AT_FIRST = 10


class Client:
    """Something that calls are made on."""


class Crowd:
    """Calls that want places, more than there are."""

    def __init__(self, places, number=60):
        self.places = places
        self.at_work = 0
        self.waiting = [asyncio.ensure_future(self.work()) for _ in range(number)]

    async def work(self):
        """Have a place for good, until somebody gives it back."""
        while True:
            await self.places.take(None)
            self.at_work += 1
            self.left = asyncio.Event() if self.at_work == 1 else self.left
            await self.left.wait()

    async def round(self, *, has_conflicted=False):
        """Have all that are at work leave, and others come; return how many were at work."""
        await settled()
        number, self.at_work = self.at_work, 0
        self.left.set()
        for _ in range(number):
            self.places.give_back(has_conflicted=has_conflicted)
        await settled()
        return number


class TestPlaces:
    async def test_in_rotation(self):
        """Callers have them in turn; a cancelled one neither takes nor keeps a place."""
        places, order, goes_on = Places(1), [], asyncio.Event()

        async def work(caller):
            await places.take(None, caller)
            try:
                order.append(caller)
                await goes_on.wait()
            finally:
                places.give_back(has_conflicted=False)

        tasks = [asyncio.ensure_future(work(caller)) for caller in ["a", *"aaaa", "b", "a", "c"]]
        await settled()
        await ended(tasks[0], tasks[1])
        goes_on.set()
        await asyncio.gather(*tasks[2:])
        assert ["a", *"bc", *"aaaa"] == order
        await places.take(Deadline.after(0.0))
        with pytest.raises(NoTurnError, match="too many calls were before") as caught:
            await places.take(Deadline.after(0.01))
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)

    async def test_more_where_there_are_no_conflicts(self):
        """Their number grows by about one in each round, up to the most."""
        crowd = Crowd(Places(15))
        numbers = [await crowd.round() for _ in range(20)]
        assert numbers == sorted(numbers)
        assert [*range(AT_FIRST, 16)] == sorted({*numbers})
        await ended(*crowd.waiting)

    async def test_none_where_some_are_free(self):
        """It does not grow for calls that come one after the other."""
        places = Places(100)
        for _ in range(1000):
            await places.take(None)
            places.give_back(has_conflicted=False)
        crowd = Crowd(places)
        assert AT_FIRST == await crowd.round()
        await ended(*crowd.waiting)

    async def test_fewer_after_conflicts(self):
        """It shrinks with each conflict, but not below what it was at first."""
        crowd = Crowd(Places(100))
        while await crowd.round() < 30:
            pass
        grown = await crowd.round(has_conflicted=True)
        assert AT_FIRST == await crowd.round() < 30 <= grown
        await ended(*crowd.waiting)

    async def test_fewest(self):
        """It never shrinks below the most that was given."""
        crowd = Crowd(Places(3))
        for _ in range(3):
            assert 3 == await crowd.round(has_conflicted=True)
        await ended(*crowd.waiting)


class Scene:
    """Calls on one client, each of which has one place at first."""

    def __init__(self, at_once=1):
        self.client = Client()
        self.turns = Turns(at_once)

    async def begun(self):
        """A call that is at work."""
        turn = Turn(self.turns, self.client, "")
        await turn.begin(None)
        return turn

    async def refused(self, document):
        """A call that has met a write conflict."""
        turn = await self.begun()
        turn.end(document)
        return turn


class TestTurn:
    async def test_one_at_a_time_for_a_document(self):
        """Those that met a conflict about one document wait for each other, first come first."""
        scene, order = Scene(), []

        async def again(turn, name):
            await turn.begin(None)
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)
            turn.close()

        turns = [await scene.refused("tea") for _ in range(3)]
        await asyncio.gather(*(again(turn, name) for turn, name in zip(turns, "abc", strict=True)))
        assert [*"aabbcc"] == order

    async def test_nobody_else_waits(self):
        """Not who has met none, nor who wants another document."""
        scene = Scene()
        tea, more_tea, milk = [await scene.refused(each) for each in ("tea", "tea", "milk")]
        await tea.begin(None)
        waiting = asyncio.ensure_future(more_tea.begin(None))
        async with asyncio.timeout(10):
            await milk.begin(None)
            (await scene.begun()).close()
        assert not waiting.done()
        tea.end("tea")  # another process has it
        await tea.begin(None)
        await settled()
        assert not waiting.done()
        tea.close()
        await waiting
        assert not scene.turns.lock_of(scene.client, "other").locked()
        more_tea.close()
        milk.close()
        assert not scene.turns.lock_of(scene.client, "tea").locked()

    async def test_of_two_documents(self):
        """Who waits for one holds no other, or two could wait for each other."""
        scene = Scene()
        first, second = await scene.refused("tea"), await scene.refused("milk")
        await first.begin(None)
        await second.begin(None)
        first.end("milk")
        second.end("tea")
        waiting = asyncio.ensure_future(first.begin(None))
        await settled()
        async with asyncio.timeout(10):
            await second.begin(None)
        await waiting
        first.close()
        second.close()

    async def test_another_reason(self):
        """What begins anew for want of a server waits for nothing."""
        scene = Scene()
        turn = await scene.refused("tea")
        await turn.begin(None)
        turn.end()
        await turn.begin(None)
        assert not scene.turns.lock_of(scene.client, "tea").locked()
        turn.close()

    async def test_too_late(self):
        """A document that others want until the deadline is over is told as such."""
        scene = Scene()
        first, second = await scene.refused("tea"), await scene.refused("tea")
        await first.begin(None)
        with pytest.raises(NoTurnError) as caught:
            await second.begin(Deadline.after(0.01))
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        second.close()
        first.close()

    async def test_clients_apart(self):
        """Calls on one client take nothing of another one's."""
        scene = Scene()
        await scene.begun()
        other = Turn(scene.turns, Client(), "")
        async with asyncio.timeout(10):
            await other.begin(None)


async def test_a_lock_that_is_about_to_be_another_ones():
    """Whoever comes in between waits no longer than its deadline allows."""
    lock = asyncio.Lock()
    await lock.acquire()
    other = asyncio.ensure_future(lock.acquire())
    await settled()
    lock.release()
    assert not lock.locked()
    async with asyncio.timeout(10):
        assert not await acquired(lock, Deadline.after(0.01))
    assert await other
