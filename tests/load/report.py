"""What is printed at the end of load runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.load.accounting import is_success
from tests.load.run import Options, Result

_SHOWN = 10
_LEGEND = """\
Broken: 5xx but for 504, and connections that broke. Late: answers later than the deadline and \
the grace. Without an answer: orders of which the client never learnt whether they were taken. \
Doubled: orders in the database beyond one for each key. Lost: accepted, and not there as they \
were asked for. Stock off by: the pieces that are missing or too many beside the stored orders."""


def print_report(console: Console, options: Options, results: Sequence[Result]) -> None:
    """Print figures and verdicts of all services.

    Args:
        console: Where to.
        options: What the runs were like.
        results: What they came to.
    """
    console.print(
        f"\n{options.connections} connections for {options.seconds:g} s, {options.processes} "
        f"processes of the service, a deadline of {options.deadline:g} s for each request"
    )
    console.print(_table(results, options.seconds))
    console.print(_LEGEND)
    for result in results:
        for complaint in result.figures.complaints[:_SHOWN]:
            console.print(
                f"{result.name}: {complaint.number} {complaint.what!r}, from {complaint.first:.1f} "
                f"s to {complaint.last:.1f} s, after {complaint.seconds:.1f} s at most",
                markup=False,
            )
        if result.kept_the_rules:
            console.print(f"{result.name}: each order once, no 5xx but 504, each answer in time.")


def _table(results: Sequence[Result], seconds: float) -> Table:
    table = Table("")
    for result in results:
        table.add_column(result.name, justify="right")

    def row(name: str, value: Callable[[Result], Any]) -> None:
        table.add_row(name, *(str(value(result)) for result in results))

    row("requests", lambda result: result.figures.requests)
    row("  by status", lambda result: _by_status(result.figures.statuses))
    row("  broken", lambda result: result.figures.broken)
    row("  late", lambda result: result.figures.late)
    row("accepted a second", lambda result: f"{_granted(result) / seconds:.0f}")
    row("p50", lambda result: f"{result.figures.p50 * 1000:.0f} ms")
    row("p99", lambda result: f"{result.figures.p99 * 1000:.0f} ms")
    row("longest", lambda result: f"{result.figures.longest:.1f} s")
    row("longest time without success", lambda result: f"{result.figures.pause[1]:.1f} s")
    row("  which began at", lambda result: f"{result.figures.pause[0]:.1f} s")
    table.add_section()
    row("orders accepted", lambda result: result.books.accepted)
    row("orders in the database", lambda result: result.books.stored)
    row("  without an answer", lambda result: result.books.undecided)
    row("  refused", lambda result: result.books.refused)
    row("  doubled", lambda result: result.books.doubled)
    row("  lost", lambda result: result.books.lost)
    row("  answered differently", lambda result: result.books.renamed)
    row("stock off by", lambda result: result.books.stock_off)
    if any(result.handed for result in results):
        table.add_section()
        row("told by the outbox", lambda result: result.handed and result.handed.deliveries)
        row("  again, with the same id", lambda result: result.handed and result.handed.again)
        row("  not told", lambda result: result.handed and result.handed.lost)
        row("  of no order", lambda result: result.handed and result.handed.strange)
        row("  out of order", lambda result: result.handed and result.handed.disordered)
    return table


def _granted(result: Result) -> int:
    statuses = result.figures.statuses.items()
    return sum(number for status, number in statuses if is_success(status))


def _by_status(statuses: Mapping[int | None, int]) -> str:
    ordered = sorted(statuses.items(), key=lambda item: (item[0] is None, item[0] or 0))
    return "\n".join(f"{status or 'none'}: {number}" for status, number in ordered)
