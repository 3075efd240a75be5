"""How many statements with keys go a second, by a clock of the test's own; and whose turn it is."""

import asyncio
import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from aioretry import Deadline, DeadlineExceeded
from aioretry.idempotent import NoTurnError
from aioretry.idempotent._keys_rate import Rate
from tests.idempotent.turning import ended, settled


class Clock:
    """A clock that stands still, but for who sleeps by it."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.slept.append(seconds)


@pytest.fixture
def clock():
    return Clock()


async def test_a_burst_goes_at_once(clock):
    """As many as a second may have need not wait; the next ones wait for their turn."""
    rate = Rate(8, clock, clock.sleep)
    for _ in range(8):
        await rate.turn(None)
    assert [] == clock.slept
    for _ in range(3):
        await rate.turn(None)
    assert [0.125, 0.25, 0.375] == pytest.approx(clock.slept)


async def test_time_brings_new_turns(clock):
    """After half a second, half of a second's statements may go; not more after an hour."""
    rate = Rate(8, clock, clock.sleep)
    for seconds, free in [(0, 8), (0.5, 4), (3600, 8)]:
        clock.now += seconds
        for _ in range(free):
            await rate.turn(None)
        assert [] == clock.slept
        await rate.turn(None)
        assert 1 == len(clock.slept)
        clock.now += clock.slept.pop()


async def test_less_than_one_a_second(clock):
    """One goes at once, the next one waits for as long as it takes."""
    rate = Rate(0.1, clock, clock.sleep)
    await rate.turn(None)
    await rate.turn(None)
    assert [10.0] == pytest.approx(clock.slept)


async def test_a_turn_that_comes_too_late(clock):
    """A statement whose turn comes after its deadline is refused, and takes no turn."""
    rate = Rate(1, clock, clock.sleep)
    await rate.turn(None)
    with pytest.raises(DeadlineExceeded, match="nothing was sent"):
        await rate.turn(Deadline.after(0.5, clock))
    await rate.turn(Deadline.after(2, clock))
    assert [1.0] == pytest.approx(clock.slept)


class Turns:
    """Lets time pass by one turn when it is told to, and notes whose each was."""

    def __init__(self, number):
        self.now = 1000.0
        self.granted = []
        self.rate = Rate(number, lambda: self.now, self.sleep)
        self.tick = asyncio.Event()

    async def sleep(self, seconds):
        await self.tick.wait()
        self.tick.clear()
        self.now += seconds

    async def ask(self, caller, limit=None):
        await self.rate.turn(limit, caller)
        self.granted.append(caller)

    def start(self, *callers):
        return [asyncio.ensure_future(self.ask(caller)) for caller in callers]

    async def pass_by(self, turns):
        for _ in range(turns):
            self.tick.set()
            await settled()


@pytest.fixture
async def turns():
    """Turns, of which the first two are taken."""
    turns = Turns(2)
    for _ in range(2):
        await turns.ask("first")
    turns.granted.clear()
    return turns


async def test_who_gives_up_takes_no_turn(turns):
    """After a hundred that were cancelled while they waited, the next one has the next turn."""
    waiting = turns.start(*["a"] * 100)
    await settled()
    await ended(*waiting)
    asked = turns.start("b")
    await settled()
    await turns.pass_by(1)
    assert ["b"] == turns.granted
    await ended(*asked)


async def test_a_turn_that_came_too_late_to_be_taken(turns):
    """One that comes in the moment of a cancellation is not lost: nobody waits longer for it."""
    (first,) = turns.start("a")
    await settled()
    turns.tick.set()
    while turns.rate._waiting:
        await asyncio.sleep(0)
    await ended(first)
    before = turns.now
    turns.start("b")
    await settled()
    await turns.pass_by(1)
    assert (["b"], before) == (turns.granted, turns.now)


async def test_each_caller_in_rotation(turns):
    """One that has asked for a hundred does not hold up one that asks for two."""
    waiting = turns.start(*["a"] * 100)
    await settled()
    waiting += turns.start("b", "c", "b")
    await settled()
    await turns.pass_by(6)
    assert ["a", "b", "c", "a", "b", "a"] == turns.granted
    await ended(*waiting)


async def test_only_those_before_it_count(turns):
    """A deadline is compared with the turns of those who have theirs before, in rotation."""
    waiting = turns.start(*["a"] * 100)
    await settled()
    clock = lambda: turns.now  # noqa: E731
    with pytest.raises(NoTurnError, match="nothing was sent"):
        await turns.ask("a", Deadline.after(20.0, clock))
    with pytest.raises(NoTurnError):
        await turns.ask("b", Deadline.after(0.9, clock))
    in_time = asyncio.ensure_future(turns.ask("b", Deadline.after(1.1, clock)))
    await settled()
    await turns.pass_by(2)
    assert ["a", "b"] == turns.granted
    await ended(in_time, *waiting)


async def test_a_deadline_while_it_waits(turns):
    """Where others come in between, the end of the time ends waiting, and is no turn."""
    (first,) = turns.start("a")
    await settled()
    with pytest.raises(NoTurnError):
        await turns.ask("b", Deadline.after(0.05, lambda: turns.now - 0.96))
    await turns.pass_by(1)
    assert ["a"] == turns.granted
    await ended(first)


def test_a_loop_that_has_ended():
    """Nothing of it is kept, also if somebody had to wait there."""
    rate, loops = Rate(20), []

    async def wait():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.gather(*(rate.turn(None) for _ in range(23)))

    asyncio.run(wait())
    gc.collect()
    assert [None] == [loop() for loop in loops]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks are never begun eagerly")
async def test_tasks_that_are_begun_eagerly():
    """All who wait have their turns."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    rate = Rate(20)
    async with asyncio.timeout(30):
        await asyncio.gather(*(rate.turn(None) for _ in range(23)))


def test_two_event_loops():
    """Keys may be shared by two that run at once: each has its queue, and all get their turns."""
    rate, both_wait = Rate(20), threading.Barrier(2)

    async def ask_for(number):
        turns = [asyncio.create_task(rate.turn(None)) for _ in range(number)]
        await asyncio.sleep(0)  # those that need not wait have their turns
        both_wait.wait(30)
        async with asyncio.timeout(30):
            await asyncio.gather(*turns)
        return number

    with ThreadPoolExecutor(2) as threads:
        ends = [threads.submit(asyncio.run, ask_for(30)) for _ in range(2)]
        assert [30, 30] == [end.result() for end in ends]
