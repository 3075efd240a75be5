"""A server asked over another connection, in a task."""

import asyncio
import time
from collections.abc import Callable

from pymongo.errors import ConnectionFailure

from aioretry import deadlines
from aioretry._drivers.engine.checkup import PATIENCE, is_the_same
from aioretry._drivers.port import ServerView
from aioretry._drivers.pymongo_async.calls import AsyncioCalls


class TaskAsker:
    """Asks in a task.

    Args:
        calls: The client.
    """

    def __init__(self, calls: AsyncioCalls) -> None:
        self._calls = calls

    def ask(self, view: ServerView, tell: Callable[[bool], None]) -> None:
        """Ask, and tell in a later turn of the event loop."""

        def end(task: asyncio.Task[bool]) -> None:
            tell(not task.cancelled() and task.exception() is None and task.result())

        self._calls.start(is_well(self._calls, view)).add_done_callback(end)


async def is_well(calls: AsyncioCalls, view: ServerView) -> bool:
    """Ask a server over another connection whether it is still the one that it was."""
    ends = time.monotonic() + PATIENCE
    while (seconds := ends - time.monotonic()) > 0:
        server = calls.topology().get_server_by_address(view.address)
        if server is None:
            return False
        is_open = False
        try:
            with deadlines.fresh_timeout(seconds):
                async with asyncio.timeout(seconds), server.pool.checkout() as connection:
                    is_open = True
                    hello = await connection.command(
                        "admin", connection.hello_cmd(), client=None, publish_events=False
                    )
        except ConnectionFailure:
            # Idle connections may have broken together; the next one is another, or new.
            if not is_open:
                return False
        except Exception:  # noqa: BLE001 - it does not matter what is wrong
            return False
        else:
            return is_the_same(hello, view)
    return False
