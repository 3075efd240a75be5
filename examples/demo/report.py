"""What is said at the end; every figure in it was counted."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from examples.demo.display import WIDTH
from examples.demo.plan import EVENTS_PER_SECOND
from examples.demo.run import Line, Result
from examples.demo.state import State

_STRATEGY_WIDTH = 29
_COLUMNS = {  # and their widths
    "events": 6,
    "acknowledged": 12,
    "errors": 6,
    "unknown": 7,
    "counted": 7,
    "over": 5,
    "under": 5,
    "sent": 6,
    "longest pause": 7,
}

_LEGEND = """\
events: what happened and should be counted once. acknowledged: the write returned. errors: it \
raised. unknown: errors that say that the write may or may not be applied; a plain driver's errors \
never say (-). counted: the sum of the counters in the database, read past the proxies with read \
concern majority. over: how often events were counted beyond their first time. under: events that \
were never counted. sent: update commands that left the client. longest pause: the longest time \
without an acknowledged write. In every line, counted = events - under + over."""


def print_report(console: Console, state: State, result: Result) -> None:
    """Print the table, what its columns mean, and a line for each strategy.

    Args:
        console: Where to.
        state: The run.
        result: What it came to.
    """
    width = min(WIDTH, console.width)
    for part in (
        _conditions(state),
        _table(result),
        Text(_LEGEND, "dim"),
        *_skipped(result),
        _summary(result),
        _verdict(state, result),
    ):
        console.print(part, width=width)
        console.print()


def as_data(state: State, result: Result) -> dict[str, Any]:
    """Return a result as what JSON is made of.

    Args:
        state: The run.
        result: What it came to.
    """
    plan = state.plan
    return {
        "seconds": plan.seconds,
        "duration": round(state.elapsed, 3),
        "server": state.about,
        "client": plan.client,
        "writers": plan.writers,
        "events_per_second": EVENTS_PER_SECOND,
        "serverSelectionTimeoutMS": int(plan.server_selection_timeout * 1000),
        "deadline": plan.deadline,
        "exact": not any(line.tally.false for line in _ours(result.lines)),
        "skipped": [fault.key for fault in result.skipped],
        "cells": [_cell(line) for line in result.lines],
        "actions": [{"at": round(one.at, 3), "what": one.what} for one in state.actions],
    }


def _cell(line: Line) -> dict[str, Any]:
    cell = line.tally
    return {
        "fault": line.fault.key,
        "strategy": line.strategy.key,
        "events": cell.events,
        "acknowledged": cell.acknowledged,
        "errors": cell.errors,
        "unknown": cell.unknown if line.strategy.is_ours else None,
        "counted": cell.counted,
        "over": cell.over,
        "under": cell.under,
        "counted_errors": cell.counted_errors,
        "false": cell.false,
        "sent": line.sent,
        "retries": line.retries,
        "longest_pause": round(line.longest_pause, 3),
        "error_classes": dict(line.error_classes),
    }


def _conditions(state: State) -> Text:
    plan = state.plan
    plain = "AsyncMongoClient" if plan.client == "asyncio" else "Motor"
    return Text(
        f"{state.about}, w: majority, j: true, serverSelectionTimeoutMS "
        f"{plan.server_selection_timeout * 1000:.0f} (with a deadline: "
        f"{plan.deadline * 1000:.0f}, as the deadline). Each strategy: {plan.writers} writers, "
        f"{EVENTS_PER_SECOND:g} events a second. The first three: plain {plain}, retryWrites=false."
    )


def _table(result: Result) -> Group:
    parts: list[RenderableType] = [_grid(Text("strategy"), *map(Text, _COLUMNS)), Rule(style="dim")]
    faults = {line.fault.key: line.fault for line in result.lines}
    for fault in faults.values():
        rows = [_row(line) for line in result.lines if line.fault == fault]
        parts += [Text(fault.title, "bold"), *(_grid(*row) for row in rows), Text()]
    return Group(*parts[:-1])


def _grid(*row: Text) -> Table:
    # A table can't have a title in the middle of it; tables of equal widths can.
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_STRATEGY_WIDTH, vertical="bottom", no_wrap=True)
    for width in _COLUMNS.values():
        grid.add_column(width=width, justify="right", vertical="bottom")
    grid.add_row(*row)
    return grid


def _row(line: Line) -> Sequence[Text]:
    cell = line.tally
    return (
        Text(f"  {line.strategy.title}", "green" if line.strategy.is_ours else ""),
        Text(str(cell.events)),
        Text(str(cell.acknowledged)),
        _count(cell.errors, "yellow"),
        _count(cell.unknown, "yellow") if line.strategy.is_ours else Text("-", "dim"),
        Text(str(cell.counted)),
        _count(cell.over, "bold red"),
        _count(cell.under, "red"),
        Text(str(line.sent)),
        Text(f"{line.longest_pause:.1f} s"),
    )


def _count(number: int, style: str) -> Text:
    return Text(str(number), style if number else "dim")


def _skipped(result: Result) -> list[Text]:
    if not result.skipped:
        return []
    names = ", ".join(fault.title for fault in result.skipped)
    return [Text(f"Left out, because nothing is done to an existing set: {names}.")]


def _summary(result: Result) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("in all", "dim"), Text("but for what a server refused on purpose", "dim"))
    strategies = {line.strategy.key: line.strategy for line in result.lines}
    for strategy in strategies.values():
        lines = [
            line for line in result.lines if line.strategy == strategy and not line.fault.some_fail
        ]
        table.add_row(Text(strategy.title, "bold"), _sum(lines))
    return table


def _sum(lines: Sequence[Line]) -> Text:
    cells = [line.tally for line in lines]
    return Text(
        f"{sum(cell.events for cell in cells)} events, "
        f"{sum(cell.over for cell in cells)} over, {sum(cell.under for cell in cells)} under, "
        f"{sum(cell.errors for cell in cells)} errors, "
        f"longest pause {max(line.longest_pause for line in lines):.1f} s"
    )


def _verdict(state: State, result: Result) -> Text:
    ours = _ours(result.lines)
    events = sum(line.tally.events for line in ours)
    false = sum(line.tally.false for line in ours)
    if not false:
        said = Text(f"What aioretry said was true of all its {events} events.", "bold green")
    else:
        said = Text(f"What aioretry said was untrue of {false} of its {events} events.", "bold red")
    return said.append(f" {state.elapsed:.1f} s in all.", "not bold default")


def _ours(lines: Iterable[Line]) -> list[Line]:
    return [line for line in lines if line.strategy.is_ours]
