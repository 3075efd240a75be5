"""A warning of a socket that nobody closed says which test opened it, and where.

It comes when the garbage collector finds the socket, in whatever test runs by then. PyMongo's own
asynchronous client leaves those that it was about to connect when it was cancelled, or closed:
there it says nothing, unless the client is ours, which closes them.
"""

import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

_INNERMOST = 16
_OURS = str(Path("_drivers", "pymongo_async", "pools.py"))

_opened: dict[int, tuple[str | None, traceback.StackSummary]] = {}
"""How the last socket came to be that had an id."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.__new__":
        frames = []
        frame = sys._getframe(1)
        while frame is not None and len(frames) < _INNERMOST:
            frames.append((frame, frame.f_lineno))
            frame = frame.f_back
        stack = traceback.StackSummary.extract(reversed(frames), lookup_lines=False)
        _opened[id(arguments[0])] = os.environ.get("PYTEST_CURRENT_TEST"), stack


def _is_pymongos(stack: traceback.StackSummary) -> bool:
    return any(frame.name == "_async_create_connection" for frame in stack) and not any(
        frame.filename.endswith(_OURS) for frame in stack
    )


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Note where sockets are opened, and add that to what pytest is told."""
    sys.addaudithook(_note)
    tell = sys.unraisablehook

    def tell_more(unraisable: Any) -> None:
        left = unraisable.object
        if isinstance(left, socket.socket) and id(left) in _opened:
            test, stack = _opened[id(left)]
            if _is_pymongos(stack):
                return
            where = "".join(stack.format())
            unraisable.exc_value.add_note(f"It was opened in {test}, at\n{where}")
        tell(unraisable)

    sys.unraisablehook = tell_more
