"""What failovers cost: aioretry beside Motor and PyMongo's AsyncMongoClient.

Each client runs in a process and on a replica set of its own, one after the other. The exit code
is 1 if the writes of aioretry are not exact: one was lost, or doubled, or its outcome is not true,
or not known in the end, or something was sent or kept that must not be.
"""

import argparse
import asyncio
import json
import logging
import subprocess
import sys

from rich.console import Console
from rich.table import Column, Table

from aioretry.testing import ReplicaSet
from tests.benchmarks.failovers import cancel, freeze, kinds, outage, rolling
from tests.benchmarks.failovers.clients import KINDS
from tests.benchmarks.failovers.measuring import Figures, label, shown

SCENARIOS = {
    "freeze": freeze.run,
    "kinds": kinds.run,
    "rolling": rolling.run,
    "cancel": cancel.run,
    "outage": outage.run,
}
ALONE = "tasks"  # as a client of `outage`: none, only the callers' tasks


async def measure(key: str, options: argparse.Namespace) -> Figures:
    """Run a scenario for one client, on a set of its own."""
    if key == ALONE:
        return await outage.run_alone(options)
    parameters = dict(pair.split("=", 1) for pair in options.parameter)
    async with ReplicaSet(
        version=options.server,
        parameters=parameters,
        election_timeout_ms=10_000 if options.production else 2_000,
        heartbeat_interval_ms=2_000 if options.production else 500,
    ) as servers:
        return await SCENARIOS[options.scenario](KINDS[key], servers, options)


def measure_apart(key: str, arguments: list[str]) -> Figures:
    """Run a scenario for one client in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.failovers", *arguments]
    child = subprocess.run(
        [*command, "--client", key, "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    if not child.stdout:
        return {"wrong": [f"ended with exit code {child.returncode}, and no figures"]}
    figures: Figures = json.loads(child.stdout)[key]
    return figures


def show(results: dict[str, Figures], title: str) -> None:
    """Print a table, and below it what is wrong."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    table = Table(Column(no_wrap=True), title=title)
    for key in results:
        table.add_column(KINDS[key].title if key in KINDS else "tasks alone", justify="right")
    names = dict.fromkeys(name for figures in results.values() for name in figures)
    for name in names:
        if name != "wrong":
            row = [figures.get(name, "") for figures in results.values()]
            table.add_row(label(name), *map(shown, row))
    console.print(table)
    for key, figures in results.items():
        for text in figures.get("wrong", []):  # type: ignore[attr-defined]
            console.print(f"{key}: {text}", style="red", markup=False)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--server", choices=["4.4", "5.0", "6.0"], default="6.0")
    common.add_argument("--client", choices=[*KINDS, ALONE, "all"], default="all")
    common.add_argument("--json", action="store_true")
    common.add_argument(
        "--parameter", action="append", default=[], metavar="NAME=VALUE", help="of the servers"
    )
    common.add_argument(
        "--production",
        action="store_true",
        help="elections as by MongoDB's defaults, after 10 seconds and not after 2",
    )
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.failovers", description=__doc__
    )
    scenarios = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")

    one = scenarios.add_parser("freeze", parents=[common], help=freeze.__doc__)
    _add_load(one, writers=50, timeout=30.0)
    one.add_argument("--how", choices=freeze.HOW, default="freeze")
    one.add_argument("--before", type=float, default=8.0, help="seconds of load before it")
    one.add_argument(
        "--hold", type=float, default=5.0, help="seconds that the new primary serves before the old"
    )
    one.add_argument("--after", type=float, default=5.0, help="seconds of load when it is back")

    one = scenarios.add_parser("kinds", parents=[common], help=kinds.__doc__)
    one.add_argument("--only", nargs="+", metavar="KIND", help="of calls; all by default")
    one.add_argument("--callers", type=int, default=6, help="of each kind")
    one.add_argument("--timeout", type=float, help="of each call, in seconds; none by default")
    one.add_argument("--who", choices=["primary", "secondary"], default="primary")
    one.add_argument("--how", choices=["freeze", "kill"], default="freeze")
    one.add_argument("--hold", type=float, default=35.0, help="seconds that it stays away")

    one = scenarios.add_parser("rolling", parents=[common], help=rolling.__doc__)
    _add_load(one, writers=50, timeout=60.0)
    one.add_argument("--rounds", type=int, default=2)

    one = scenarios.add_parser("cancel", parents=[common], help=cancel.__doc__)
    one.add_argument("--writes", type=int, default=1000)
    one.add_argument("--timeout", type=float, default=30.0, help="of each write, in seconds")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--no-elections", dest="elections", action="store_false")

    one = scenarios.add_parser("outage", parents=[common], help=outage.__doc__)
    _add_load(one, writers=10_000, timeout=60.0)
    one.add_argument("--seconds", type=float, default=20.0, help="how long the outage takes")
    one.add_argument("--how", choices=["kill", "freeze"], default="kill")
    one.add_argument("--clients", type=int, default=1, help="among which the writers are divided")
    one.add_argument("--tracemalloc", action="store_true", help="measure Python's objects too")
    return parser.parse_args(arguments)


def _add_load(parser: argparse.ArgumentParser, *, writers: int, timeout: float) -> None:
    parser.add_argument("--writers", type=int, default=writers)
    parser.add_argument("--timeout", type=float, default=timeout, help="of each write, in seconds")


def main() -> None:
    """Run a scenario."""
    arguments = sys.argv[1:]
    options = parse(arguments)
    logging.getLogger("aioretry").setLevel(logging.ERROR)  # else it reports every retry
    results: dict[str, Figures] = {}
    if options.client == "all":
        for key in [*KINDS, *([ALONE] if options.scenario == "outage" else [])]:
            sys.stderr.write(f"{options.scenario}, MongoDB {options.server}: {key} ...\n")
            results[key] = measure_apart(key, arguments)
    else:
        results[options.client] = asyncio.run(measure(options.client, options))
    if options.json:
        sys.stdout.write(json.dumps(results, indent=2, default=str) + "\n")
    else:
        show(results, f"{options.scenario}, MongoDB {options.server}")
    ours = [figures for key, figures in results.items() if key in KINDS and KINDS[key].is_ours]
    sys.exit(any(one.get("wrong") or one.get("exact", "yes") != "yes" for one in ours))


if __name__ == "__main__":
    main()
