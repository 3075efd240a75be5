"""Runs the official tests, and our own, with every server and package that is supported."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.matrix.cells import Cell, cells, root
from tests.matrix.environments import python_of
from tests.matrix.results import Results, read_results

FOLDER = root() / ".matrix"


def main() -> int:
    """Run what is asked for; 0 if nothing failed."""
    known = cells()
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--list", action="store_true", help="say what can be run")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="one of these; may be given several times"
    )
    parser.add_argument("--spec", action="store_true", help="the specifications' tests alone")
    given = parser.parse_args()
    console = Console(width=110)
    if given.list:
        console.print("\n".join(cell.name for cell in known))
        return 0
    names = given.only or [cell.name for cell in known]
    unknown = set(names) - {cell.name for cell in known}
    if unknown:
        parser.error(f"--only: no run is called {', '.join(sorted(unknown))}; see --list")
    FOLDER.mkdir(exist_ok=True)
    ended = {
        cell.name: _run(cell, console, spec_only=given.spec) for cell in known if cell.name in names
    }
    for name, results in ended.items():
        console.print(_table(name, results))
    return 1 if any(results is None or results.failures for results in ended.values()) else 0


def _run(cell: Cell, console: Console, *, spec_only: bool) -> Results | None:
    """Run the tests once; None if they did not even begin."""
    python = python_of(cell, FOLDER)
    name = cell.name.replace(" ", "-").replace(",", "")
    report, log = FOLDER / f"{name}.xml", FOLDER / f"{name}.log"
    report.unlink(missing_ok=True)
    tests = ["tests/spec"] if spec_only and cell.marker is None else list(cell.tests)
    marker = [] if cell.marker is None else ["-m", cell.marker]
    command = [python, "-m", "pytest", "-q", f"--junitxml={report}", *marker, *tests]
    console.print(f"{cell.name}: {' '.join(tests)}, log: {log.relative_to(root())}")
    began = time.monotonic()
    with log.open("w") as output:
        code = subprocess.run(
            command,
            cwd=root(),
            env={**os.environ, **cell.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    console.print(f"{cell.name}: exit code {code} after {time.monotonic() - began:.0f} s")
    if code not in {0, 1} or not report.exists():
        console.print(_tail(log), markup=False)
        return None
    return read_results(report)


def _table(name: str, results: Results | None) -> Table | str:
    if results is None:
        return f"{name}: did not run"
    columns = ("tests", "all", "passed", "repeated", "failed", "skipped")
    table = Table(*columns, title=name, title_justify="left")
    for group, tally in sorted(results.groups.items()):
        counts = (tally.all, tally.passed, tally.repeated, tally.failed, tally.skipped)
        table.add_row(group, *map(str, counts))
    for reason, count in sorted(results.reasons.items()):
        table.add_row(f"  skipped: {reason}", "", "", "", "", str(count))
    for failure in results.failures:
        table.add_row(f"  failed: {failure}")
    return table


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


if __name__ == "__main__":
    sys.exit(main())
