"""What is FastAPI's own: dependencies, streams, background tasks, websockets, lifespans."""

import asyncio
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Response, WebSocket
from fastapi.responses import JSONResponse, StreamingResponse
from pymongo.errors import DuplicateKeyError, PyMongoError

from aioretry import RetryClient, RetryMotorDatabase, deadline
from aioretry.fastapi import (
    CallerKey,
    Client,
    Database,
    DeadlineMiddleware,
    ProblemError,
    add_problem_handlers,
    database,
    idempotency_key,
    mongodb_lifespan,
)
from aioretry.idempotent import Keys
from tests.services.apps import DATABASE
from tests.services.conftest import asgi_client

SECRET = b"0123456789abcdef"
HTTP = {"type": "http", "http_version": "1.1", "method": "GET", "query_string": b"", "headers": []}


@pytest.fixture
def app(scene) -> FastAPI:
    """An application with a client, deadlines and problem details."""
    app = FastAPI(
        lifespan=mongodb_lifespan(scene.uri, client=scene.client, keys=Keys(SECRET, "tests"))
    )
    app.add_middleware(DeadlineMiddleware, default=30.0)
    add_problem_handlers(app)
    return app


async def events_of(app, path, on_event=None) -> list[dict[str, Any]]:
    """Call an application without any HTTP between, and return what it sends."""
    events = []
    received = [{"type": "http.request", "body": b""}]

    async def receive():
        if received:
            return received.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(event):
        events.append(event)
        if on_event is not None:
            on_event(event)

    await app({**HTTP, "path": path}, receive, send)
    return events


class TestErrors:
    async def test_in_a_dependency(self, app, scene, faults):
        """A deadline that is over in a dependency is answered like one in the handler."""

        async def slow(client: Client) -> None:
            async with deadline(0.5):
                await client[DATABASE][scene.collection].insert_one({})

        @app.get("/")
        async def handler(slow: Annotated[None, Depends(slow)]) -> None:
            raise AssertionError

        async with asgi_client(app) as service:
            faults.hang("insert", times=None)
            answer = await service.get("/")
        assert (answer.status_code, answer.json()["outcome"]) == (504, "unknown")

    async def test_in_a_background_task(self, app, scene, faults):
        """The answer is out already; the error is the server's, who logs it."""
        raised = []

        async def later(client: RetryClient) -> None:
            try:
                async with deadline(0.5):
                    await client[DATABASE][scene.collection].insert_one({})
            except PyMongoError as exc:
                raised.append(exc)
                raise

        @app.get("/")
        async def handler(client: Client, tasks: BackgroundTasks) -> str:
            tasks.add_task(later, client)
            return "done"

        async with asgi_client(app) as service:
            faults.hang("insert", times=None)
            answer = await service.get("/")
        assert (answer.status_code, answer.json()) == (200, "done")
        assert raised[0].timeout

    async def test_in_a_stream(self, app, scene, faults):
        """What is out is out: the stream breaks off without an end, and the server is told."""

        @app.get("/")
        async def handler(client: Client) -> StreamingResponse:
            async def parts():
                yield b"one"
                async with deadline(0.5):
                    await client[DATABASE][scene.collection].insert_one({})
                yield b"two"

            return StreamingResponse(parts())

        events = []
        async with app.router.lifespan_context(app) as state:

            async def with_state(scope, receive, send):
                await app({**scope, "state": dict(state)}, receive, send)

            faults.hang("insert", times=None)
            with pytest.raises(RuntimeError) as raised:
                await events_of(with_state, "/", events.append)
        assert raised.value.__cause__.timeout
        assert [event.get("body") for event in events] == [None, b"one"]
        assert events[-1]["more_body"]

    async def test_of_the_application(self, app, scene):
        """A handler of the application's for a class of errors has precedence."""

        @app.exception_handler(DuplicateKeyError)
        async def conflict(request, exc) -> Response:
            return JSONResponse("mine", 409)

        @app.post("/")
        async def handler(client: Client) -> None:
            for _ in range(2):
                await client[DATABASE][scene.collection].insert_one({"_id": 1})

        async with asgi_client(app) as service:
            answer = await service.post("/")
        assert (answer.status_code, answer.json()) == (409, "mine")

    async def test_own_problems(self, app):
        """A handler can answer problem details of its own, and HTTPException stays what it is."""

        @app.get("/sold-out")
        async def sold_out() -> None:
            raise ProblemError(409, "sold_out", "no more", retry_after=7)

        @app.get("/gone")
        async def gone() -> None:
            raise HTTPException(410, "gone")

        async with asgi_client(app) as service:
            answer = await service.get("/sold-out")
            gone = await service.get("/gone")
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.headers["Retry-After"] == "7"
        assert (answer.status_code, answer.json()["reason"]) == (409, "sold_out")
        assert (gone.status_code, gone.json()) == (410, {"detail": "gone"})

    def test_handlers_that_are_there(self, app):
        """No handler is replaced behind its owner's back."""
        with pytest.raises(RuntimeError, match="PyMongoError"):
            add_problem_handlers(app)


