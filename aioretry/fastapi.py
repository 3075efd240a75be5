"""aioretry in FastAPI services: the client, deadlines, problem details, idempotency keys."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from pymongo.errors import PyMongoError
from starlette.datastructures import UploadFile
from starlette.requests import HTTPConnection

from aioretry import Outcome, _faces
from aioretry._web.keys import Kept, KeyOfRequest, database_of
from aioretry._web.problems import MEDIA_TYPE, Problem, page_of
from aioretry._web.requests import KEY_HEADER, digest_of, joined, key_of, seconds_of
from aioretry.asgi import (
    DeadlineMiddleware,
    MongoState,
    ProbesMiddleware,
    mongodb_lifespan,
)
from aioretry.asgi._problems import problem_of_request
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
    "ProbesMiddleware",
    "ProblemError",
    "add_problem_handlers",
    "database",
    "idempotency_key",
    "mongodb_lifespan",
    "seconds_of",
]

# By these a key is known in OpenAPI, too, where FastAPI keeps nothing else for itself.
_REQUIRED = "Says that requests are the same; a string in quotes, or a token. It is required."
_OPTIONAL = "Says that requests are the same; a string in quotes, or a token."
_ANSWERS = {
    "400": "The key is missing, or a header field can't be read.",
    "409": "A request with this key is still running; repeat this one after Retry-After.",
    "422": "The key was used for another request, or too long ago.",
    "503": "Nothing is applied; repeat the request with its key after Retry-After.",
    "504": "The time is over; repeat the request with its key.",
}
_PROBLEM = {
    "title": "Problem",
    "type": "object",
    "description": "Problem details (RFC 9457).",
    "required": ["type", "status", "title", "detail", "reason"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "status": {"type": "integer"},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "reason": {"type": "string", "description": "What it is, for programs."},
        "outcome": {
            "type": "string",
            "enum": [Outcome.UNKNOWN.value, Outcome.NOT_APPLIED.value],
            "description": "How the write ended that has failed, where that is known.",
        },
    },
}
_FORMS = {"multipart/form-data", "application/x-www-form-urlencoded"}


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
    async def database_of_request(connection: HTTPConnection) -> _faces.Database:
        return database_of(await _client_of(connection), name)

    return database_of_request


Database = Annotated[_faces.MotorDatabase, Depends(database())]
"""A dependency, the database that the URI names."""

AsyncioDatabase = Annotated[AsyncRetryDatabase[dict[str, Any]], Depends(database())]
"""The same, for type checkers, of an :class:`~aioretry.pymongo.AsyncRetryClient`."""


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
        self.problem: Problem = Problem(status, reason, detail, retry_after=retry_after)
        super().__init__(status, detail, self.problem.headers())


def add_problem_handlers(app: FastAPI, *, documentation: str | None = None) -> None:
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

    The error behind an answer is logged, by its classes and codes. What the application's OpenAPI
    says of routes that take a key has these answers, too.

    Args:
        app: The application.
        documentation: The URL of a page that explains problems, for ``type`` and ``Link``.

    Raises:
        RuntimeError: It has a handler for ``PyMongoError``, ``TimeoutError`` or ``ExceptionGroup``
            already.
        TypeError: ``documentation`` is neither a str nor None.
        ValueError: ``documentation`` is no URL of a page.
    """
    answer: Any = partial(_answer, page_of(documentation))
    for kind in (PyMongoError, TimeoutError, ExceptionGroup):
        if kind in app.exception_handlers:
            raise RuntimeError(f"the application has a handler for {kind.__name__} already")
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ProblemError, answer)
    _describe(app)


def _describe(app: FastAPI) -> None:
    """Have OpenAPI say which operations need a key, and what they answer for its sake."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        schema = generate()
        for operation, parameter in _keyed(schema):
            parameter["required"] = parameter["description"] == _REQUIRED
            parameter["schema"] = {"type": "string", "maxLength": 255}
            for status, description in _ANSWERS.items():
                answer = operation["responses"].setdefault(status, {"description": description})
                ref = {"$ref": "#/components/schemas/Problem"}
                answer.setdefault("content", {}).setdefault(MEDIA_TYPE, {"schema": ref})
            schema.setdefault("components", {}).setdefault("schemas", {})["Problem"] = _PROBLEM
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation has it


def _keyed(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for path in schema.get("paths", {}).values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if parameter.get("description") in {_REQUIRED, _OPTIONAL}:
                    yield operation, parameter


async def _answer(page: str | None, connection: HTTPConnection, error: Exception) -> Response:
    if not isinstance(connection, Request):
        raise error
    if isinstance(error, ProblemError):
        problem: Problem | None = error.problem
    else:
        problem = problem_of_request(connection.scope, error)
    if problem is None:
        raise error
    return Response(problem.body(page), problem.status, problem.headers(page), MEDIA_TYPE)


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

        async def whole(session: _faces.Session) -> Kept:
            answer = await work(session)
            if not isinstance(answer, Response):
                answer = JSONResponse(jsonable_encoder(answer), status_code)
            if not hasattr(answer, "body") or answer.background is not None:
                raise TypeError("work must return a whole response, without a background task")
            return Kept(answer.status_code, tuple(answer.raw_headers), bytes(answer.body))

        kept = await self._kept(whole)
        response = Response(kept.body, kept.status)
        response.raw_headers = [*kept.headers]
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

    described = Header(alias=KEY_HEADER, description=_REQUIRED if required else _OPTIONAL)

    async def key_of_request(
        request: Request,
        caller: Annotated[Any, Depends(scope)],
        field: Annotated[str | None, described] = None,
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
        kept = database_of(client, database)
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
