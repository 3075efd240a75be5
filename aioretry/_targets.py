"""Commands about what they name: ``module:name``."""

import argparse
import asyncio
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

INTERRUPTED: Final = 130
"""The exit code after Ctrl+C."""


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

    return command


async def load(target: str, wanted: type[T]) -> T:
    """Import what is named; if it is a function, also an async one, return what that returns.

    Args:
        target: ``module:name``, imported from the current folder, or from wherever Python finds it.
        wanted: The class that it is to be of.

    Raises:
        SystemExit: It can't be imported, or is of another class.
    """
    module, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise SystemExit(f"{target} can't be imported: {exc}") from exc
    if not isinstance(found, wanted) and callable(found):
        found = found()
        if inspect.isawaitable(found):
            found = await found
    if not isinstance(found, wanted):
        public = ".".join(part for part in wanted.__module__.split(".") if not part.startswith("_"))
        raise SystemExit(f"{target} is no {public}.{wanted.__name__}")
    return found
