"""Motor's own classes, whose futures end by the deadline that they were made under.

What Motor does on its threads obeys a deadline from then on that it has one. There are few of them
for the whole process: behind others that wait for a server it would wait as long as they do.
"""

import asyncio
import sys
from asyncio import get_event_loop
from functools import partial
from typing import TYPE_CHECKING, Any

from motor import core
from motor.frameworks import asyncio as motors
from motor.frameworks.asyncio import (  # what classes of Motor's are made with
    CLASS_PREFIX,
    add_future,
    call_soon,
    chain_future,
    chain_return_value,
    check_event_loop,
    get_future,
    is_event_loop,
    is_future,
    platform_info,
    pymongo_class_wrapper,
)
from motor.metaprogramming import create_class_with_framework

from aioretry.deadlines import detached, nearest
from aioretry.errors import DeadlineExceeded

__all__ = [
    "CLASS_PREFIX",
    "AsyncIOMotorClient",
    "AsyncIOMotorCollection",
    "AsyncIOMotorDatabase",
    "add_future",
    "call_soon",
    "chain_future",
    "chain_return_value",
    "check_event_loop",
    "get_event_loop",
    "get_future",
    "is_event_loop",
    "is_future",
    "platform_info",
    "pymongo_class_wrapper",
    "run_on_executor",
]

# What ends by its thread in time has an error that says more.
_GRACE = 0.2


def run_on_executor(
    loop: asyncio.AbstractEventLoop, function: Any, *args: Any, **kwargs: Any
) -> "asyncio.Future[Any]":
    """Call a function on a thread of Motor's, and end by the deadline.

    Returns:
        What it returns or raises; or ``DeadlineExceeded``, whatever becomes of it.
    """
    run: Any = motors.run_on_executor
    carried: asyncio.Future[Any] = run(loop, function, *args, **kwargs)
    limit = nearest()
    if limit is None or not limit.is_limited:
        return carried
    given: asyncio.Future[Any] = loop.create_future()
    timer = detached(loop.call_later, limit.remaining() + _GRACE, _expire, given)
    given.add_done_callback(partial(_end, carried, timer))
    carried.add_done_callback(partial(_pass_on, given))
    return given


def _expire(given: "asyncio.Future[Any]") -> None:
    if not given.done():
        late = DeadlineExceeded("the deadline is over, and a thread waits for the server still")
        late.__cause__ = asyncio.CancelledError()
        given.set_exception(late)


def _end(carried: "asyncio.Future[Any]", timer: asyncio.TimerHandle, _: object) -> None:
    timer.cancel()
    carried.cancel()  # unless it is done, or a thread has it


def _pass_on(given: "asyncio.Future[Any]", carried: "asyncio.Future[Any]") -> None:
    error = None if carried.cancelled() else carried.exception()
    if given.done():
        return
    if carried.cancelled():
        given.cancel()
    elif error is not None:
        given.set_exception(error)
    else:
        given.set_result(carried.result())


if TYPE_CHECKING:
    from motor.motor_asyncio import (
        AsyncIOMotorClient,
        AsyncIOMotorCollection,
        AsyncIOMotorDatabase,
    )
else:
    _MODULE = "motor.motor_asyncio"

    def _ending_in_time(agnostic: Any) -> Any:
        """Return one of Motor's classes, made with this module, as a class below Motor's own."""
        made = create_class_with_framework(agnostic, sys.modules[__name__], _MODULE)
        made.__bases__ = (create_class_with_framework(agnostic, motors, _MODULE),)
        return made

    AsyncIOMotorClient = _ending_in_time(core.AgnosticClient)
    AsyncIOMotorDatabase = _ending_in_time(core.AgnosticDatabase)
    AsyncIOMotorCollection = _ending_in_time(core.AgnosticCollection)
    for _cursor in (
        core.AgnosticCursor,
        core.AgnosticCommandCursor,
        core.AgnosticLatentCommandCursor,
        core.AgnosticRawBatchCursor,
        core.AgnosticRawBatchCommandCursor,
        core.AgnosticChangeStream,
    ):
        _ending_in_time(_cursor)
