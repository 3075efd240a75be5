"""A test fails if an error reaches an event loop's exception handler.

What reaches ``threading.excepthook`` or ``sys.unraisablehook`` is made a warning by pytest, and
every warning is an error here; asyncio only logs.
"""

import asyncio
import gc
import traceback
from collections.abc import Generator
from typing import Any

import pytest

_SKIPPED = pytest.StashKey[bool]()

_met: list[str] = []
_log = asyncio.BaseEventLoop.default_exception_handler


def note(context: dict[str, Any]) -> None:
    """Keep what a loop tells its exception handler."""
    exc = context.get("exception")
    what = [f"{key}: {value!r}" for key, value in context.items() if key != "exception"]
    _met.append("\n".join([*what, *(traceback.format_exception(exc) if exc else [])]))


def _note_and_log(loop: asyncio.BaseEventLoop, context: dict[str, Any]) -> None:
    note(context)
    _log(loop, context)


@pytest.fixture
def unhandled() -> list[str]:
    """What reaches a loop's exception handler: who wants that looks at it, and empties the list."""
    return _met


def pytest_configure() -> None:
    """Watch the event loops of the standard library; uvloop's are made watched (conftest.py)."""
    asyncio.BaseEventLoop.default_exception_handler = _note_and_log


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test during which a loop met an error."""
    try:
        result = yield
    except pytest.skip.Exception:
        item.stash[_SKIPPED] = True  # on its way, and its tasks were left
        _met.clear()
        raise
    _check()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail it also if that was while its loop was closed."""
    result = yield
    if _SKIPPED in item.stash:
        gc.collect()  # those that nobody will await
        _met.clear()
    _check()
    return result


def _check() -> None:
    if _met:
        told = "\n\n".join(_met)
        _met.clear()
        pytest.fail(f"an event loop's exception handler was called:\n{told}", pytrace=False)
