"""The command line: ``python -m aioretry stream run|rebuild|status module:aggregator``."""

import argparse
import asyncio
import contextlib
import importlib
import inspect
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from pymongo.errors import PyMongoError

from aioretry.streams._aggregator import Aggregator
from aioretry.streams._errors import LeaseLostError, RebuildNeededError, StreamError
from aioretry.streams._rebuilding import Progress
from aioretry.streams._status import PartStatus

FAILED: Final = 1
NEEDS_REBUILD: Final = 3
INTERRUPTED: Final = 130

_EPILOG = """\
TARGET names an aioretry.streams.Aggregator, or a function without arguments that returns one. It is
imported from the current folder, or from wherever Python finds it. The exit code is 0 when it is
done, 1 after an error, 3 if only a rebuild helps, and 130 if it was interrupted."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``stream``.

    Args:
        commands: Where to.
    """
    parser = commands.add_parser(
        "stream",
        help="keep aggregates up to date with a collection, each change counted once",
        description="Keep aggregates up to date with a collection, each change counted once.",
        epilog=_EPILOG,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    run = verbs.add_parser("run", help="follow the source until interrupted", epilog=_EPILOG)
    run.add_argument("--part", type=int, default=0, help="which part, from 0 (default: 0)")
    run.add_argument("--until-caught-up", action="store_true", help="end when there is no more")
    run.add_argument(
        "--rebuild", action="store_true", help="rebuild whenever nothing else helps, and go on"
    )
    run.set_defaults(run=_command(_run))
    rebuild = verbs.add_parser("rebuild", help="count everything anew", epilog=_EPILOG)
    rebuild.set_defaults(run=_command(_rebuild))
    status = verbs.add_parser("status", help="who does what, and the lag", epilog=_EPILOG)
    status.set_defaults(run=_command(_status))
    for verb in (run, rebuild, status):
        verb.add_argument("target", metavar="TARGET", help="module:name")


Verb = Callable[[Aggregator, argparse.Namespace], Awaitable[None]]


def _command(verb: Verb) -> Callable[[argparse.Namespace], int]:
    def command(arguments: argparse.Namespace) -> int:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        try:
            return asyncio.run(_with_aggregator(verb, arguments))
        except KeyboardInterrupt:
            return INTERRUPTED

    return command


async def _with_aggregator(verb: Verb, arguments: argparse.Namespace) -> int:
    aggregator = await _load(arguments.target)
    async with aggregator.client:
        task = asyncio.ensure_future(verb(aggregator, arguments))
        with contextlib.suppress(NotImplementedError):  # on Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return INTERRUPTED
        except RebuildNeededError as exc:
            return _complain(exc, NEEDS_REBUILD)
        except (StreamError, PyMongoError) as exc:
            return _complain(exc, FAILED)
    return 0


async def _load(target: str) -> Aggregator:
    module, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise SystemExit(f"{target} can't be imported: {exc}") from exc
    if not isinstance(found, Aggregator) and callable(found):
        found = found()
        if inspect.isawaitable(found):
            found = await found
    if not isinstance(found, Aggregator):
        raise SystemExit(f"{target} is no aioretry.streams.Aggregator")
    return found


async def _run(aggregator: Aggregator, arguments: argparse.Namespace) -> None:
    while True:
        try:
            return await aggregator.run(arguments.part, until_caught_up=arguments.until_caught_up)
        except RebuildNeededError as exc:
            if not arguments.rebuild:
                raise
            _say(str(exc))
        try:
            await aggregator.rebuild(_show)
        except LeaseLostError as exc:
            _say(str(exc))


async def _rebuild(aggregator: Aggregator, arguments: argparse.Namespace) -> None:
    del arguments
    progress = await aggregator.rebuild(_show)
    _say(f"rebuilt in {progress.seconds:.1f} s")


async def _status(aggregator: Aggregator, arguments: argparse.Namespace) -> None:
    del arguments
    for part in (await aggregator.status()).parts:
        sys.stdout.write(f"{aggregator.name}, part {part.part}: {_described(part)}\n")


def _described(part: PartStatus) -> str:
    if part.owner is None or part.kind is None:
        told = "nobody holds the lease"
    else:
        what = f"{part.owner} holds lease {part.fence} ({part.kind.value})"
        told = f"{what} for {part.seconds_left:.1f} s more"
    if part.lag is None:
        return f"{told}; {part.problem}"
    more = "" if part.lag.is_all else " or more"
    lag = f"behind by {part.lag.changes}{more} changes, {part.lag.seconds:.0f} s"
    return f"{told}; {part.changes} changes since the rebuild; {lag}"


def _show(progress: Progress) -> None:
    _say(
        f"{progress.documents} of about {progress.expected} documents, "
        f"{progress.buckets} buckets written, {progress.seconds:.1f} s"
    )


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _complain(exc: Exception, code: int) -> int:
    _say(f"{type(exc).__name__}: {exc}")
    return code
