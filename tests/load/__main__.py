"""Two minutes of orders for the shop of the examples, while primaries die, and for Motor's."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.load.report import print_report
from tests.load.run import (
    ASYNCIO,
    ASYNCIO_OUTBOX,
    ASYNCIO_WITHOUT,
    MOTOR,
    OURS,
    OUTBOX,
    WITHOUT,
    Options,
    run,
)

_WIDTH = 110
_OURS = {"motor": OURS, "asyncio": ASYNCIO}
_OUTBOXES = {"motor": (WITHOUT, OUTBOX), "asyncio": (ASYNCIO_WITHOUT, ASYNCIO_OUTBOX)}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each run")
    parser.add_argument("--connections", type=int, default=200, help="clients at once")
    parser.add_argument("--processes", type=int, default=2, help="of the service")
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds for each request")
    parser.add_argument("--grace", type=float, default=2.0, help="seconds more for its answer")
    parser.add_argument("--client", choices=_OURS, default="motor", help="which of aioretry's")
    parser.add_argument("--only", choices=["aioretry", "motor"], help="load one service alone")
    parser.add_argument("--outbox", action="store_true", help="load one without and with outbox")
    parser.add_argument("--without-freeze", action="store_true", help="only kill a primary")
    parser.add_argument("--server", metavar="VERSION", help="as 6.0 or 4.4")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the services' logs")
    return parser.parse_args(arguments)


def main() -> int:
    """Run, report, and say whether aioretry's service kept the rules."""
    given = parse(sys.argv[1:])
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            given.logs or Path(folder),
            given.seconds,
            given.connections,
            given.processes,
            given.deadline,
            given.grace,
            freezes=not given.without_freeze,
            server=given.server,
        )
        options.folder.mkdir(parents=True, exist_ok=True)
        ours, results = _OURS[given.client], []
        sides = {"aioretry": (ours,), "motor": (MOTOR,), None: (ours, MOTOR)}
        compared = _OUTBOXES[given.client] if given.outbox else sides[given.only]
        for side in compared:
            console.rule(side.name)
            results.append(
                asyncio.run(run(side, options, lambda text: console.print(text, markup=False)))
            )
    print_report(console, options, results)
    kept = (result.kept_the_rules for result in results if result.name != MOTOR.name)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
