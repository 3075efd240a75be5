"""aioretry in ASGI services of any framework: the client, deadlines, problems, probes, keys."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypedDict

import anyio
from pymongo.errors import PyMongoError

from aioretry import Deadline, deadline
from aioretry._faces import Client, Session
from aioretry._web.keys import Kept, KeyOfRequest, database_of
from aioretry._web.problems import (
    MEDIA_TYPE,
    Problem,
    ProblemError,
    log_problem,
    page_of,
    problem_of,
    too_late,
)
from aioretry._web.requests import (
    KEY_HEADER,
    TIMEOUT_HEADER,
    Parse,
    RequestLimits,
    has_body,
    joined,
    key_of,
    seconds_of,
)
from aioretry._web.serving import (
    DRAIN_TIMEOUT,
    LIVE,
    READY,
    STARTUP_TIMEOUT,
    Probes,
    Serving,
    paths_of,
)
from aioretry.idempotent import Keys

__all__ = [
    "CallerKey",
    "DeadlineMiddleware",
    "MongoState",
    "ProbesMiddleware",
    "ProblemError",
    "ProblemMiddleware",
    "Response",
    "idempotency_key",
    "mongodb_lifespan",
    "seconds_of",
]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_DEADLINE = "aioretry.deadline"


class MongoState(TypedDict):
    """What the lifespan adds to the state of each request."""

    mongodb: Any
    """The client, of the class that was asked for."""

    mongodb_keys: Keys | None


def mongodb_lifespan(
    uri: str,
    *,
    client: type[Client] | None = None,
    keys: Keys | None = None,
    startup_timeout: float | None = STARTUP_TIMEOUT,
    drain_timeout: float = DRAIN_TIMEOUT,
    **options: Any,
) -> Callable[[Any], AbstractAsyncContextManager[MongoState]]:
    """Return a lifespan: a client that is ready at the start, and drained and closed at the end.

    In a lifespan of your own: ``async with mongodb_lifespan(uri)(app) as state: yield {**state,
    ...}``.

    An application starts without a server, too, if none is found in time; that is logged, and
    ``/readyz`` tells of it. A server that refuses the client's credentials is an error at once.

    Args:
        uri: Of the deployment.
        client: Its class, such as :class:`~aioretry.pymongo.AsyncRetryClient`; None is
            :class:`~aioretry.RetryClient`.
        keys: What :func:`idempotency_key` needs; closed before the client.
        startup_timeout: How many seconds :func:`~aioretry.ready` may take; None does not wait.
        drain_timeout: How many seconds :func:`~aioretry.drain` may take at the end.
        **options: As for the client.

    Raises:
        TypeError: ``uri`` is not a str, ``keys`` not a :class:`~aioretry.idempotent.Keys`, or a
            time no number.
        ValueError: A time is not above 0, or not finite.
        ImportError: ``client`` is None, and Motor is not installed.
    """
    serving = Serving(uri, client, keys, startup_timeout, drain_timeout, options)

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[MongoState]:
        del app
        async with serving.client() as made:
            yield MongoState(mongodb=made, mongodb_keys=keys)

    return lifespan


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


def _fields(scope: Scope, name: str) -> list[str]:
    wanted = name.lower().encode("latin-1")
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted]


def _path_in_application(scope: Scope) -> str:
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


def _name_of(scope: Scope) -> str:
    """Return what logs call a request."""
    return f"{scope['method']} {scope['path']}"


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
        if scope["type"] != "http" or _path_in_application(scope) in self._exempt:
            await self._app(scope, receive, send)
            return
        seconds = self._limits.seconds(_fields(scope, self._limits.header))
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
                    scope[_DEADLINE] = limit
                    await self._app(scope, receive, send_on)
            except asyncio.CancelledError as exc:
                cancelled = exc
                raise
        if not cancelling.cancelled_caught:
            return
        problem = too_late(cancelled, _name_of(scope), has_begun=has_begun)
        await problem_response(problem, self._page)(scope, receive, send)


class ProblemMiddleware:
    """Answers what databases raise with problem details (RFC 9457); the page on frameworks lists
    them.

    All other errors, such as a duplicate key, are the application's, and so are those of websockets
    and of a response that has begun. A group of errors is answered if all in it would be answered
    the same. The error behind an answer is logged, by its classes and codes.

    Args:
        app: The application.
        documentation: The URL of a page that explains problems, for ``type`` and ``Link``.

    Raises:
        TypeError: ``documentation`` is neither a str nor None.
        ValueError: ``documentation`` is no URL of a page.
    """

    def __init__(self, app: ASGIApp, *, documentation: str | None = None) -> None:
        self._app = app
        self._page = page_of(documentation)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_on)
        except ProblemError as exc:
            if has_begun:
                raise
            problem = exc.problem
        except (PyMongoError, TimeoutError, ExceptionGroup) as exc:
            found = None if has_begun else problem_of_request(scope, exc)
            if found is None:
                raise
            problem = found
        else:
            return
        await problem_response(problem, self._page)(scope, receive, send)


def problem_of_request(scope: Scope, error: Exception) -> Problem | None:
    """Return what an error means to who has sent a request, and log it; None if it is not known."""
    limit: Deadline | None = scope.get(_DEADLINE)
    problem = problem_of(error, is_over=limit is not None and limit.is_over)
    if problem is not None:
        log_problem(problem, _name_of(scope), error)
    return problem


def client_of(scope: Scope) -> Any:
    """Return the client of the lifespan, or None."""
    return scope.get("state", {}).get("mongodb")


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
        path = _path_in_application(scope) if scope["type"] == "http" else ""
        if path not in self._probes.paths or scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return
        status, body = self._probes.answer(path, self._client_of(scope))
        headers = ((name.lower().encode(), v.encode()) for name, v in Probes.HEADERS.items())
        await Response(status, tuple(headers), body)(scope, receive, send)


class CallerKey(KeyOfRequest):
    """The Idempotency-Key of a request; for :meth:`once`, or ``collection.operation(key=...)``."""

    async def once(
        self, work: Callable[[Session], Awaitable[Any]], *, status: int = 200
    ) -> Response:
        """Do the work of a request once, and answer each repetition the same.

        Its writes and its answer are one transaction. Of requests at once one does the work, and
        the others wait for it. If the work raises, nothing is applied or stored; whatever it
        returns is, a response with the status of an error too. Errors of the database have to
        leave the work: they have ended its transaction.

        Args:
            work: Awaited with the session that each of its reads and writes has to be given;
                returns a :class:`Response`, or what becomes the JSON of one. It may be run more
                than once.
            status: The status of that one. With 204, 205 or 304 there is no body.

        Returns:
            The response, with ``Idempotent-Replayed: true`` if another request has done the work.

        Raises:
            IdempotencyConflict: The key was used for another request.
            KeyInUseError: Another request with the key has not ended before the deadline.
            DeadlineExceeded: The deadline is over.
            InvalidOperation: The key was used already, in this request; or the work has caught an
                error of the database, or was called within other work. Nothing is applied.
            TypeError: The work returned what JSON does not know.
            Exception: Whatever the work raised.
        """

        async def whole(session: Session) -> Response:
            answer = await work(session)
            if isinstance(answer, Response):
                return answer
            headers = ((b"content-type", b"application/json"),)
            return Response(status, headers, json.dumps(answer).encode())

        kept = await self._kept(whole)
        return Response(kept.status, kept.headers, kept.body)


def idempotency_key(
    *,
    scope: Callable[[Scope], Awaitable[str]],
    database: str | None = None,
    required: bool = True,
) -> Callable[[Scope, bytes], Awaitable[CallerKey]]:
    """Return what gives a request's key: ``key = await key_of(request.scope, body)``.

    It is read from the header field Idempotency-Key (draft-ietf-httpapi-idempotency-key-header): a
    string in quotes, or a token, of at most 255 characters. The key belongs to the caller, and
    stands for the request's method, path, query and body.

    Args:
        scope: Says who calls, such as a tenant or a user, by the connection's scope; the keys of
            two callers are never the same. It has to be somebody whom you have authenticated:
            whoever can say that they are another one gets the answers of that one.
        database: Where answers are kept; None is the database that the URI names.
        required: Whether a request without a key is answered with 400. If not, its work is done
            all the same, and no answer is kept: whoever repeats it has it done again.

    Returns:
        A function of the scope of a request and its whole body. It raises :class:`ProblemError`
        (400) for a key that is missing or wrong.

    Raises:
        TypeError: ``scope`` can't be called.
    """
    if not callable(scope):
        raise TypeError(f"scope must be a callable, not {scope!r}")

    async def key_of_request(request: Scope, body: bytes) -> CallerKey:
        client, keys = client_of(request), request.get("state", {}).get("mongodb_keys")
        if client is None or keys is None:
            raise RuntimeError("there are no keys: mongodb_lifespan(uri, keys=Keys(...)) has them")
        caller = await scope(request)
        key = key_of(_fields(request, KEY_HEADER), required=required)
        if isinstance(key, Problem):
            raise ProblemError(key.status, key.reason, key.detail)
        stands_for = joined(
            request["method"], request["path"], request.get("query_string", b""), body
        )
        return CallerKey(keys, database_of(client, database), caller, key, stands_for)

    return key_of_request
