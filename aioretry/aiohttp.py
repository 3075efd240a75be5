"""aioretry in aiohttp services: the client, deadlines, problem details, idempotency keys."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from typing import Any, TypeAlias, cast

import anyio
from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict
from pymongo.errors import PyMongoError

from aioretry import Deadline, deadline
from aioretry._faces import Client, MotorClient, Session
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
    digest_of,
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
from aioretry.pymongo import AsyncRetryClient

__all__ = [
    "ASYNCIO_CLIENT",
    "CLIENT",
    "KEYS",
    "CallerKey",
    "ProblemError",
    "add_probes",
    "deadline_middleware",
    "document_problems",
    "idempotency_key",
    "mongodb_ctx",
    "problem_middleware",
    "seconds_of",
]

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

CLIENT: web.AppKey[MotorClient] = web.AppKey("aioretry.client")
"""Where an application has its client."""

ASYNCIO_CLIENT = cast(web.AppKey[AsyncRetryClient[dict[str, Any]]], CLIENT)
"""The same, for type checkers, where it is an :class:`~aioretry.pymongo.AsyncRetryClient`."""

KEYS: web.AppKey[Keys] = web.AppKey("aioretry.keys", Keys)
"""Where an application has what its idempotency keys are made by."""

_PAGE: web.AppKey[str | None] = web.AppKey("aioretry.documentation")

# Where a request has its deadline; older versions of aiohttp have names only.
_DEADLINE: Any = (
    web.RequestKey("deadline", Deadline) if hasattr(web, "RequestKey") else "aioretry.deadline"
)


def mongodb_ctx(
    uri: str,
    *,
    client: type[Client] | None = None,
    keys: Keys | None = None,
    startup_timeout: float | None = STARTUP_TIMEOUT,
    drain_timeout: float = DRAIN_TIMEOUT,
    **options: Any,
) -> Callable[[web.Application], AsyncIterator[None]]:
    """Return what has a client ready, and drains and closes it: ``app.cleanup_ctx.append(...)``.

    The client is ``app[CLIENT]``, and in sub-applications ``request.config_dict[CLIENT]``.

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

    async def mongodb(app: web.Application) -> AsyncIterator[None]:
        async with serving.client() as made:
            app[CLIENT] = made
            if keys is not None:
                app[KEYS] = keys
            yield

    return mongodb


def add_probes(
    app: web.Application, *, live: str = LIVE, ready: str = READY, grace: float = 30.0
) -> None:
    """Have an application answer what an orchestrator asks: alive, and ready for requests?

    By GET and HEAD, with 200 or 503, and a JSON body that says why; without asking a server.

    Args:
        app: The application, whose client is ``app[CLIENT]``.
        live: The path for :func:`~aioretry.liveness`.
        ready: The path for :func:`~aioretry.readiness`.
        grace: For how many seconds it is ready that has lost its primary; infinity is for ever.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A path does not begin with a slash, both are the same, or ``grace`` is not above
            0.
    """
    probes = Probes(live, ready, grace)

    def add(path: str) -> None:
        async def probe(request: web.Request) -> web.Response:
            status, body = probes.answer(path, request.config_dict.get(CLIENT))
            return web.Response(status=status, body=body, headers=Probes.HEADERS)

        app.router.add_get(path, probe)

    for path in probes.paths:
        add(path)


