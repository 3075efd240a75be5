"""What ASGI says of a connection, and how one is answered."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from aioretry._web.keys import Kept
from aioretry._web.problems import MEDIA_TYPE, Problem
from aioretry._web.requests import has_body

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

DEADLINE = "aioretry.deadline"
"""Where a scope has the request's deadline."""


def fields_of(scope: Scope, name: str) -> list[str]:
    """Return the values of all header fields of a name."""
    wanted = name.lower().encode("latin-1")
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted]


def path_in_application(scope: Scope) -> str:
    """Return the path, without that of a mount."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def name_of(scope: Scope) -> str:
    """Return what logs call a request."""
    return f"{scope['method']} {scope['path']}"


class Response(Kept):
    """A whole response: an ASGI application that answers so, for a handler to return or to await.

    Attributes:
        status: The status code.
        headers: Names and values, as ASGI has them.
        body: All of it.
    """

    __slots__ = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        del scope, receive
        headers = self.headers
        names = {name.lower() for name, _ in headers}
        if has_body(self.status) and not names & {b"content-length", b"transfer-encoding"}:
            headers = (*headers, (b"content-length", str(len(self.body)).encode()))
        start = {"type": "http.response.start", "status": self.status, "headers": [*headers]}
        await send(start)
        await send({"type": "http.response.body", "body": self.body})


def problem_response(problem: Problem, page: str | None) -> Response:
    """Return what answers with problem details."""
    headers = {"Content-Type": MEDIA_TYPE, **problem.headers(page)}
    raw = tuple((name.lower().encode(), value.encode()) for name, value in headers.items())
    return Response(problem.status, raw, problem.body(page))
