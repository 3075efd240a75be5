import asyncio
import math

from tests.benchmarks.failovers.measuring import label, longest_pause, shown, watched


class TestLongestPause:
    def test_between_moments(self):
        """The longest time between two moments counts, whatever their order."""
        assert longest_pause([5.0, 1.0, 2.0], 0.0, 6.0) == 3.0

    def test_at_the_ends(self):
        """The time before the first and after the last moment of the span counts too."""
        assert longest_pause([4.0, 5.0, 20.0], 0.0, 6.0) == 4.0
        assert longest_pause([1.0], 0.0, 6.0) == 5.0
        assert longest_pause([], 0.0, 6.0) == 6.0


class TestTexts:
    def test_labels(self):
        """A figure's name ends in its unit, if it has one."""
        assert label("longest_pause_s") == "longest pause, s"
        assert label("rss_a_writer_kib") == "rss a writer, KiB"
        assert label("errors") == "errors"

    def test_values(self):
        """Values are as long as they need to be."""
        assert [shown(value) for value in (1.2345, 1234.5, math.nan, 7)] == [
            "1.23",
            "1234",
            "-",
            "7",
        ]
        assert shown({"unknown": 2, "not applied": 1}) == "2 unknown, 1 not applied"
        assert shown({}) == "0"


class TestWatch:
    async def test_sees_threads_and_looks(self):
        """The loop is looked at for as long as the block runs, and no longer."""
        async with watched() as watch:
            while len(watch.stalls) < 2:
                await asyncio.sleep(0)
        seen = len(watch.stalls)
        assert watch.most_threads >= 1
        (first, _), (second, late) = watch.stalls[:2]
        assert watch.longest_stall_in(second, second) == late
        assert watch.longest_stall_in(second + 1, second + 2) == 0.0
        await asyncio.sleep(0)
        assert len(watch.stalls) == seen
        assert first < second