def deadline_middleware(
    *,
    default: float,
    maximum: float | None = None,
    header: str = TIMEOUT_HEADER,
    parse: Parse = seconds_of,
    grace: float = 1.0,
    exempt: Collection[str] = (LIVE, READY),
) -> Middleware:
    """Return what sets a deadline for all that is done for a request; reads and writes obey it.

    What does not obey is cancelled some time after the deadline, if the response has not begun by
    then, and 504 is answered. A stream has what is left of the time. Of what asks for a websocket,
    which only GET does, nothing but the beginning has to be in time: reads and writes have no
    deadline there.

    Args:
        default: Seconds for a request that asks for nothing.
        maximum: The most that a request can ask for, in seconds; None is ``default``.
        header: The header field that a request asks by; one that can't be read is answered with
            400.
        parse: Gives the seconds of a field, more than 0, or raises ValueError.
        grace: How many seconds after the deadline a request without a response is cancelled.
        exempt: Paths that have no deadline, whatever a request asks for; those of the probes.

    Raises:
        TypeError: An argument is of another type.
        ValueError: A number is out of range, ``header`` is no name of a header field, or a path
            does not begin with a slash.
    """
    free = paths_of(exempt)
    limits = RequestLimits(default, maximum, header, parse, grace)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in free:
            return await handler(request)
        is_for_socket = _asks_for_websocket(request)
        fields = [] if is_for_socket else request.headers.getall(limits.header, [])
        seconds = limits.seconds(fields)
        if isinstance(seconds, Problem):
            return _response(request, seconds)
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope() as cancelling:

            def cancel() -> None:
                if not _has_begun(request):
                    cancelling.cancel()

            timer = asyncio.get_running_loop().call_later(seconds + limits.grace, cancel)
            try:
                with deadline(None if is_for_socket else seconds) as limit:
                    request[_DEADLINE] = limit
                    return await handler(request)
            except asyncio.CancelledError as exc:
                cancelled = exc
                raise
            finally:
                timer.cancel()
        name, has_begun = _name_of(request), _has_begun(request)
        return _response(request, too_late(cancelled, name, has_begun=has_begun))

    return middleware


