"""How many statements with keys go a second, by a clock of the test's own."""

import pytest

from aioretry import Deadline, DeadlineExceeded
from aioretry.idempotent._keys_rate import Rate


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
