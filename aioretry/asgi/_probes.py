"""What an orchestrator asks."""

from collections.abc import Callable

from aioretry._faces import Client
from aioretry._web.serving import LIVE, READY, Probes
from aioretry.asgi._connection import (
    ASGIApp,
    Receive,
    Response,
    Scope,
    Send,
    path_in_application,
)
from aioretry.asgi._lifespan import client_of


class ProbesMiddleware:
    """Answers what an orchestrator asks: is this process alive, and should it get requests?

    By GET and HEAD, with 200 or 503, and a JSON body that says why; without asking a server. Put it
    around everything that asks for credentials.

    Args:
        app: The application.
        live: The path for :func:`~aioretry.liveness`.
        ready: The path for :func:`~aioretry.readiness`.
        grace: For how many seconds it is ready that has lost its primary; infinity is for ever.
        client: Gives the client of a scope, or None; else it is that of :func:`mongodb_lifespan`.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A path does not begin with a slash, both are the same, or ``grace`` is not above
            0.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        live: str = LIVE,
        ready: str = READY,
        grace: float = 30.0,
        client: Callable[[Scope], Client | None] = client_of,
    ) -> None:
        if not callable(client):
            raise TypeError(f"client must be a callable, not {client!r}")
        self._app = app
        self._probes = Probes(live, ready, grace)
        self._client_of = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        path = path_in_application(scope) if scope["type"] == "http" else ""
        if path not in self._probes.paths or scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return
        status, body = self._probes.answer(path, self._client_of(scope))
        headers = ((name.lower().encode(), v.encode()) for name, v in Probes.HEADERS.items())
        await Response(status, tuple(headers), body)(scope, receive, send)
