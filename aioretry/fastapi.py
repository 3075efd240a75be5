"""aioretry in FastAPI services: the client, deadlines, problem details, idempotency keys."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, TypedDict

import anyio
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from pymongo.errors import PyMongoError
from starlette.datastructures import Headers, UploadFile
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aioretry import _faces, deadline, outcome_of
from aioretry._web import (
    KEY_HEADER,
    MEDIA_TYPE,
    REPLAYED_HEADER,
    TIMEOUT_HEADER,
    KeyOfRequest,
    Parse,
    Problem,
    RequestLimits,
    deadline_exceeded,
    digest_of,
    has_body,
    joined,
    key_of,
    maker_of,
    problem_of,
    seconds_of,
)
from aioretry.idempotent import Keys
from aioretry.pymongo import AsyncRetryClient, AsyncRetryDatabase

__all__ = [
    "AsyncioClient",
    "AsyncioDatabase",
    "CallerKey",
    "Client",
    "Database",
    "DeadlineMiddleware",
    "MongoState",
    "ProblemError",
    "add_problem_handlers",
    "database",
    "idempotency_key",
    "mongodb_lifespan",
    "seconds_of",
]

_FORMS = {"multipart/form-data", "application/x-www-form-urlencoded"}


class MongoState(TypedDict):
    """What the lifespan adds to the state of each request."""

    mongodb: Any
    """The client, of the class that was asked for."""

    mongodb_keys: Keys | None


def mongodb_lifespan(
    uri: str,
    *,
    client: type[_faces.Client] | None = None,
    keys: Keys | None = None,
    **options: Any,
) -> Callable[[Any], AbstractAsyncContextManager[MongoState]]:
    """Return a lifespan that opens a client, and closes it at the end.

    In a lifespan of your own: ``async with mongodb_lifespan(uri)(app) as state: yield {**state,
    ...}``.

    Args:
        uri: Of the deployment.
        client: Its class, such as :class:`~aioretry.pymongo.AsyncRetryClient`; None is
            :class:`~aioretry.RetryClient`.
        keys: What :func:`idempotency_key` needs; closed before the client.
        **options: As for the client.

    Raises:
        TypeError: ``uri`` is not a str, or ``keys`` not a :class:`~aioretry.idempotent.Keys`.
        ImportError: ``client`` is None, and Motor is not installed.
    """
    make = maker_of(uri, client, keys, options)

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[MongoState]:
        del app
        async with AsyncExitStack() as stack:
            made = await stack.enter_async_context(make())
            if keys is not None:
                await stack.enter_async_context(keys)
            yield MongoState(mongodb=made, mongodb_keys=keys)

    return lifespan


async def _client_of(connection: HTTPConnection) -> Any:
    client = getattr(connection.state, "mongodb", None)
    if client is None:
        raise RuntimeError(
            "there is no client: FastAPI(lifespan=mongodb_lifespan(uri)) makes one when it starts; "
            "in a test, it starts in `with TestClient(app)`, and not by httpx.ASGITransport(app)"
        )
    return client


Client = Annotated[_faces.MotorClient, Depends(_client_of)]
"""A dependency, the client of the lifespan."""

AsyncioClient = Annotated[AsyncRetryClient[dict[str, Any]], Depends(_client_of)]
"""The same, for type checkers, where it is an :class:`~aioretry.pymongo.AsyncRetryClient`."""


def _database_of(client: _faces.Client, name: str | None) -> _faces.Database:
    return client.get_default_database() if name is None else client[name]


def database(
    name: str | None = None,
) -> Callable[[HTTPConnection], Awaitable[_faces.Database]]:
    """Return what gives a database: ``Annotated[RetryMotorDatabase, Depends(database("shop"))]``.

    With the other client, that is ``Annotated[AsyncRetryDatabase, Depends(database("shop"))]``.

    Args:
        name: The database's; None is the one that the URI names.

    Raises:
        TypeError: ``name`` is neither a str nor None.
    """
    if not isinstance(name, str | None):
        raise TypeError(f"name must be a str or None, not {name!r}")

    # Not by the other dependency: FastAPI would solve that for each request, too.
    async def database_of(connection: HTTPConnection) -> _faces.Database:
        return _database_of(await _client_of(connection), name)

    return database_of


Database = Annotated[_faces.MotorDatabase, Depends(database())]
"""A dependency, the database that the URI names."""

AsyncioDatabase = Annotated[AsyncRetryDatabase[dict[str, Any]], Depends(database())]
"""The same, for type checkers, of an :class:`~aioretry.pymongo.AsyncRetryClient`."""


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

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is out of range, or ``header`` is no name of a header field.
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
    ) -> None:
        self._app = app
        self._limits = RequestLimits(default, maximum, header, parse, grace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seconds = self._limits.seconds(Headers(scope=scope).getlist(self._limits.header))
        if isinstance(seconds, Problem):
            await _response(seconds)(scope, receive, send)
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
                async with deadline(seconds):
                    await self._app(scope, receive, send_on)
            except asyncio.CancelledError as exc:
                cancelled = exc
                raise
        if not cancelling.cancelled_caught:
            return
        if has_begun:  # it did so when it was cancelled; only its server can break it off
            raise TimeoutError(
                "the time of a request was over, and it answered then"
            ) from cancelled
        outcome = None if cancelled is None else outcome_of(cancelled)
        await _response(deadline_exceeded(outcome))(scope, receive, send)


class ProblemError(HTTPException):
    """Raised in a handler, it is answered with problem details (RFC 9457).

    Args:
        status: The status code, from 400 to 599.
        reason: What it is, for programs.
        detail: What it is, for people.
        retry_after: Seconds after which to repeat the request, or None.

    Raises:
        TypeError: ``status`` is no int.
        ValueError: ``status`` is out of range.
    """

    def __init__(
        self, status: int, reason: str, detail: str, *, retry_after: int | None = None
    ) -> None:
        self.problem = Problem(status, reason, detail, retry_after=retry_after)
        super().__init__(status, detail, self.problem.headers)


def add_problem_handlers(app: FastAPI) -> None:
    """Have an application answer what databases raise with problem details (RFC 9457).

    - 504 ``deadline_exceeded``: the request's deadline is over.
    - 503 ``no_server``: no server in time, with Retry-After.
    - 503 ``overloaded``: the server refuses for want of resources, with Retry-After.
    - 503 ``no_turn``: too many requests with keys wait in this process, with Retry-After.
    - 500 ``unknown_outcome``: nobody knows whether the write is applied.
    - 500 ``partly_applied``: some statements of a bulk write are applied, and some are not.
    - 409 ``key_in_use``: a request with the same key is running; with Retry-After.
    - 422 ``key_reused``: the key was used for another request.
    - 422 ``key_expired``: the key was first used too long ago.

    ``outcome`` tells of the write that has failed, and of no other: what the request has written
    before stays written.

    All other errors, such as a duplicate key, are the application's: a handler for a class of them
    has precedence. So are those of websockets. A group of errors is answered if all in it would be
    answered the same. An application that is mounted in another one needs handlers of its own.

    Args:
        app: The application.

    Raises:
        RuntimeError: It has a handler for ``PyMongoError``, ``TimeoutError`` or ``ExceptionGroup``
            already.
    """
    for kind in (PyMongoError, TimeoutError, ExceptionGroup):
        if kind in app.exception_handlers:
            raise RuntimeError(f"the application has a handler for {kind.__name__} already")
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(ProblemError, _answer)


async def _answer(connection: HTTPConnection, error: Exception) -> Response:
    if not isinstance(connection, Request):
        raise error
    if isinstance(error, ProblemError):
        return _response(error.problem)
    with deadline(None) as limit:
        problem = problem_of(error, is_over=limit is not None and limit.is_over)
    if problem is None:
        raise error
    return _response(problem)


def _response(problem: Problem) -> Response:
    return Response(problem.body, problem.status, problem.headers, MEDIA_TYPE)


class CallerKey(KeyOfRequest):
    """The Idempotency-Key of a request; for :meth:`once`, or ``collection.operation(key=...)``."""

    async def once(
        self,
        work: Callable[[_faces.Session], Awaitable[Any]],
        *,
        status_code: int = 200,
    ) -> Response:
        """Do the work of a request once, and answer each repetition the same.

        Its writes and its answer are one transaction. Of requests at once one does the work, and
        the others wait for it. If the work raises, nothing is applied or stored; whatever it
        returns is, a response with the status of an error too. Errors of the database have to
        leave the work: they have ended its transaction.

        Args:
            work: Awaited with the session that each of its reads and writes has to be given;
                returns a response, or what becomes the JSON of one, to which the route's
                ``response_model`` is not applied. It may be run more than once.
            status_code: The status of that one. With 204, 205 or 304 there is no body.

        Returns:
            The response, with ``Idempotent-Replayed: true`` if another request has done the work.

        Raises:
            IdempotencyConflict: The key was used for another request.
            KeyInUseError: Another request with the key has not ended before the deadline.
            DeadlineExceeded: The deadline is over.
            InvalidOperation: The key was used already, in this request; or the work has caught an
                error of the database, or was called within other work. Nothing is applied.
            TypeError: The work returned a response without a body, or one with a background task.
            Exception: Whatever the work raised.
        """

        async def stored(session: _faces.Session) -> dict[str, Any]:
            answer = await work(session)
            if not isinstance(answer, Response):
                answer = JSONResponse(jsonable_encoder(answer), status_code)
            if not hasattr(answer, "body") or answer.background is not None:
                raise TypeError("work must return a whole response, without a background task")
            if not has_body(answer.status_code):
                answer.body = b""
                for name in ("Content-Length", "Content-Type"):
                    del answer.headers[name]
            headers = [list(pair) for pair in answer.raw_headers]
            return {"status": answer.status_code, "headers": headers, "body": bytes(answer.body)}

        answer = await self.stored(stored)
        response = Response(answer.value["body"], answer.value["status"])
        response.raw_headers = [(name, value) for name, value in answer.value["headers"]]
        if answer.replayed:
            response.headers[REPLAYED_HEADER] = "true"
        return response


def idempotency_key(
    *, scope: Callable[..., Any], database: str | None = None, required: bool = True
) -> Callable[..., Awaitable[CallerKey]]:
    """Return what gives a request's key: ``Annotated[CallerKey, Depends(idempotency_key(...))]``.

    It is read from the header field Idempotency-Key (draft-ietf-httpapi-idempotency-key-header): a
    string in quotes, or a token, of at most 255 characters. The key belongs to the caller, and
    stands for the request's method, path, query and body; for the fields and files of a form, if
    the route has any.

    Args:
        scope: A dependency that says who calls, as a str, such as a tenant or a user; the keys of
            two callers are never the same. It has to be somebody whom you have authenticated:
            whoever can say that they are another one gets the answers of that one.
        database: Where answers are kept; None is the database that the URI names.
        required: Whether a request without a key is answered with 400. If not, its work is done
            all the same, and no answer is kept: whoever repeats it has it done again.

    Returns:
        The dependency. It raises :class:`ProblemError` (400) for a key that is missing or wrong.

    Raises:
        TypeError: ``scope`` can't be called.
    """
    if not callable(scope):
        raise TypeError(f"scope must be a callable, not {scope!r}")

    async def key_of_request(
        request: Request,
        caller: Annotated[Any, Depends(scope)],
        field: Annotated[str | None, Header(alias=KEY_HEADER)] = None,
    ) -> CallerKey:
        del field  # it is for the documentation of the service
        client = await _client_of(request)
        keys: Keys | None = getattr(request.state, "mongodb_keys", None)
        if keys is None:
            raise RuntimeError("there are no keys: mongodb_lifespan(uri, keys=Keys(...)) has them")
        key = key_of(request.headers.getlist(KEY_HEADER), required=required)
        if isinstance(key, Problem):
            raise ProblemError(key.status, key.reason, key.detail)
        path, query = request.scope["path"], request.scope.get("query_string", b"")
        stands_for = joined(request.method, path, query, await _body_of(request))
        kept = _database_of(client, database)
        return CallerKey(keys, kept, caller, key, stands_for)

    return key_of_request


async def _body_of(request: Request) -> bytes:
    try:
        return await request.body()
    except RuntimeError:
        # A form is read before any dependency is asked, and nothing is left of its body.
        media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if media_type not in _FORMS:
            raise
    fields = []
    for name, value in (await request.form()).multi_items():
        if isinstance(value, UploadFile):
            digest = await anyio.to_thread.run_sync(digest_of, value.file)
            field = joined(name, value.filename or "", value.content_type or "", digest)
        else:
            field = joined(name, value)
        fields.append(field)
    return joined(*fields)
