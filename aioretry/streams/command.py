"""The command line: ``python -m aioretry stream run|rebuild|status module:aggregator``."""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from bson import json_util

from aioretry._cli import FAILED, INTERRUPTED, complain, load, runs
from aioretry.streams._aggregator import Aggregator
from aioretry.streams._errors import (
    LeaseLostError,
    MismatchError,
    RebuildNeededError,
    StreamError,
)
from aioretry.streams._leases import LeaseKind
from aioretry.streams._rebuilding import OnProgress, Progress
from aioretry.streams._status import PartStatus

DONE: Final = 0
NEEDS_REBUILD: Final = 3
_PAUSE = 1.0  # seconds between two lines of progress, at least

_EPILOG = """\
TARGET names an aioretry.streams.Aggregator, or a function without arguments that returns one. It is
imported from the current folder, or from wherever Python finds it. The exit code is 0 when it is
done, and when SIGTERM has ended `run`; 1 after an error; 2 if the arguments are wrong; 3 if only a
rebuild helps, which `status` says of any part; and 130 if it was interrupted."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``stream``."""
    parser = commands.add_parser(
        "stream",
        help="keep aggregates up to date with a collection, each change counted once",
        description="Keep aggregates up to date with a collection, each change counted once.",
        epilog=_EPILOG,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    run = verbs.add_parser("run", help="follow the source until it is ended", epilog=_EPILOG)
    run.add_argument("--part", type=int, default=0, help="which part, from 0 (default: 0)")
    run.add_argument("--until-caught-up", action="store_true", help="end when there is no more")
    run.add_argument(
        "--rebuild",
        action="store_true",
        help="rebuild whenever nothing else helps, and go on; but not what another aggregator, "
        "version or number of parts has made",
    )
    run.set_defaults(run=_command(_run), when_asked=DONE)
    rebuild = verbs.add_parser("rebuild", help="count everything anew", epilog=_EPILOG)
    rebuild.set_defaults(run=_command(_rebuild), when_asked=INTERRUPTED)
    status = verbs.add_parser("status", help="who does what, and the lag", epilog=_EPILOG)
    status.add_argument("--json", action="store_true", help="say it as one line of JSON")
    status.set_defaults(run=_command(_status), when_asked=INTERRUPTED)
    for verb in (run, rebuild, status):
        verb.add_argument("target", metavar="TARGET", help="module:name")


Verb = Callable[[Aggregator, argparse.Namespace], Awaitable[int]]


def _command(verb: Verb) -> Callable[[argparse.Namespace], int]:
    return runs(partial(_with_aggregator, verb))


async def _with_aggregator(verb: Verb, arguments: argparse.Namespace) -> int:
    aggregator = await load(arguments.target, Aggregator)
    was_asked = False

    def ask() -> None:
        nonlocal was_asked
        was_asked = True
        task.cancel()

    async with aggregator.client:
        task = asyncio.ensure_future(verb(aggregator, arguments))
        with contextlib.suppress(NotImplementedError):  # on Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ask)
        try:
            return await task
        except asyncio.CancelledError:
            return int(arguments.when_asked) if was_asked else INTERRUPTED
        except RebuildNeededError as exc:
            return complain(_named(exc), "", NEEDS_REBUILD)
        except StreamError as exc:
            return complain(_named(exc), "", FAILED)


async def _run(aggregator: Aggregator, arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.part < aggregator.parts:
        return complain(f"--part is one of 0 to {aggregator.parts - 1}, not {arguments.part}", "")
    while True:
        try:
            await aggregator.run(arguments.part, until_caught_up=arguments.until_caught_up)
        except MismatchError:
            raise  # perhaps somebody follows these aggregates as they are
        except RebuildNeededError as exc:
            if not arguments.rebuild:
                raise
            await _rebuild_after(aggregator, exc)
        else:
            return DONE


async def _rebuild_after(aggregator: Aggregator, error: RebuildNeededError) -> None:
    _say(str(error))
    try:
        progress = await aggregator.rebuild_after(error, _shown())
    except LeaseLostError as exc:
        _say(str(exc))
        return
    _say("somebody else has rebuilt it" if progress is None else _told(progress))


async def _rebuild(aggregator: Aggregator, arguments: argparse.Namespace) -> int:
    del arguments
    _say(_told(await aggregator.rebuild(_shown())))
    return DONE


async def _status(aggregator: Aggregator, arguments: argparse.Namespace) -> int:
    status = await aggregator.status()
    if arguments.json:
        sys.stdout.write(json.dumps(asdict(status), default=_plain) + "\n")
    else:
        for part in status.parts:
            sys.stdout.write(f"{aggregator.name}, part {part.part}: {_described(part)}\n")
    return DONE if all(part.problem is None for part in status.parts) else NEEDS_REBUILD


def _plain(value: object) -> Any:
    return value.value if isinstance(value, LeaseKind) else json_util.default(value)


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


def _shown() -> OnProgress:
    """Return what says now and then how far a rebuild is."""
    said = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= _PAUSE:
            said = time.monotonic()
            _say(_told(progress))

    return show


def _told(progress: Progress) -> str:
    return (
        f"{progress.documents} of about {progress.expected} documents, "
        f"{progress.buckets} buckets written, {progress.seconds:.1f} s"
    )


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _named(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"
