"""Throughput, latency, CPU time and memory of writes, beside Motor and AsyncMongoClient.

Without a mode, it compares the clients and the floor: in one process, on one replica set, in
turns. With --costs, --instrumented, --storm, --memory or --soak it measures something else.
"""

import argparse
import asyncio
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks.throughput import (
    compare,
    costs,
    instrumented,
    memory,
    picture,
    report,
    soak,
    storm,
)
from tests.benchmarks.throughput.clients import TITLES
from tests.benchmarks.throughput.operations import OPERATIONS
from tests.clients import CHOSEN
from tests.clients import OURS as CLIENTS

_WIDTH = 140
_COMPARE, _COSTS, _STORM, _MEMORY, _SOAK = "compare", "costs", "storm", "memory", "soak"
_INSTRUMENTED = "instrumented"
_DEFAULTS: dict[str, dict[str, Any]] = {
    _COMPARE: {
        "rounds": 7,
        "seconds": 0.4,
        "writers": [1, 16, 50, 200, 1000],
        "w": ["1", "majority"],
    },
    _COSTS: {"rounds": 41, "seconds": 0.2, "writers": [50], "w": ["1"]},
    _INSTRUMENTED: {"rounds": 11, "seconds": 0.5, "writers": [50], "w": ["1"]},
    _STORM: {"rounds": 5, "seconds": 2.0, "writers": [50, 200], "w": ["1"]},
    _MEMORY: {"rounds": 7, "seconds": 0.0, "writers": [1], "w": ["1"]},
    _SOAK: {"rounds": 1, "seconds": 0.0, "writers": [200], "w": ["1"]},
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line; what it leaves open depends on the mode."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--costs", action="store_true", help="what is switched on costs")
    modes.add_argument(
        "--instrumented", action="store_true", help="under OpenTelemetry and Sentry, beside both"
    )
    modes.add_argument("--storm", action="store_true", help="one reply of ten is lost")
    modes.add_argument("--memory", action="store_true", help="an idle client's memory")
    modes.add_argument(
        "--soak", type=float, nargs="?", const=10.0, metavar="MINUTES", help="does anything grow"
    )
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--clients", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--client", choices=CLIENTS, help="which of aioretry's")
    parser.add_argument("--writers", type=int, nargs="+", metavar="N", help="how many at once")
    parser.add_argument("--w", nargs="+", metavar="W", help="write concerns")
    parser.add_argument("--rounds", type=int, help="that count; one more warms up")
    parser.add_argument("--seconds", type=float, help="for each client in a round")
    parser.add_argument("--members", type=int, default=3, help="of the replica set")
    parser.add_argument("--server", metavar="VERSION", default="6.0", help="as 6.0 or 4.4")
    parser.add_argument("--no-peaks", dest="peaks", action="store_false", help="no peak memory")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the comparison")
    parser.add_argument("--json", action="store_true", help="print data and no tables")
    options = parser.parse_args(arguments)
    options.mode = _mode(options)
    for name, value in _DEFAULTS[options.mode].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _mode(options: argparse.Namespace) -> str:
    chosen = (_COSTS, _INSTRUMENTED, _STORM, _MEMORY)
    name = next((name for name in chosen if getattr(options, name)), _COMPARE)
    return _SOAK if options.soak is not None else name


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stderr.write(text + "\n")


async def run(options: argparse.Namespace, console: Console) -> tuple[Any, int]:
    """Measure and print; return the data and the exit code."""
    match options.mode:
        case "costs":
            switched = await costs.measure_costs(options, say)
            costs.show(console, switched)
            return costs.data(switched), 0
        case "instrumented":
            watched = await instrumented.measure_watched(options, say)
            instrumented.show(console, watched)
            return instrumented.data(watched), 0
        case "storm":
            weather = await storm.measure_storm(options, say)
            storm.show(console, weather)
            return storm.data(weather), 0
        case "memory":
            idle = await memory.measure_idle(options, say)
            memory.show(console, idle)
            return memory.data(idle), 0
        case "soak":
            soaked = await soak.soak(options, say)
            soak.show(console, soaked)
            return soak.data(soaked), 0 if soaked.is_steady else 1
        case _:
            compared = await compare.compare(options, say)
            report.show(console, compared, options.members)
            if options.picture is not None:
                title = f"Writes, {options.members} member(s) of {options.server}"
                options.picture.write_text(picture.draw(compared.results, title), "utf-8")
            return report.data(compared), 0


def main() -> int:
    """Measure what the command line says."""
    options = parse(sys.argv[1:])
    if options.client is not None:
        os.environ[CHOSEN] = options.client
    warnings.filterwarnings("ignore", message=".*[Mm]otor.*", category=DeprecationWarning)
    console = Console(highlight=False, quiet=options.json)
    if not console.is_terminal:
        console.width = _WIDTH
    told, code = asyncio.run(run(options, console))
    if options.json:
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