class TestDeadlineMiddleware:
    async def test_streams_pass(self):
        """Each part of a stream is sent before the next one is made."""
        sent = asyncio.Event()

        async def parts():
            yield b"one"
            await sent.wait()
            yield b"two"

        async def app(scope, receive, send):
            await StreamingResponse(parts())(scope, receive, send)

        limited = DeadlineMiddleware(app, default=30.0)
        events = await events_of(limited, "/", lambda e: e.get("body") == b"one" and sent.set())
        assert [event.get("body") for event in events] == [None, b"one", b"two", b""]

    async def test_a_stream_that_takes_longer(self):
        """A response that has begun is not cancelled."""

        async def parts():
            yield b"one"
            with deadline(None) as limit:
                await asyncio.sleep(limit.remaining() + 0.1)
            yield b"two"

        async def app(scope, receive, send):
            await StreamingResponse(parts())(scope, receive, send)

        limited = DeadlineMiddleware(app, default=0.1, grace=0.001)
        assert len(await events_of(limited, "/")) == 4

    @pytest.mark.parametrize("kind", ["websocket", "lifespan"])
    async def test_other_scopes(self, kind):
        """Whatever is not HTTP passes as it is, without a deadline."""
        seen = []

        async def app(*arguments):
            with deadline(None) as limit:
                seen.append((*arguments, limit))

        scope, receive, send = {"type": kind}, object(), object()
        await DeadlineMiddleware(app, default=1.0)(scope, receive, send)
        ((a_scope, a_receive, a_send, limit),) = seen
        assert a_scope is scope
        assert (a_receive, a_send, limit) == (receive, send, None)

    async def test_cancelled_from_outside(self):
        """A request that the server cancels ends as cancelled, and answers nothing."""
        entered = asyncio.Event()
        sent = []

        async def app(scope, receive, send):
            entered.set()
            await asyncio.Event().wait()

        limited = DeadlineMiddleware(app, default=30.0)
        task = asyncio.create_task(events_of(limited, "/", sent.append))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sent == []

    def test_own_header(self):
        """The header and its parser are the application's choice."""
        with pytest.raises(ValueError, match="header"):
            DeadlineMiddleware(None, default=1.0, header="no name")
        with pytest.raises(TypeError, match="default"):
            DeadlineMiddleware(None, default="1")

    async def test_milliseconds(self):
        """As Envoy sends them."""
        lefts = []

        async def app(scope, receive, send):
            with deadline(None) as limit:
                lefts.append(limit.remaining())
            await Response()(scope, receive, send)

        limited = DeadlineMiddleware(
            app,
            default=30.0,
            header="x-envoy-expected-rq-timeout-ms",
            parse=lambda text: int(text) / 1000,
        )
        transport = httpx.ASGITransport(limited)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            await client.get("/", headers={"X-Envoy-Expected-RQ-Timeout-MS": "2500"})
        assert 0 < lefts[0] <= 2.5


