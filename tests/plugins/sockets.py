"""A warning of a socket that nobody closed says which test connected it, and where.

It comes when the garbage collector finds the socket, in whatever test runs by then.
"""

import os
import socket
import sys
import traceback
from typing import Any

import pytest

_INNERMOST = 12

_connected: dict[int, tuple[str | None, traceback.StackSummary]] = {}
"""The last connect of each file descriptor."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        frames = []
        frame = sys._getframe(1)
        while frame is not None and len(frames) < _INNERMOST:
            frames.append((frame, frame.f_lineno))
            frame = frame.f_back
        stack = traceback.StackSummary.extract(reversed(frames), lookup_lines=False)
        _connected[arguments[0].fileno()] = os.environ.get("PYTEST_CURRENT_TEST"), stack


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Note connects, and add them to what pytest is told."""
    sys.addaudithook(_note)
    tell = sys.unraisablehook

    def tell_more(unraisable: Any) -> None:
        left = unraisable.object
        if isinstance(left, socket.socket) and left.fileno() in _connected:
            test, stack = _connected[left.fileno()]
            where = "".join(stack.format())
            unraisable.exc_value.add_note(f"It was connected in {test}, at\n{where}")
        tell(unraisable)

    sys.unraisablehook = tell_more
