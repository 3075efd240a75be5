"""The timeline as a picture: what was acknowledged each second, and the faults; SVG."""

import math
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from tests import svg
from tests.chaos.run import Options, Result
from tests.chaos.schedule import Kind
from tests.chaos.timeline import Happened, Timeline

_WIDTH, _LEFT, _RIGHT = 1200, 60, 20
_HEAD, _LANE, _PANEL, _FOOT = 30, 11, 150, 34
_LETTER = 11  # how much room one takes
_LEGEND_COLUMNS = 4
_ACKNOWLEDGED, _FAILED = "#2f6f9f", "#c0392b"

LOOKS: Mapping[Kind, tuple[str, str]] = {
    Kind.DROP_REQUEST: ("Q", "#e0a030"),
    Kind.DROP_REPLY: ("R", "#c98a00"),
    Kind.DELAY: ("D", "#8fb339"),
    Kind.HANG: ("H", "#5b8c2a"),
    Kind.ERROR: ("E", "#b56bb0"),
    Kind.WRITE_CONCERN_ERROR: ("W", "#8a4fa3"),
    Kind.REFUSE: ("C", "#7f8c8d"),
    Kind.PARTITION: ("P", "#34495e"),
    Kind.ISOLATE: ("I", "#9aa3ad"),
    Kind.HALF_DEAD: ("T", "#a0785a"),
    Kind.HOT_BREAK: ("X", "#6a3d2b"),
    Kind.KILL: ("K", "#d62728"),
    Kind.FREEZE: ("F", "#17a2c8"),
    Kind.STEP_DOWN: ("S", "#e377c2"),
    Kind.RESTART: ("B", "#ff7f0e"),
}
"""The letter and the colour of each kind of fault."""


def draw(results: Sequence[Result], options: Options) -> str:
    """Draw one panel for each client, one above the other.

    Args:
        results: What the runs came to.
        options: What they were like.

    Returns:
        The SVG.
    """
    seconds = max([options.seconds, *(result.timeline.seconds for result in results)])
    highest = max([1, *(n for one in results for n in one.timeline.acknowledged.values())])
    room = _LETTER * seconds / (_WIDTH - _LEFT - _RIGHT)
    lanes = [_lanes(result.timeline.faults, room) for result in results]
    heights = [_HEAD + _LANE * max([0, *own.values()]) + _LANE + _PANEL + _FOOT for own in lanes]
    legend = 22 * math.ceil((len(LOOKS) + 2) / _LEGEND_COLUMNS) + 16
    height = sum(heights) + legend
    root = svg.picture(_WIDTH, height, f"Chaos run, seed {options.seed}")
    top = 0.0
    for result, own, one in zip(results, lanes, heights, strict=True):
        _Panel(root, top, one, seconds, highest).draw(result, own)
        top += one
    _legend(root, top)
    return svg.text_of(root)


class _Panel:
    """The picture of one client."""

    def __init__(
        self, root: ET.Element, top: float, height: float, seconds: float, highest: int
    ) -> None:
        self._root = root
        self._top = top
        self._seconds = seconds
        self._highest = highest
        self._floor = top + height - _FOOT
        self._ceiling = self._floor - _PANEL

    def draw(self, result: Result, lanes: Mapping[Happened, int]) -> None:
        svg.text(self._root, _LEFT, self._top + 20, _headline(result), size=14, weight="bold")
        for fault, lane in lanes.items():
            self._draw_fault(fault, lane)
        self._draw_axes()
        self._draw_bars(result.timeline)

    def _draw_fault(self, fault: Happened, lane: int) -> None:
        letter, colour = LOOKS[fault.kind]
        left, right = self._x(fault.began), self._x(fault.ended)
        width = max(1.5, right - left)
        mark = svg.add(self._root, "g", {"class": "fault"})
        svg.add(mark, "title", text=f"{fault.began:.1f} to {fault.ended:.1f} s: {fault.text}")
        svg.rect(mark, left, self._ceiling, width, _PANEL, colour, opacity=0.18)
        y = self._ceiling - _LANE * (lane + 1)
        svg.rect(mark, left, y + 1, width, _LANE - 2, colour)
        svg.line(mark, left, y + 1, left, self._floor, colour)
        svg.text(mark, left + width + 1.5, y + _LANE - 2, letter, size=9)

    def _draw_axes(self) -> None:
        for part in range(4):
            value = self._highest * part / 3
            y = self._y(value)
            svg.line(self._root, _LEFT, y, _WIDTH - _RIGHT, y, svg.FAINT)
            svg.text(self._root, _LEFT - 6, y + 4, f"{value:.0f}", anchor="end")
        step = _step(self._seconds)
        for number in range(int(self._seconds / step) + 1):
            x = self._x(number * step)
            svg.line(self._root, x, self._floor, x, self._floor + 4, svg.INK)
            svg.text(self._root, x, self._floor + 17, f"{number * step:g} s", anchor="middle")

    def _draw_bars(self, timeline: Timeline) -> None:
        for counts, colour, name in (
            (timeline.acknowledged, _ACKNOWLEDGED, "acknowledged"),
            (timeline.failed, _FAILED, "failed"),
        ):
            path = []
            for second, count in sorted(counts.items()):
                shown = min(count, self._highest)
                left, right = self._x(second), self._x(second + 1)
                inset = 0.0 if name == "acknowledged" else (right - left) * 0.3
                path.append(
                    f"M{left + inset:.2f} {self._floor:.2f}V{self._y(shown):.2f}"
                    f"H{right - inset:.2f}V{self._floor:.2f}Z"
                )
            svg.add(self._root, "path", {"class": name, "d": "".join(path), "fill": colour})

    def _x(self, second: float) -> float:
        share = min(second, self._seconds) / self._seconds
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, count: float) -> float:
        return self._floor - count / self._highest * _PANEL


def _headline(result: Result) -> str:
    return (
        f"{result.name}: acknowledged calls a second; "
        f"{result.figures.acknowledged.total()} in all, {result.figures.failed.total()} failed, "
        f"at most {result.timeline.longest_pause:.1f} s without one"
    )


def _lanes(faults: Sequence[Happened], room: float) -> dict[Happened, int]:
    """Which line each fault's mark stands on, so that none hides another.

    Args:
        faults: The faults.
        room: The seconds that a mark's letter takes.
    """
    ends: list[float] = []
    lanes = {}
    for fault in sorted(faults, key=lambda fault: fault.began):
        free = (lane for lane, end in enumerate(ends) if end <= fault.began)
        lane = next(free, len(ends))
        ends[lane : lane + 1] = [fault.ended + room]
        lanes[fault] = lane
    return lanes


def _legend(root: ET.Element, top: float) -> None:
    entries = [(letter, colour, kind.value) for kind, (letter, colour) in LOOKS.items()]
    entries += [("", _ACKNOWLEDGED, "acknowledged calls"), ("", _FAILED, "failed calls")]
    width = (_WIDTH - _LEFT - _RIGHT) / _LEGEND_COLUMNS
    for number, (letter, colour, name) in enumerate(entries):
        row, column = divmod(number, _LEGEND_COLUMNS)
        x, y = _LEFT + column * width, top + 8 + 22 * row
        svg.rect(root, x, y, 14, 14, colour)
        svg.text(root, x + 20, y + 11, f"{letter}  {name}".strip())


def _step(seconds: float) -> float:
    return next((step for step in (5, 10, 30, 60) if seconds / step <= 20), 120)
