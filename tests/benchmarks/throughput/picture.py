"""The comparison as a picture: throughput and CPU time over how many were at once; SVG."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from tests import svg
from tests.benchmarks.figures import Spread
from tests.benchmarks.throughput.clients import COALESCED, FLOOR, MOTOR, OURS, PYMONGO, TITLES
from tests.benchmarks.throughput.ratios import Results
from tests.benchmarks.throughput.rounds import Series

_WIDTH, _HEIGHT = 380, 250  # of a panel, with what stands around it
_LEFT, _RIGHT, _HEAD, _FOOT = 58, 18, 34, 34
_TOP, _LEGEND = 16, 34
COLOURS = {
    OURS: "#2f6f9f",
    COALESCED: "#17a2c8",
    MOTOR: "#c0392b",
    PYMONGO: "#e0a030",
    FLOOR: "#7f8c8d",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """What a panel shows."""

    title: str
    values: Callable[[Series], list[float]]


MEASURES = (
    Measure("operations a second", lambda series: series.per_second),
    Measure("CPU microseconds an operation", lambda series: series.cpu_us),
)

Points = Mapping[str, Mapping[int, Spread]]
"""What a panel shows of each client, by how many were at once."""


def draw(results: Results, title: str) -> str:
    """Draw a row of panels for each operation: two for each write concern.

    Args:
        results: What was measured.
        title: What the picture is called.

    Returns:
        The SVG.
    """
    operations = list(dict.fromkeys(case.operation for case in results))
    concerns = list(dict.fromkeys(case.w for case in results))
    columns = [(w, measure) for w in concerns for measure in MEASURES]
    width, height = _WIDTH * len(columns), _TOP + _HEIGHT * len(operations) + _LEGEND
    root = svg.picture(width, height, title)
    for row, operation in enumerate(operations):
        for column, (w, measure) in enumerate(columns):
            points = _points(results, operation, w, measure)
            panel = _Panel(root, column * _WIDTH, _TOP + row * _HEIGHT, points)
            panel.draw(f"{operation}, w: {w}: {measure.title}")
    _legend(root, height - _LEGEND, {key for series in results.values() for key in series})
    return svg.text_of(root)


def _points(results: Results, operation: str, w: str, measure: Measure) -> Points:
    points: dict[str, dict[int, Spread]] = {}
    for case, series in results.items():
        if (case.operation, case.w) == (operation, w):
            for key, one in series.items():
                points.setdefault(key, {})[case.writers] = Spread.of(measure.values(one))
    return points


class _Panel:
    """One diagram: a line for each client, its middle halves as strokes; a logarithmic scale."""

    def __init__(self, root: ET.Element, left: float, top: float, points: Points) -> None:
        self._root = root
        self._points = points
        self._left, self._right = left + _LEFT, left + _WIDTH - _RIGHT
        self._ceiling, self._floor = top + _HEAD, top + _HEIGHT - _FOOT
        self._columns = sorted({number for line in points.values() for number in line})
        values = [spread for line in points.values() for spread in line.values()]
        self._decades = decades([value for one in values for value in (one.low, one.high)])

    def draw(self, title: str) -> None:
        svg.text(self._root, self._left - 40, self._ceiling - 12, title, size=13, weight="bold")
        self._draw_axes()
        for key, line in self._points.items():
            self._draw_line(COLOURS[key], TITLES[key], line)

    def _draw_axes(self) -> None:
        for exponent in range(self._decades[0], self._decades[-1] + 1):
            y = self._y(10.0**exponent)
            svg.line(self._root, self._left, y, self._right, y, svg.FAINT)
            svg.text(self._root, self._left - 6, y + 4, f"{10**exponent:,}", anchor="end")
        for number in self._columns:
            x = self._x(number)
            svg.line(self._root, x, self._floor, x, self._floor + 4, svg.INK)
            svg.text(self._root, x, self._floor + 17, str(number), anchor="middle")

    def _draw_line(self, colour: str, title: str, line: Mapping[int, Spread]) -> None:
        mark = svg.add(self._root, "g", {"class": "client"})
        svg.add(mark, "title", text=title)
        places = [(self._x(number), self._y(one.middle)) for number, one in sorted(line.items())]
        points = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        stroke = {"fill": "none", "stroke": colour, "stroke-width": "2"}
        svg.add(mark, "polyline", {"points": points, **stroke})
        for number, one in line.items():
            x = self._x(number)
            svg.line(mark, x, self._y(one.low), x, self._y(one.high), colour, width=4)
            svg.rect(mark, x - 3, self._y(one.middle) - 3, 6, 6, colour)

    def _x(self, number: int) -> float:
        room = (self._right - self._left) / len(self._columns)
        return self._left + room * (self._columns.index(number) + 0.5)

    def _y(self, value: float) -> float:
        low, high = self._decades[0], self._decades[-1]
        share = (math.log10(value) - low) / (high - low)
        return self._floor - share * (self._floor - self._ceiling)


def decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten between which all values lie; at least one apart, and none below 1."""
    low = max(0, math.floor(math.log10(min(values))))
    return low, max(low + 1, math.ceil(math.log10(max(values))))


def _legend(root: ET.Element, top: float, present: set[str]) -> None:
    for number, key in enumerate(key for key in TITLES if key in present):
        x = _LEFT + number * 160
        svg.rect(root, x, top + 8, 14, 14, COLOURS[key])
        svg.text(root, x + 20, top + 19, TITLES[key])
