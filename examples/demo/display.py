"""What is seen of a run while it goes on: a live picture on a terminal, plain lines elsewhere."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.demo.state import BUCKETS_PER_SECOND, Action, State
from examples.demo.strategies import strategies

WIDTH = 100
_FRAME = 0.2
_BUCKETS = 40
_BARS = "▁▂▃▄▅▆▇█"
_MARKS = {
    "running": Text("●", "green"),
    "frozen": Text("■", "cyan"),
    "dead": Text("✕", "red"),
}


@asynccontextmanager
async def show(state: State, console: Console) -> AsyncIterator[None]:
    """Show a run inside the block.

    Args:
        state: The run.
        console: Where to.
    """
    if not console.is_terminal:
        state.listeners.append(lambda action: console.print(_line(action), soft_wrap=True))
        yield
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        drawing = asyncio.create_task(_draw(state, live))
        try:
            yield
        finally:
            drawing.cancel()
            await asyncio.wait([drawing])


async def _draw(state: State, live: Live) -> None:
    while True:
        live.update(picture(state), refresh=True)
        await asyncio.sleep(_FRAME)


def picture(state: State) -> RenderableType:
    """Draw a run as it is now.

    Args:
        state: The run.
    """
    elapsed, seconds = state.elapsed, state.plan.seconds
    return Panel(
        Group(
            _facts(state),
            Text(),
            _strategies(state),
            Text(),
            *(_line(action) for action in state.actions[-5:]),
        ),
        title="[bold]aioretry demo",
        title_align="left",
        subtitle=f"{elapsed:.0f} of {seconds:g} s",
        subtitle_align="right",
        width=WIDTH,
        padding=(0, 1),
        box=box.ROUNDED,
    )


def _facts(state: State) -> RenderableType:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("time", ProgressBar(total=state.plan.seconds, completed=state.elapsed, width=84))
    facts.add_row("phase", Text(state.phase, "bold"))
    facts.add_row("now", Text(state.doing, "yellow"))
    if state.members():
        facts.add_row("set", _members(state))
    return facts


def _members(state: State) -> Text:
    parts = Text()
    for address, condition in state.members():
        parts.append_text(_MARKS[condition])
        word = "" if condition == "running" else f" {condition}"
        parts.append(f" {address}{word}   ")
    return parts


def _strategies(state: State) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("strategy", width=27)
    for name in ("acked", "errors", "retries"):
        table.add_column(name, justify="right", width=7)
    table.add_column(f"acknowledged, last {_BUCKETS // BUCKETS_PER_SECOND} s", width=_BUCKETS)
    for strategy in strategies(state.plan):
        cell = state.cells.get(strategy.key)
        figures = ("", "", "") if cell is None else (cell.acknowledged, cell.errors, cell.retries)
        table.add_row(
            Text(strategy.title, "bold green" if strategy.is_ours else ""),
            *map(str, figures),
            _sparkline(state.timeline.get(strategy.key, Counter()), state.elapsed),
        )
    return table


def _sparkline(acknowledged: Counter[int], elapsed: float) -> Text:
    line = Text()
    present = int(elapsed * BUCKETS_PER_SECOND)
    most = max(acknowledged.values(), default=1)
    for bucket in range(present - _BUCKETS, present):
        height = acknowledged[bucket]
        if bucket < 0 or (not height and bucket < min(acknowledged, default=present)):
            line.append(" ")
        elif not height:
            line.append("·", "bold red")
        else:
            line.append(_BARS[(len(_BARS) - 1) * height // most], "green")
    return line


def _line(action: Action) -> Text:
    return Text.assemble((f"{action.at:5.1f} s  ", "dim"), action.what)
