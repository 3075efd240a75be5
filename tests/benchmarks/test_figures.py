import math

import pytest

from tests.benchmarks.figures import Spread, quantile, ratios, shown
from tests.benchmarks.process import (
    cpu_seconds,
    open_files,
    peak_kib,
    reset_peak,
    resident_kib,
    thread_count,
)


class TestQuantile:
    def test_of_many(self):
        """So large a share of the values does not exceed it."""
        values = [float(number) for number in range(1001)]
        assert quantile(values, 0.99) == pytest.approx(990)
        assert quantile(values, 0.999) == pytest.approx(999)

    def test_of_few(self):
        """One value is every quantile of itself, and nothing has none."""
        assert quantile([3.0], 0.99) == 3.0
        assert math.isnan(quantile([], 0.99))


class TestSpread:
    def test_is_the_middle_half(self):
        """A median stands with the ends of the middle half, whatever the outliers are."""
        spread = Spread.of([5.0, 1.0, 2.0, 3.0, 400.0])
        assert spread == Spread(2.0, 3.0, 5.0)
        assert str(spread) == "3.00 (2.00 to 5.00)"

    def test_of_one_round(self):
        """One value has no spread."""
        assert Spread.of([1.5]) == Spread(1.5, 1.5, 1.5)

    def test_ratios_are_of_each_round(self):
        """The ratio is that of two neighbours, so that a slow round of both is none."""
        assert ratios([2.0, 20.0], [1.0, 10.0]) == [2.0, 2.0]


def test_values_for_people():
    """Values are as long as they need to be."""
    assert [shown(value) for value in (1.2345, 1234.5, math.nan, 0.5)] == [
        "1.23",
        "1234",
        "-",
        "0.5",
    ]


class TestProcess:
    def test_knows_its_memory(self):
        """The peak is that since it was forgotten; where nobody tells, it is no number."""
        reset_peak()
        held = resident_kib()
        taken = b"x" * 30_000_000
        assert math.isnan(held) or peak_kib() - held > 20_000
        assert len(taken) > 0

    def test_knows_what_it_uses(self):
        """It has a thread and files, and has used some time."""
        assert thread_count() >= 1
        assert not open_files() < 3
        assert cpu_seconds() > 0