@web.middleware
async def problem_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what databases raise with problem details (RFC 9457); as the page on frameworks says.

    All other errors, such as a duplicate key, are the application's, and so is whatever it raises
    in their place, such as ``web.HTTPConflict``. So are those of a response that has begun. A group
    of errors is answered if all in it would be answered the same. The error behind an answer is
    logged, by its classes and codes.
    """
    try:
        return await handler(request)
    except ProblemError as exc:
        problem = exc.problem
    except (PyMongoError, TimeoutError, ExceptionGroup) as exc:
        limit: Deadline | None = request.get(_DEADLINE)
        found = problem_of(exc, request.method, is_over=limit is not None and limit.is_over)
        if found is None or _has_begun(request):
            raise
        problem = found
        log_problem(problem, _name_of(request), exc)
    return _response(request, problem)


def document_problems(app: web.Application, documentation: str | None) -> None:
    """Have problem details say where they are explained, by ``type`` and ``Link``.

    Args:
        app: The application; its sub-applications have it, too.
        documentation: The URL of a page, whose fragments are the reasons; None says nothing.

    Raises:
        TypeError: ``documentation`` is neither a str nor None.
        ValueError: ``documentation`` is no URL of a page.
    """
    app[_PAGE] = page_of(documentation)


def _asks_for_websocket(request: web.Request) -> bool:
    return request.method == "GET" and bool(web.WebSocketResponse().can_prepare(request))


def _has_begun(request: web.Request) -> bool:
    return request.writer.output_size > 0


def _name_of(request: web.Request) -> str:
    return f"{request.method} {request.path}"


def _response(request: web.Request, problem: Problem) -> web.Response:
    page = request.config_dict.get(_PAGE)
    return web.Response(
        body=problem.body(page),
        status=problem.status,
        headers=problem.headers(page),
        content_type=MEDIA_TYPE,
    )


class CallerKey(KeyOfRequest):
    """The Idempotency-Key of a request; for :meth:`once`, or ``collection.operation(key=...)``."""

    async def once(
        self,
        work: Callable[[Session], Awaitable[Any]],
        *,
        status: int = 200,
    ) -> web.Response:
        """Do the work of a request once, and answer each repetition the same.

        Its writes and its answer are one transaction. Of requests at once one does the work, and
        the others wait for it. If the work raises, nothing is applied or stored; whatever it
        returns is, a response with the status of an error too. Errors of the database have to
        leave the work: they have ended its transaction.

        Args:
            work: Awaited with the session that each of its reads and writes has to be given;
                returns a ``web.Response``, or what becomes the JSON of one. It may be run more than
                once.
            status: The status of that one. With 204, 205 or 304 there is no body.

        Returns:
            The response, with ``Idempotent-Replayed: true`` if another request has done the work.

        Raises:
            IdempotencyConflict: The key was used for another request.
            KeyInUseError: Another request with the key has not ended before the deadline.
            DeadlineExceeded: The deadline is over.
            InvalidOperation: The key was used already, in this request; or the work has caught an
                error of the database, or was called within other work. Nothing is applied.
            TypeError: The work returned a response without a whole body.
            Exception: Whatever the work raised.
        """

        async def whole(session: Session) -> Kept:
            answer = await work(session)
            if not isinstance(answer, web.StreamResponse):
                answer = web.json_response(answer, status=status)
            if not isinstance(answer, web.Response) or not isinstance(answer.body, bytes | None):
                raise TypeError("work must return a response whose body is text or bytes")
            return Kept(answer.status, tuple(_headers_of(answer)), answer.body or b"")

        kept = await self._kept(whole)
        headers = CIMultiDict((name.decode(), value.decode()) for name, value in kept.headers)
        return web.Response(body=kept.body, status=kept.status, headers=headers)


def _headers_of(answer: web.Response) -> Iterator[tuple[bytes, bytes]]:
    cookies = (("Set-Cookie", cookie.OutputString()) for cookie in answer.cookies.values())
    for name, value in (*answer.headers.items(), *cookies):
        yield name.encode(), value.encode()


def idempotency_key(
    *,
    scope: Callable[[web.Request], Awaitable[str]],
    database: str | None = None,
    required: bool = True,
) -> Callable[[web.Request], Awaitable[CallerKey]]:
    """Return what gives a request's key: ``key = await key_of(request)``.

    It is read from the header field Idempotency-Key (draft-ietf-httpapi-idempotency-key-header): a
    string in quotes, or a token, of at most 255 characters. The key belongs to the caller, and
    stands for the request's method, path, query and body; for the fields and files of a form that
    has several parts (``multipart/form-data``).

    Args:
        scope: Says who calls, such as a tenant or a user; the keys of two callers are never the
            same. It has to be somebody whom you have authenticated: whoever can say that they are
            another one gets the answers of that one.
        database: Where answers are kept; None is the database that the URI names.
        required: Whether a request without a key is answered with 400. If not, its work is done
            all the same, and no answer is kept: whoever repeats it has it done again.

    Returns:
        A function that raises :class:`ProblemError` (400) for a key that is missing or wrong, and
        for a form that can't be read, and RuntimeError for a body of which something was read that
        can't be read again: ask for the key first, or read by ``request.read()`` or
        ``request.post()``.

    Raises:
        TypeError: ``scope`` can't be called.
    """
    if not callable(scope):
        raise TypeError(f"scope must be a callable, not {scope!r}")

    async def key_of_request(request: web.Request) -> CallerKey:
        client, keys = request.config_dict.get(CLIENT), request.config_dict.get(KEYS)
        if client is None or keys is None:
            raise RuntimeError("there are no keys: mongodb_ctx(uri, keys=Keys(...)) has them")
        caller = await scope(request)
        key = key_of(request.headers.getall(KEY_HEADER, []), required=required)
        if isinstance(key, Problem):
            raise ProblemError(key.status, key.reason, key.detail)
        url = request.rel_url
        body = await _body_of(request)
        stands_for = joined(request.method, url.raw_path, url.raw_query_string, body)
        return CallerKey(keys, database_of(client, database), caller, key, stands_for)

    return key_of_request


async def _body_of(request: web.Request) -> bytes:
    if request.content_type == "multipart/form-data":
        return await _form_of(request)
    body = await request.read()
    if request.body_exists and request.content.total_bytes > len(body):
        raise RuntimeError(
            "the body of the request was read already: ask for its key before, or use read()"
        )
    return body


async def _form_of(request: web.Request) -> bytes:
    # Its body is different each time that it is sent, and can be read but once.
    try:
        form = await request.post()
    except ValueError:
        detail = "the form can't be read"
        raise ProblemError(400, "bad_form", detail) from None
    fields = []
    for name, value in form.items():
        if isinstance(value, web.FileField):
            digest = await anyio.to_thread.run_sync(digest_of, value.file)
            field = joined(name, value.filename, value.content_type, digest)
        else:
            field = joined(name, value if isinstance(value, str) else bytes(value))
        fields.append(field)
    return joined(*fields)
