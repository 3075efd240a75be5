"""The pictures of the pages, drawn from the figures that stand in their tables.

``python -m tests.docs.charts`` draws them anew.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests import svg

DOCS = Path(__file__).parent.parent.parent / "docs"

_WIDTH, _LEFT, _RIGHT, _TOP = 600, 150, 60, 44
_BAR, _GAP, _GROUP = 18, 5, 12  # the height of a bar, and what is left free below it and a group
OURS, TOGETHER, MOTOR, PYMONGO, FLOOR = "#2f6f9f", "#17a2c8", "#c0392b", "#e0a030", "#7f8c8d"
_PAUSE = "longest time without an acknowledged write"
_NUMBER = r"[\d.,]+"
_VALUE = re.compile(rf"^({_NUMBER})(?: \(({_NUMBER}) to ({_NUMBER})\))?")


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure of a table."""

    name: str
    value: float
    colour: str
    middle: tuple[float, float] | None = None
    """From where to where the middle half of what was measured lies."""

    shown: str = ""
    """The figure as the table has it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in groups, with a title; a group may have a heading."""

    title: str
    groups: Sequence[tuple[str, Sequence[Bar]]]
    is_logarithmic: bool = False
    mark: float | None = None
    """Where a line is drawn, as at a ratio of 1."""


Row = tuple[str, Mapping[str, str]]
"""The first cell of a line of a table, and the others by their columns."""


def table(text: str, heading: str) -> list[Row]:
    """The rows of the first table after a text."""
    lines = text[text.index(heading) :].splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("|"))
    columns, _, *rows = list(_cells(lines[begin:]))
    return [(name, dict(zip(columns[1:], cells, strict=True))) for name, *cells in rows]


def _cells(lines: Sequence[str]) -> Iterator[list[str]]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]


def bar(name: str, cell: str, colour: str) -> Bar:
    """The bar of a cell, such as "1.48 (1.36 to 1.80)" or "13.6 s"."""
    found = _VALUE.match(cell)
    if found is None:
        raise ValueError(f"no figure: {cell!r}")
    value, low, high = (float(part.replace(",", "")) if part else None for part in found.groups())
    middle = None if low is None or high is None else (low, high)
    return Bar(name, value or 0.0, colour, middle, cell.partition(" (")[0])


def throughput(text: str) -> Chart:
    """The inserts' throughput by Motor's."""
    found = dict(table(text, "| | 1 at once | 200 at once | 1000 at once |"))
    plain = found['insert_one, w: "majority": op/s ÷ Motor\'s']
    together = found["coalesced ÷ Motor's"]
    return Chart(
        "insert_one at w: majority: operations a second, Motor = 1",
        [
            (
                column,
                [
                    bar("aioretry", plain[column], OURS),
                    bar("aioretry, coalesced", together[column], TOGETHER),
                ],
            )
            for column in plain
        ],
        is_logarithmic=True,
        mark=1.0,
    )


def freeze(text: str) -> Chart:
    """The longest pause after the primary froze."""
    found = dict(table(text, "`freeze`, each write within 30 seconds"))
    servers, pauses = found["majority follows it after"], found[_PAUSE]
    bars = [bar("majority follows it", servers["aioretry"], FLOOR)]
    for name, colour in ("aioretry", OURS), ("Motor", MOTOR), ("AsyncMongoClient", PYMONGO):
        bars.append(bar(name, pauses[name], colour))
    return Chart("A frozen primary: longest time without an acknowledged write", [("", bars)])


def blind(text: str) -> Chart:
    """Events that were counted twice or never, in a whole run of the demo."""
    line = re.compile(r"^(\S.*?)  +\d+ events, (\d+) over, (\d+) under", re.MULTILINE)
    groups = [
        (name, [bar("counted twice", over, MOTOR), bar("never counted", under, FLOOR)])
        for name, over, under in line.findall(text)
    ]
    return Chart("Events that were not counted once", groups)


CHARTS: Mapping[str, tuple[str, Callable[[str], Chart]]] = {
    "performance-throughput.svg": ("performance.md", throughput),
    "failovers-freeze.svg": ("failovers.md", freeze),
    "why-blind-retries.svg": ("why-blind-retries.md", blind),
}
"""Each picture, the page that has it, and what draws it from the page's text."""


def drawn(name: str) -> str:
    """The SVG of a picture, from the figures that its page has now."""
    page, chart = CHARTS[name]
    return _draw(chart((DOCS / page).read_text()))


def _draw(chart: Chart) -> str:
    bars = [one for _, group in chart.groups for one in group]
    headings = sum(1 for heading, _ in chart.groups if heading)
    height = _TOP + (len(bars) + headings) * (_BAR + _GAP) + len(chart.groups) * _GROUP
    root = svg.picture(_WIDTH, height, chart.title)
    svg.text(root, 12, 26, chart.title, size=14, weight="bold")
    scale = _Scale(chart, max(one.middle[1] if one.middle else one.value for one in bars))
    y: float = _TOP
    for heading, group in chart.groups:
        if heading:
            svg.text(root, 12, y + 13, heading, weight="bold")
            y += _BAR + _GAP
        for one in group:
            _draw_bar(root, one, y, scale)
            y += _BAR + _GAP
        y += _GROUP
    if chart.mark is not None:
        x = scale.x(chart.mark)
        svg.line(root, x, _TOP, x, height - _GROUP, svg.INK)
    return svg.text_of(root)


def _draw_bar(root: ET.Element, one: Bar, y: float, scale: "_Scale") -> None:
    svg.text(root, _LEFT - 8, y + 13, one.name, anchor="end")
    left, right = sorted((scale.x(scale.origin), scale.x(one.value)))
    svg.rect(root, left, y, max(1.0, right - left), _BAR, one.colour)
    end = right
    if one.middle is not None:
        low, high = (scale.x(value) for value in one.middle)
        svg.line(root, low, y + _BAR / 2, high, y + _BAR / 2, svg.INK, width=2)
        end = max(end, high)
    svg.text(root, end + 6, y + 13, one.shown)


class _Scale:
    """Where a value is, from the left."""

    def __init__(self, chart: Chart, highest: float) -> None:
        self._is_logarithmic = chart.is_logarithmic
        self._highest = highest
        self.origin = 0.8 if chart.is_logarithmic else 0.0

    def x(self, value: float) -> float:
        if self._is_logarithmic:
            share = math.log(value / self.origin) / math.log(self._highest / self.origin)
        else:
            share = value / self._highest
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


if __name__ == "__main__":
    for _name in CHARTS:
        (DOCS / _name).write_text(drawn(_name))
