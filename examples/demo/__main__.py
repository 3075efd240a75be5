"""The demo's command line: ``python -m examples.demo``."""

import argparse
import math
import sys
from collections.abc import Sequence
from typing import NoReturn

from examples.demo.complaint import complain
from examples.demo.plan import LEAST_SECONDS, MOST_WRITERS, Plan

_EPILOG = """\
The exit code is 0 if every word of aioretry was true, 1 if it lost or doubled a write or said
something untrue of one, 2 if the demo could not run, and 130 if it was interrupted."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(complain(message, f"see `{self.prog} --help`"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        argv: The arguments; by default the process's own.

    Returns:
        The exit code.
    """
    arguments = _parser().parse_args(argv)
    try:
        from examples.demo import command  # noqa: PLC0415  # rich may not be installed
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "rich":
            raise
        return complain("the demo needs rich", "pip install rich")
    plan = Plan(arguments.seconds, arguments.writers, arguments.client)
    return command.run(plan, arguments.uri, as_json=arguments.json)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m examples.demo",
        description="Count events in five ways at once on a real replica set of three, while its "
        "primaries are killed, frozen and deposed, and compare what the writers were told with "
        "what the database counted.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=90.0,
        help=f"how long it takes in all, {LEAST_SECONDS:g} or more (default: 90)",
    )
    parser.add_argument(
        "--writers",
        type=_writers,
        default=10,
        help=f"concurrent tasks of each strategy, 1 to {MOST_WRITERS} (default: 10)",
    )
    parser.add_argument(
        "--client",
        choices=("motor", "asyncio"),
        default="motor",
        help="what writes: RetryClient beside plain Motor, or AsyncRetryClient beside PyMongo's "
        "plain AsyncMongoClient (default: motor)",
    )
    parser.add_argument(
        "--uri",
        help="an existing set to write to, in a database of the demo's own; nothing is done to the "
        "set, so most faults are left out",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="write the result to standard output as JSON, and progress to standard error",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not LEAST_SECONDS <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be {LEAST_SECONDS:g} or more, not {text!r}")
    return seconds


def _writers(text: str) -> int:
    try:
        writers = int(text)
    except ValueError:
        writers = 0
    if not 1 <= writers <= MOST_WRITERS:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MOST_WRITERS}, not {text!r}")
    return writers


if __name__ == "__main__":
    sys.exit(main())