class TestDependencies:
    async def test_client_and_databases(self, app, scene):
        """They come from the lifespan; the default database is the URI's."""
        app = FastAPI(
            lifespan=mongodb_lifespan(scene.uri.replace("/?", "/named?"), client=scene.client)
        )

        @app.get("/")
        async def handler(
            client: Client,
            default: Database,
            other: Annotated[RetryMotorDatabase, Depends(database("other"))],
        ) -> list[Any]:
            return [default.name, other.name, other.client is client is default.client]

        async with asgi_client(app) as service:
            assert (await service.get("/")).json() == ["named", "other", True]

    async def test_websocket(self, app):
        """A websocket has the client too."""

        @app.websocket("/")
        async def handler(websocket: WebSocket, client: Client) -> None:
            await websocket.accept()
            await websocket.send_json((await client.admin.command("ping"))["ok"])
            await websocket.close()

        sent, received = [], [{"type": "websocket.connect"}]
        async with app.router.lifespan_context(app) as state:

            async def receive():
                return received.pop()

            async def send(event):
                sent.append(event)

            scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": []}
            await app({**scope, "state": dict(state)}, receive, send)
        assert [event["type"] for event in sent] == [
            "websocket.accept",
            "websocket.send",
            "websocket.close",
        ]

    async def test_own_lifespan(self, scene):
        """It can be part of another lifespan, whose state is beside it."""
        mongodb = mongodb_lifespan(scene.uri, client=scene.client)

        @asynccontextmanager
        async def lifespan(app):
            async with mongodb(app) as state:
                yield {**state, "mine": 1}

        app = FastAPI(lifespan=lifespan)
        async with app.router.lifespan_context(app) as state:
            assert state["mine"] == 1
            assert isinstance(state["mongodb"], scene.client)

    async def test_without_a_lifespan(self):
        """What was forgotten is said."""
        app = FastAPI()

        @app.get("/client")
        async def client(client: Client) -> None:
            pass

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as service:
            with pytest.raises(RuntimeError, match="TestClient"):
                await service.get("/client")

    async def test_without_keys(self, scene):
        """So are keys."""
        app = FastAPI(lifespan=mongodb_lifespan(scene.uri))
        dependency = idempotency_key(scope=lambda: "me", database=DATABASE)

        @app.get("/")
        async def handler(key: Annotated[CallerKey, Depends(dependency)]) -> None:
            pass

        async with app.router.lifespan_context(app) as state:

            async def with_state(scope, receive, send):
                await app({**scope, "state": dict(state)}, receive, send)

            with pytest.raises(RuntimeError, match="keys=Keys"):
                await events_of(with_state, "/")

    def test_bad_arguments(self):
        """They are refused at once, by name."""
        with pytest.raises(TypeError, match="uri"):
            mongodb_lifespan(None)
        with pytest.raises(TypeError, match="keys"):
            mongodb_lifespan("mongodb://localhost", keys=SECRET)
        with pytest.raises(TypeError, match="name"):
            database(1)
        with pytest.raises(TypeError, match="scope"):
            idempotency_key(scope="me")

    async def test_documented(self, app):
        """The header field is in the service's own documentation."""
        dependency = idempotency_key(scope=lambda: "me", database=DATABASE)

        @app.post("/")
        async def handler(key: Annotated[CallerKey, Depends(dependency)]) -> None:
            pass

        (parameter,) = app.openapi()["paths"]["/"]["post"]["parameters"]
        assert (parameter["name"], parameter["in"]) == ("Idempotency-Key", "header")


class TestKeys:
    async def test_cancelled_request(self, app, scene, stored):
        """A request that is cancelled in its work leaves the key usable, and nothing applied."""
        entered = asyncio.Event()
        opened = asyncio.Event()
        dependency = idempotency_key(scope=lambda: "me", database=DATABASE)

        @app.get("/")
        async def handler(client: Client, key: Annotated[CallerKey, Depends(dependency)]) -> None:
            async def work(session):
                answer = await scene.work(client[DATABASE][scene.collection], session)
                entered.set()
                await opened.wait()
                return answer

            return await key.once(work)

        headers = [(b"idempotency-key", scene.collection.encode())]
        async with app.router.lifespan_context(app) as state:

            async def with_state(scope, receive, send):
                await app({**scope, "headers": headers, "state": dict(state)}, receive, send)

            first = asyncio.create_task(events_of(with_state, "/"))
            await entered.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            opened.set()
            answers = [await events_of(with_state, "/") for _ in range(2)]
        assert [start["status"] for start, _ in answers] == [200, 200]
        assert answers[0][1]["body"] == answers[1][1]["body"]
        assert stored.count_documents({}) == 1

    async def test_responses(self, app, scene):
        """A response that the work makes is kept whole: status, headers, body."""
        dependency = idempotency_key(scope=lambda: "me", database=DATABASE)

        @app.get("/")
        async def handler(key: Annotated[CallerKey, Depends(dependency)]) -> None:
            async def work(session):
                return Response(b"\x00\xff", 202, {"Location": "/there"}, "image/x-test")

            return await key.once(work)

        async with asgi_client(app) as service:
            header = {"Idempotency-Key": scene.collection}
            answers = [await service.get("/", headers=header) for _ in range(2)]
        for answer in answers:
            assert (answer.status_code, answer.content) == (202, b"\x00\xff")
            assert answer.headers["Location"] == "/there"
            assert answer.headers["Content-Type"] == "image/x-test"
            assert answer.headers["Content-Length"] == "2"

    async def test_streams_are_refused(self, app, scene):
        """A response that has no body yet can't be kept."""
        dependency = idempotency_key(scope=lambda: "me", database=DATABASE)

        @app.get("/")
        async def handler(key: Annotated[CallerKey, Depends(dependency)]) -> None:
            async def work(session):
                return StreamingResponse(iter([b"one"]))

            with pytest.raises(TypeError, match="whole response"):
                await key.once(work)

        async with asgi_client(app) as service:
            answer = await service.get("/", headers={"Idempotency-Key": scene.collection})
        assert answer.status_code == 200
