"""What the comparison prints: for each operation the figures, and below them the ratios."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.figures import Spread, shown
from tests.benchmarks.throughput.clients import TITLES
from tests.benchmarks.throughput.compare import Comparison
from tests.benchmarks.throughput.operations import STATEMENTS
from tests.benchmarks.throughput.ratios import RATIOS, Case, Results, judged, spreads
from tests.benchmarks.throughput.rounds import Series


def show(console: Console, comparison: Comparison, members: int) -> None:
    """Print all tables.

    Args:
        console: Where to.
        comparison: What was measured.
        members: How many servers there were.
    """
    for (operation, w), cases in _grouped(comparison.results):
        title = f"{_titled(operation)}, w: {w}, {members} member(s)"
        console.print(_figures(cases, title))
        console.print(_ratios(cases))
    if comparison.peaks:
        console.print(_peaks(comparison))
    targets = _targets(comparison.results)
    if targets.row_count:
        console.print(targets)


def data(comparison: Comparison) -> dict[str, Any]:
    """The medians and the ratios, as data."""
    return {
        "cases": [
            {
                "operation": case.operation,
                "w": case.w,
                "at_once": case.writers,
                "clients": {key: one.medians() for key, one in series.items()},
                "ratios": {key: _as_data(spread) for key, spread in spreads(series).items()},
            }
            for case, series in comparison.results.items()
        ],
        "peak_kib": [
            {"operation": operation, "client": key, "at_once": comparison.peak_writers, "kib": kib}
            for (operation, key), kib in comparison.peaks.items()
        ],
        "targets": [
            {"target": str(target), "median": value, "met": target.met_by(value)}
            for target, value in judged(comparison.results)
        ],
    }


def _as_data(spread: Spread) -> dict[str, float]:
    return {"median": spread.middle, "from": spread.low, "to": spread.high}


def _titled(operation: str) -> str:
    return f"{operation} of {STATEMENTS} statements" if operation == "bulk_write" else operation


def _grouped(
    results: Results,
) -> Iterator[tuple[tuple[str, str], Mapping[int, Mapping[str, Series]]]]:
    ordered = sorted(results, key=lambda case: (case.operation, case.w))

    def group(case: Case) -> tuple[str, str]:
        return case.operation, case.w

    for key, cases in groupby(ordered, group):
        yield key, {case.writers: results[case] for case in cases}


def _figures(cases: Mapping[int, Mapping[str, Series]], title: str) -> Table:
    table = Table("at once", "client", title=title)
    for heading in ("op/s", "p50 ms", "p99 ms", "CPU us/op"):
        table.add_column(heading, justify="right")
    for writers, series in cases.items():
        for key, one in series.items():
            table.add_row(str(writers), TITLES[key], *map(shown, one.medians().values()))
        table.add_section()
    return table


def _ratios(cases: Mapping[int, Mapping[str, Series]]) -> Table:
    table = Table("ratio: median (middle half)")
    told = {writers: spreads(series) for writers, series in cases.items()}
    for writers in cases:
        table.add_column(f"{writers} at once", justify="right")
    for ratio in RATIOS:
        row = [found.get(ratio.key) for found in told.values()]
        if any(row):
            table.add_row(ratio.title, *("" if one is None else str(one) for one in row))
    return table


def _peaks(comparison: Comparison) -> Table:
    present = {key for _, key in comparison.peaks}
    keys = [key for key in TITLES if key in present]
    table = Table(
        "operation", title=f"peak memory at {comparison.peak_writers} at once, MiB over idle"
    )
    for key in keys:
        table.add_column(TITLES[key], justify="right")
    for operation in dict.fromkeys(operation for operation, _ in comparison.peaks):
        row = [comparison.peaks.get((operation, key)) for key in keys]
        cells = ["" if kib is None else shown(kib / 1024) for kib in row]
        table.add_row(_titled(operation), *cells)
    return table


def _targets(results: Results) -> Table:
    table = Table("target", "median", "met")
    for target, value in judged(results):
        verdict = "yes" if target.met_by(value) else "[red]no[/red]"
        table.add_row(str(target), f"{value:.2f}", verdict)
    return table
