"""What is printed at the end."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from aioretry import Outcome
from tests.chaos.run import Options, Result

_FINDINGS_SHOWN = 20
_LEGEND = """\
A call is one insert_one, bulk_write and so on; a write is one statement of it. Applied, not \
applied and unknown: what was told of the writes; Motor tells nothing of one that failed, so that \
they count as unknown. Failed, yet there: writes whose call raised, and which were applied. Lost: \
acknowledged, and not there. Doubled: there more often than it can be. Wrong: said to be not \
applied, and there."""


def print_report(console: Console, options: Options, results: Sequence[Result]) -> None:
    """Print figures and verdicts of all clients.

    Args:
        console: Where to.
        options: What the runs were like.
        results: What they came to.
    """
    console.print()
    for part in (_calls(options, results), _faults(results), _verdicts(results), _LEGEND):
        console.print(part)
        console.print()
    for result in results:
        _print_findings(console, result)


def _calls(options: Options, results: Sequence[Result]) -> Table:
    table = Table(
        title=f"seed {options.seed}, {options.seconds:g} s, {options.members} members, "
        f"{options.writers} writers, deadline {options.timeout:g} s"
    )
    table.add_column("calls")
    for result in results:
        table.add_column(result.name, justify="right")

    def row(name: str, value: Callable[[Result], Any]) -> None:
        table.add_row(name, *(str(value(result)) for result in results))

    row("all", _total)
    row("acknowledged", lambda result: result.figures.acknowledged.total())
    row("failed", lambda result: result.figures.failed.total())
    for told in [*(outcome.value for outcome in Outcome), "no word"]:
        row(f"  {told}", lambda result, told=told: result.figures.failed[told])
    row("cancelled", lambda result: result.figures.cancelled)
    row("resolved", lambda result: _spelled(result.figures.resolved))
    row("errors", lambda result: _spelled(result.figures.errors))
    row("sessions left", lambda result: _spelled(result.figures.sessions))
    row("longest call", lambda result: f"{result.figures.longest:.1f} s")
    row("longest time without one", lambda result: f"{result.timeline.longest_pause:.1f} s")
    return table


def _total(result: Result) -> int:
    return result.figures.acknowledged.total() + result.figures.failed.total()


def _faults(results: Sequence[Result]) -> Table:
    table = Table("faults")
    counts = [Counter(fault.kind.value for fault in result.timeline.faults) for result in results]
    for result in results:
        table.add_column(result.name, justify="right")
    for kind in sorted({kind for count in counts for kind in count}):
        table.add_row(kind, *(str(count[kind]) for count in counts))
    table.add_section()
    table.add_row("all", *(str(count.total()) for count in counts))
    return table


def _verdicts(results: Sequence[Result]) -> Table:
    table = Table("client", "kind")
    for name in (
        "writes",
        "applied",
        "not applied",
        "unknown",
        "failed, yet there",
        "lost",
        "doubled",
        "wrong",
    ):
        table.add_column(name, justify="right")
    for result in results:
        for verdict in result.verdicts:
            figures = (
                verdict.writes,
                *(verdict.outcomes.get(outcome, 0) for outcome in Outcome),
                verdict.late,
                verdict.lost,
                verdict.doubled,
                verdict.wrong,
            )
            table.add_row(result.name, verdict.kind, *map(str, figures))
        table.add_section()
    return table


def _print_findings(console: Console, result: Result) -> None:
    for verdict in result.verdicts:
        if verdict.details:
            console.print(f"{result.name}, {verdict.kind}: {verdict.details}", markup=False)
    for finding in result.findings[:_FINDINGS_SHOWN]:
        console.print(f"{result.name}: {finding}", markup=False)
    if len(result.findings) > _FINDINGS_SHOWN:
        console.print(f"{result.name}: and {len(result.findings) - _FINDINGS_SHOWN} more")
    if result.is_true:
        console.print(f"{result.name}: nothing lost, nothing doubled, nothing told wrongly.")


def _spelled(counts: Mapping[str, int]) -> str:
    return "\n".join(f"{name} {count}" for name, count in sorted(counts.items())) or "-"
