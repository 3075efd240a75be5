"""The deadline of a request."""

import asyncio
import math
from collections.abc import Collection

import anyio

from aioretry import deadline
from aioretry._web.problems import Problem, page_of, too_late
from aioretry._web.requests import TIMEOUT_HEADER, Parse, RequestLimits, seconds_of
from aioretry._web.serving import LIVE, READY, paths_of
from aioretry.asgi._connection import (
    DEADLINE,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    fields_of,
    name_of,
    path_in_application,
    problem_response,
)


class DeadlineMiddleware:
    """Sets a deadline for everything that is done for a request; reads and writes obey it.

    It buffers nothing, and lets websockets alone. What does not obey is cancelled some time after
    the deadline, if the response has not begun by then, and 504 is answered. A handler that is no
    ``async def`` runs on a thread, and is waited for. Streams and background tasks have what is
    left of the time.

    Args:
        app: The application.
        default: Seconds for a request that asks for nothing.
        maximum: The most that a request can ask for, in seconds; None is ``default``.
        header: The header field that a request asks by; one that can't be read is answered with
            400.
        parse: Gives the seconds of a field, more than 0, or raises ValueError.
        grace: How many seconds after the deadline a request without a response is cancelled.
        exempt: Paths that have no deadline, whatever a request asks for; those of the probes.
        documentation: The URL of a page that explains problems, for ``type`` and ``Link``.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is out of range, ``header`` is no name of a header field, a path does
            not begin with a slash, or ``documentation`` is no URL of a page.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        default: float,
        maximum: float | None = None,
        header: str = TIMEOUT_HEADER,
        parse: Parse = seconds_of,
        grace: float = 1.0,
        exempt: Collection[str] = (LIVE, READY),
        documentation: str | None = None,
    ) -> None:
        self._app = app
        self._limits = RequestLimits(default, maximum, header, parse, grace)
        self._exempt = paths_of(exempt)
        self._page = page_of(documentation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http" or path_in_application(scope) in self._exempt:
            await self._app(scope, receive, send)
            return
        seconds = self._limits.seconds(fields_of(scope, self._limits.header))
        if isinstance(seconds, Problem):
            await problem_response(seconds, self._page)(scope, receive, send)
            return
        cancelling = anyio.CancelScope(deadline=anyio.current_time() + seconds + self._limits.grace)
        has_begun = False
        cancelled: asyncio.CancelledError | None = None

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            cancelling.deadline = math.inf
            await send(message)

        with cancelling:
            try:
                async with deadline(seconds) as limit:
                    scope[DEADLINE] = limit
                    await self._app(scope, receive, send_on)
            except asyncio.CancelledError as exc:
                cancelled = exc
                raise
        if not cancelling.cancelled_caught:
            return
        problem = too_late(cancelled, name_of(scope), has_begun=has_begun)
        await problem_response(problem, self._page)(scope, receive, send)
