"""What is ASGI's own, without any framework: what passes by, and whole responses."""

import json
import uuid

import pytest
from pymongo.errors import AutoReconnect, DuplicateKeyError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from aioretry import deadline
from aioretry.asgi import (
    DeadlineMiddleware,
    ProbesMiddleware,
    ProblemError,
    ProblemMiddleware,
    Response,
    idempotency_key,
    mongodb_lifespan,
)
from aioretry.deadlines import current_deadline
from aioretry.idempotent import Keys
from tests.services.apps import DATABASE
from tests.services.conftest import asgi_client

HTTP = {"type": "http", "method": "GET", "path": "/", "headers": []}


async def sent_by(app, scope):
    """What an application sends for a scope."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        raise AssertionError

    await app(scope, receive, send)
    return sent


async def test_a_middleware_that_calls_next():
    """What Starlette runs in a task of its own is inside the deadline that was set around it."""
    left = []

    async def note():
        left.append(current_deadline().remaining())

    class Limits(BaseHTTPMiddleware):
        async def dispatch(self, request, call_next):
            with deadline(50.0):
                return await call_next(request)

    async def page(_):
        await note()
        return PlainTextResponse("", background=BackgroundTask(note))

    app = Starlette(routes=[Route("/", page)], middleware=[Middleware(Limits)])
    async with asgi_client(app) as client:
        assert (await client.get("/")).status_code == 200
    assert [40 < seconds <= 50 for seconds in left] == [True, True]


def raising(error, *, begun=False):
    """An application that fails."""

    async def app(scope, receive, send):
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    return app


class TestOtherConnections:
    @pytest.mark.parametrize("kind", ["websocket", "lifespan"])
    async def test_pass_by(self, kind):
        """Only requests have deadlines, problems and probes."""
        seen = []

        async def app(scope, receive, send):
            seen.append(scope)
            raise AutoReconnect("lost")

        for wrapped in (
            DeadlineMiddleware(app, default=1.0),
            ProblemMiddleware(app),
            ProbesMiddleware(app),
        ):
            scope = {"type": kind, "path": "/livez", "headers": []}
            with pytest.raises(AutoReconnect):
                await sent_by(wrapped, scope)
            assert seen.pop() is scope


class TestProblems:
    @pytest.mark.parametrize("error", [AutoReconnect("lost"), ProblemError(409, "gone", "late")])
    async def test_a_response_that_has_begun(self, error):
        """Its errors are the server's to end it with."""
        with pytest.raises(type(error)):
            await sent_by(ProblemMiddleware(raising(error, begun=True)), HTTP)

    @pytest.mark.parametrize("error", [DuplicateKeyError("E11000"), ValueError(), TimeoutError()])
    async def test_errors_of_the_application(self, error):
        """They go on."""
        with pytest.raises(type(error)):
            await sent_by(ProblemMiddleware(raising(error)), HTTP)

    async def test_of_ones_own(self):
        """A problem that a handler raises is answered, with its header."""
        error = ProblemError(409, "sold_out", "there is none left", retry_after=7)
        start, body = await sent_by(ProblemMiddleware(raising(error)), HTTP)
        assert start["status"] == 409
        assert (b"retry-after", b"7") in start["headers"]
        assert json.loads(body["body"])["reason"] == "sold_out"
        with pytest.raises(ValueError, match="status"):
            ProblemError(200, "fine", "all is well")


class TestResponse:
    async def test_length(self):
        """It says how long it is, unless it has said so, or has no body."""
        for response, length in [
            (Response(200, (), b"four"), [b"4"]),
            (Response(200, ((b"Content-Length", b"4"),), b"four"), [b"4"]),
            (Response(204), []),
            (Response(304), []),
        ]:
            start, _ = await sent_by(response, HTTP)
            found = [value for name, value in start["headers"] if name.lower() == b"content-length"]
            assert found == length


def service_of(scene, work, **options):
    """A service that does some work once for a key."""

    async def caller(scope):
        return "somebody"

    key_of = idempotency_key(scope=caller, database=DATABASE, **options)

    async def handler(request):
        key = await key_of(request.scope, await request.body())
        return await key.once(work, status=201)

    app = Starlette(
        lifespan=mongodb_lifespan(
            scene.uri, client=scene.client, keys=Keys(b"0123456789abcdef", "tests")
        ),
        middleware=[Middleware(ProblemMiddleware)],
        routes=[Route("/", handler, methods=["POST"])],
    )
    return asgi_client(app)


KEY = {"Idempotency-Key": "one"}


class TestOnce:
    async def test_a_whole_response(self, scene):
        """Status, header and body are kept, and the next one is told that they were."""

        async def work(session):
            return Response(202, ((b"X-One", b"1"), (b"x-one", b"2")), uuid.uuid4().bytes)

        key = {"Idempotency-Key": uuid.uuid4().hex}
        async with service_of(scene, work) as service:
            first, second = [await service.post("/", headers=key) for _ in range(2)]
        assert (first.status_code, first.content) == (second.status_code, second.content)
        assert second.headers.get_list("x-one") == ["1", "2"]
        assert "Idempotent-Replayed" not in first.headers
        assert second.headers["Idempotent-Replayed"] == "true"

    async def test_without_a_body(self, scene):
        """Of a status without one, nothing that tells of a body is sent."""

        async def work(session):
            return Response(204, ((b"Content-Type", b"text/plain"), (b"X-One", b"1")), b"body")

        async with service_of(scene, work, required=False) as service:
            answer = await service.post("/")
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers == {"X-One": "1"}

    async def test_what_json_does_not_know(self, scene):
        """It is an error, and nothing is kept."""

        async def work(session):
            return object()

        async with service_of(scene, work) as service:
            assert (await service.post("/", headers=KEY)).status_code == 500

    async def test_no_key(self, scene):
        """It is a problem where one is needed."""

        async with service_of(scene, None) as service:
            answer = await service.post("/")
        assert (answer.status_code, answer.json()["reason"]) == (400, "key_missing")
        assert answer.json()["type"] == "about:blank"
        assert "Link" not in answer.headers

    async def test_no_keys(self):
        """Without the lifespan there is nothing that a key is made by."""
        key_of = idempotency_key(scope=None.__class__)
        with pytest.raises(RuntimeError, match="mongodb_lifespan"):
            await key_of(HTTP, b"")
        with pytest.raises(TypeError, match="scope"):
            idempotency_key(scope="me")
