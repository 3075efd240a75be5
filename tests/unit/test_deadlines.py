import asyncio
import math

import pymongo
import pytest
from pymongo import _csot

from aioretry import Deadline, deadline, detached
from aioretry.deadlines import current_deadline


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class TestDeadline:
    def test_counts_down(self):
        """A deadline knows what is left of it."""
        clock = Clock()
        limit = Deadline.after(5, clock)
        assert limit.remaining() == 5
        clock.now += 4
        assert (limit.remaining(), limit.is_over) == (1, False)
        clock.now += 1
        assert (limit.remaining(), limit.is_over) == (0, True)
        clock.now += 1
        assert limit.remaining() == 0

    def test_zero_has_expired(self):
        """A deadline of 0 seconds is over from the start."""
        assert Deadline.after(0, Clock()).is_over

    def test_infinity_never_comes(self):
        """An infinite deadline is no limit."""
        limit = Deadline.after(math.inf, Clock())
        assert (limit.is_limited, limit.is_over) == (False, False)

    def test_nearer(self):
        """Of two deadlines the earlier one counts."""
        near, far = Deadline(1.0), Deadline(2.0)
        assert near.nearer(far) is near
        assert far.nearer(near) is near
        assert far.nearer(None) is far


class TestBlock:
    def test_sets_and_resets(self):
        """The deadline is in force inside the block only."""
        assert current_deadline() is None
        with deadline(5) as limit:
            assert current_deadline() is limit
            assert 4 < limit.remaining() <= 5
        assert current_deadline() is None

    async def test_async(self):
        """`async with` does the same."""
        async with deadline(5) as limit:
            assert current_deadline() is limit
        assert current_deadline() is None

    def test_nested_blocks_take_the_nearer(self):
        """An inner block can shorten the outer one, not lengthen it."""
        with deadline(5) as outer:
            with deadline(50) as inner:
                assert inner is outer
            with deadline(1) as inner:
                assert inner.at < outer.at
            assert current_deadline() is outer

    def test_gives_the_nearest(self):
        """What entering gives is the deadline in force, PyMongo's own timeout included."""
        with pymongo.timeout(5):
            with deadline(None) as limit:
                assert 4 < limit.remaining() <= 5
            with deadline(50) as limit:
                assert 4 < limit.remaining() <= 5
            with deadline(1) as limit:
                assert limit.remaining() <= 1
        with pymongo.timeout(0), deadline(None) as limit:
            assert not limit.is_limited

    def test_none_inherits(self):
        """None leaves things as they are."""
        with deadline(None) as limit:
            assert limit is None
        with deadline(5) as outer, deadline(None) as inner:
            assert inner is outer

    def test_sets_pymongos_timeout(self):
        """Reads inside the block obey PyMongo's own timeout, which has the same end."""
        with deadline(5) as limit:
            assert _csot.get_deadline() == pytest.approx(limit.at, abs=0.05)
        assert _csot.get_timeout() is None

    def test_zero_never_reaches_pymongo(self):
        """PyMongo takes 0 for "no limit", so an exhausted deadline must not become 0 there."""
        with deadline(0):
            assert _csot.get_timeout() > 0
            assert _csot.remaining() <= 1e-6

    def test_infinity_is_no_limit_for_reads_either(self):
        """PyMongo takes 0 for "no limit", and retries then without end."""
        with deadline(math.inf) as limit:
            assert not limit.is_limited
            assert (0, None) == (_csot.get_timeout(), _csot.remaining())

    def test_infinity_lifts_no_surrounding_limit(self):
        """What surrounds the block still ends what is called inside."""
        with pymongo.timeout(5), deadline(math.inf):
            assert 4 < _csot.remaining() <= 5
        with deadline(5), deadline(math.inf):
            assert 4 < _csot.remaining() <= 5

    def test_an_outer_pymongo_timeout_still_counts(self):
        """PyMongo's own nesting keeps the nearer."""
        with pymongo.timeout(1), deadline(5):
            assert _csot.remaining() <= 1

    @pytest.mark.parametrize("seconds", ["5", True, object(), 1j])
    def test_refuses_what_is_no_number(self, seconds):
        """Anything but a number is refused, and named."""
        with pytest.raises(TypeError, match="seconds must be a number of seconds or None"):
            deadline(seconds)

    @pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, -math.inf])
    def test_refuses_negative_and_nan(self, seconds):
        """A deadline in the past or nowhere is refused."""
        with pytest.raises(ValueError, match="seconds must be a number of seconds from 0 on"):
            deadline(seconds)

    def test_is_entered_once(self):
        """A block is not entered twice at a time."""
        block = deadline(5)
        with block, pytest.raises(RuntimeError, match="entered already"):
            block.__enter__()
        with pytest.raises(RuntimeError, match="not entered"):
            block.__exit__(None, None, None)


async def test_detached():
    """A task or a timer that is detached inherits no deadline, and PyMongo's neither."""
    loop = asyncio.get_running_loop()
    found = loop.create_future()

    async def look():
        return current_deadline(), _csot.get_timeout()

    async with deadline(5.0):
        task = detached(asyncio.create_task, look(), name="mine")
        detached(loop.call_later, 0.0, lambda: found.set_result(current_deadline()))
        assert (None, None) == await task
        assert await found is None
    assert "mine" == task.get_name()
