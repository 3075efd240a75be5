"""The command line: ``python -m aioretry outbox run|status|dead|retry|discard module:relay``."""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Final

from bson.objectid import ObjectId

from aioretry import ClientDraining, drain
from aioretry._cli import FAILED, complain, load, runs
from aioretry.outbox._outbox import Outbox
from aioretry.outbox._relay import Relay

DONE: Final = 0

_EPILOG = """\
TARGET names an aioretry.outbox.Relay, or a function without arguments that returns one. It is
imported from the current folder, or from wherever Python finds it. SIGTERM ends `run` when what is
being delivered has ended. The exit code is 0 when it is done, 1 after an error, and if there is no
such entry; 2 if the arguments are wrong; and 130 if it was interrupted."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``outbox``.

    Args:
        commands: Where to.
    """
    told = "hand on the entries of an outbox, or look after those that were given up"
    parser = commands.add_parser("outbox", help=told, description=f"{told}.".capitalize())
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, verb: Verb, told: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=told, description=f"{told}.", epilog=_EPILOG)
        made.set_defaults(run=_command(verb))
        made.add_argument("target", metavar="TARGET", help="module:name")
        return made

    run = verb("run", _run, "hand entries on until it is ended")
    run.add_argument(
        "--grace",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="how long SIGTERM waits for what is being delivered (default: 20)",
    )
    verb("status", _status, "how many entries wait, and for how long")
    verb("dead", _dead, "the entries that were given up, and why: a line of JSON each")
    for name, told in (("retry", "hand on again"), ("discard", "remove")):
        one = verb(name, _change, f"{told} an entry that was given up")
        one.add_argument("entry", metavar="ENTRY", type=_entry, help="its id")
        one.set_defaults(change=getattr(Outbox, name))


Verb = Callable[[Relay, argparse.Namespace], Awaitable[int]]


def _command(verb: Verb) -> Callable[[argparse.Namespace], int]:
    return runs(partial(_with_relay, verb))


async def _with_relay(verb: Verb, arguments: argparse.Namespace) -> int:
    relay = await load(arguments.target, Relay)
    async with relay.outbox.client:
        return await verb(relay, arguments)


async def _run(relay: Relay, arguments: argparse.Namespace) -> int:
    asked = asyncio.Event()
    with contextlib.suppress(NotImplementedError):  # on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    running = asyncio.ensure_future(relay.run())
    asking = asyncio.ensure_future(asked.wait())
    await asyncio.wait({running, asking}, return_when=asyncio.FIRST_COMPLETED)
    asking.cancel()
    if not running.done():
        await drain(relay.outbox.client, arguments.grace)
        running.cancel()
    with contextlib.suppress(ClientDraining, asyncio.CancelledError):
        await running
    return DONE


async def _status(relay: Relay, _: argparse.Namespace) -> int:
    sys.stdout.write(json.dumps(asdict(await relay.outbox.status())) + "\n")
    return DONE


async def _dead(relay: Relay, _: argparse.Namespace) -> int:
    for entry in await relay.outbox.dead():
        told = {**asdict(entry), "added": entry.added.isoformat()}
        del told["payload"], told["fence"]
        sys.stdout.write(json.dumps(told) + "\n")
    return DONE


async def _change(relay: Relay, arguments: argparse.Namespace) -> int:
    if await arguments.change(relay.outbox, arguments.entry):
        return DONE
    return complain(f"no entry {arguments.entry} was given up", "`dead` says which were", FAILED)


def _entry(text: str) -> str:
    if not ObjectId.is_valid(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no id; `dead` says those of the entries")
    return text
