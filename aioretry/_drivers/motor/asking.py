"""A server asked over another connection, on a thread."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from pymongo.errors import ConnectionFailure

from aioretry import deadlines
from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.checkup import PATIENCE, is_the_same
from aioretry._drivers.port import ServerView
from aioretry._drivers.threads import Job, ThreadPool

# Each asks one server at a time, and for a moment only.
_MOST_ASKING = 4


class ThreadAsker:
    """Asks on threads of its own: those of the attempts may all wait for answers, or for the user.

    Args:
        calls: The client.
        loop: The event loop.
    """

    def __init__(self, calls: ClientCalls, loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self._loop = loop
        self._threads = ThreadPool(_MOST_ASKING, "aioretry-checkup")

    def ask(self, view: ServerView, tell: Callable[[bool], None]) -> None:
        """Ask, and tell in a later turn of the event loop."""

        def ask() -> None:
            answer = is_well(self._calls, view)
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(tell, answer)

        self._threads.submit(Job(ask))

    def close(self) -> None:
        """End the threads."""
        self._threads.close()


def is_well(calls: ClientCalls, view: ServerView) -> bool:
    """Ask a server over another connection whether it is still the one that it was; this blocks."""
    ends = time.monotonic() + PATIENCE
    while (seconds := ends - time.monotonic()) > 0:
        server = calls.topology().get_server_by_address(view.address)
        if server is None:
            return False
        is_open = False
        try:
            with deadlines.fresh_timeout(seconds), server.pool.checkout() as connection:
                is_open = True
                hello = connection.command(
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
