"""What commands share: how they run, what they name (``module:name``), and how they complain."""

import argparse
import asyncio
import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

from pymongo.errors import PyMongoError, ServerSelectionTimeoutError

T = TypeVar("T")

FAILED: Final = 1
"""The exit code after an error of the database."""

USAGE: Final = 2
"""The exit code if the command can't do what it was asked."""

INTERRUPTED: Final = 130
"""The exit code after Ctrl+C."""

ASK_THE_DOCTOR: Final = (
    "check that the servers run, and the hosts, TLS and login of the connection string: "
    "`python -m aioretry doctor URI` says more"
)

# Whatever is between two pieces of a connection string with spaces in it is a piece of it, too.
_QUOTED: Final = re.compile(r"\S*(?:://|@)(?:.*(?:://|@))?\S*", re.DOTALL)
# What the driver, and this library, add of its settings and of the topology hides what is wrong.
_DETAILS: Final = re.compile(r" \(configured |, Timeout: |\. Topology: ")
_SERVER: Final = re.compile(r"ServerDescription \('([^']+)', (\d+)\)")


class TargetError(Exception):
    """What a command names can't be used; the message says what to do."""


def complain(what: str, advice: str, code: int = USAGE) -> int:
    """Say in one line what is wrong and what to do: each error of the command line is told here.

    Args:
        what: What is wrong.
        advice: What to do; empty if what is wrong says it.
        code: The exit code.

    Returns:
        The exit code.
    """
    text = f"{what}; {advice}" if advice else what
    sys.stderr.write(" ".join(text.split()) + "\n")
    return code


def hidden(text: str) -> str:
    """Return a text without what may be a connection string with credentials."""
    return _QUOTED.sub("***", text)


def reason(exc: PyMongoError) -> str:
    """Return what an error says, without the driver's settings and the topology."""
    return _DETAILS.split(str(exc), maxsplit=1)[0]


def runs(
    verb: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
) -> Callable[[argparse.Namespace], int]:
    """Return what runs an async command, with a log, and returns its exit code."""

    def command(arguments: argparse.Namespace) -> int:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        try:
            return asyncio.run(verb(arguments))
        except KeyboardInterrupt:
            return INTERRUPTED
        except TargetError as exc:
            return complain(str(exc), "")
        except PyMongoError as exc:
            return complain(
                f"{type(exc).__name__}: {reason(exc)}{_asked(exc)}", ASK_THE_DOCTOR, FAILED
            )

    return command


async def load(target: str, wanted: type[T]) -> T:
    """Import what is named; if it is a function, also an async one, return what that returns.

    Args:
        target: ``module:name``, imported from the current folder, or from wherever Python finds it.
        wanted: The class that it is to be of.

    Raises:
        TargetError: It can't be imported or called, or is of another class.
    """
    module, _, name = target.partition(":")
    public = ".".join(part for part in wanted.__module__.split(".") if not part.startswith("_"))
    advice = f"name an {public}.{wanted.__name__}, or a function without arguments that returns one"
    if not module or not name:
        raise TargetError(f"{target} is not of the form MODULE:NAME; {advice}, as MODULE:NAME")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as exc:
        where = "check both names, and start the command in the module's folder or set PYTHONPATH"
        raise TargetError(f"{target} can't be imported: {_told(exc)}; {where}") from exc
    if not isinstance(found, wanted) and callable(found):
        try:
            found = found()
            if inspect.isawaitable(found):
                found = await found
        except Exception as exc:
            raise TargetError(f"{target}() fails: {_told(exc)}; {advice}") from exc
    if not isinstance(found, wanted):
        raise TargetError(f"{target} is no {public}.{wanted.__name__}; {advice}")
    return found


def _asked(exc: PyMongoError) -> str:
    """Return which servers were asked, if none of them could be used."""
    if not isinstance(exc, ServerSelectionTimeoutError):
        return ""
    servers = ", ".join(f"{host}:{port}" for host, port in _SERVER.findall(str(exc)))
    return f" (asked: {servers})" if servers else ""


def _told(exc: Exception) -> str:
    """Return an error, and the line that it comes from unless that is one of these commands."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    path = __file__ if trace is None else trace.tb_frame.f_code.co_filename
    is_ours = path == __file__ or path.startswith("<")
    line = "" if trace is None or is_ours else f" ({path}, line {trace.tb_lineno})"
    return f"{type(exc).__name__}: {hidden(str(exc))}{line}"
