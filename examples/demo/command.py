"""The command itself: a run, what is seen of it, its report and its exit code."""

import asyncio
import os
import sys
from typing import Final

from pymongo.errors import PyMongoError
from rich.console import Console

from aioretry.testing import (
    Mongod,
    MongodNotFoundError,
    MongodStartError,
    NoPrimaryError,
    find_mongod,
)
from examples.demo.complaint import complain
from examples.demo.counting import exit_code
from examples.demo.database import DatabaseInUseError
from examples.demo.display import WIDTH, show
from examples.demo.plan import Plan
from examples.demo.report import as_data, print_report
from examples.demo.run import Result
from examples.demo.run import run as run_once
from examples.demo.state import State

_THREADS: Final = "MOTOR_MAX_WORKERS"
_INTERRUPTED: Final = 130


def run(plan: Plan, uri: str | None, *, as_json: bool) -> int:
    """Run the demo and report.

    Args:
        plan: Its figures.
        uri: An existing set; None for a set of our own.
        as_json: Whether standard output is for JSON alone.

    Returns:
        The exit code.
    """
    _get_enough_threads(plan)
    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    state = State(plan)
    try:
        where = uri or find_mongod()  # which may have to fetch it first, and says so
        state = State(plan)
        result = asyncio.run(_watch(state, where, console))
    except KeyboardInterrupt:
        console.print(f"interrupted after {state.elapsed:.1f} s; nothing is left behind")
        return _INTERRUPTED
    except (MongodNotFoundError, MongodStartError, NoPrimaryError, DatabaseInUseError) as exc:
        return complain(str(exc))
    except PyMongoError as exc:
        what, _, _ = str(exc).partition(", Timeout: ")
        return complain(
            f"the set can't be used: {what}", "`python -m aioretry doctor URI` says more"
        )
    except ExceptionGroup as group:  # out of a phase
        if group.split((MongodStartError, NoPrimaryError))[1] is not None:
            raise
        return complain(str(group.exceptions[0]), "start the demo again")
    if as_json:
        Console(soft_wrap=True).print_json(data=as_data(state, result))
    else:
        print_report(console, state, result)
    return exit_code(line.tally for line in result.lines if line.strategy.is_ours)


async def _watch(state: State, where: str | Mongod, console: Console) -> Result:
    async with show(state, console):
        return await run_once(state, where)


def _get_enough_threads(plan: Plan) -> None:
    """Start this command again with a thread of Motor's for each of its writers.

    Motor has one pool of threads for the whole process and reads its size when it is imported.
    With too few, a strategy that waits would hold up the other ones, and spoil their figures.
    """
    if _THREADS not in os.environ and _is_main():
        enough = {**os.environ, _THREADS: str(5 * plan.writers)}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], enough)  # noqa: S606


def _is_main() -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "examples.demo.__main__"
