"""Ten minutes of random faults under a mixed load, on aioretry and beside it on Motor."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_WIDTH = 110
_THREADS = "MOTOR_MAX_WORKERS"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each run")
    parser.add_argument("--seed", type=int, default=1, help="decides what is broken, and when")
    parser.add_argument("--server", metavar="VERSION", help="as 6.0 or 4.4")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds for each write")
    parser.add_argument("--writers", type=int, default=40)
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw what happened when")
    parser.add_argument("--client", choices=["motor", "asyncio"], default="motor")
    parser.add_argument("--isolate", action="store_true", help="part members from each other")
    parser.add_argument("--without-motor", action="store_true", help="run aioretry alone")
    return parser.parse_args(arguments)


def main() -> int:
    """Run, report, and say whether all was true."""
    given = parse(sys.argv[1:])
    # Motor reads it when it is imported; with fewer threads than writers it would stall itself.
    os.environ.setdefault(_THREADS, str(given.writers))
    from rich.console import Console

    from tests.chaos.clients import ASYNCIO, MOTOR, OURS
    from tests.chaos.picture import draw
    from tests.chaos.report import print_report
    from tests.chaos.run import Options, run

    logger = logging.getLogger("aioretry")  # tells of every retry
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    options = Options(
        given.seed,
        given.minutes * 60.0,
        given.members,
        given.server,
        given.timeout,
        given.writers,
        given.isolate,
    )
    results = []
    ours = {"motor": OURS, "asyncio": ASYNCIO}[given.client]
    for side in (ours,) if given.without_motor else (ours, MOTOR):
        console.rule(f"{side.name}, seed {options.seed}")
        results.append(
            asyncio.run(run(side, options, lambda text: console.print(text, markup=False)))
        )
    print_report(console, options, results)
    if given.picture is not None:
        given.picture.write_text(draw(results, options), encoding="utf-8")
    return 0 if results[0].is_true else 1


if __name__ == "__main__":
    sys.exit(main())
