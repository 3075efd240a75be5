"""FastAPI where it is easily got wrong: forms, empty answers, websockets, late responses."""

import asyncio
import io
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, Request, Response, UploadFile, WebSocket
from fastapi.responses import JSONResponse
from pymongo.errors import AutoReconnect
from starlette.datastructures import FormData

from aioretry import DeadlineExceeded, RetryClient
from aioretry.fastapi import (
    CallerKey,
    DeadlineMiddleware,
    add_problem_handlers,
    idempotency_key,
    mongodb_lifespan,
)
from aioretry.idempotent import Keys
from tests.services.apps import DATABASE
from tests.services.conftest import asgi_client

SECRET = b"0123456789abcdef"
KEY = (b"idempotency-key", b"one")
FORM = (b"content-type", b"multipart/form-data; boundary=x")
HTTP = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [KEY]}

of_me = idempotency_key(scope=lambda: "me", database=DATABASE)
MyKey = Annotated[CallerKey, Depends(of_me)]


@pytest.fixture
def app(scene) -> FastAPI:
    """An application with a client and problem details."""
    app = FastAPI(
        lifespan=mongodb_lifespan(scene.uri, client=scene.client, keys=Keys(SECRET, "tests"))
    )
    add_problem_handlers(app)
    return app


async def receive():
    """A request without a body."""
    return {"type": "http.request", "body": b""}


class FormRequest(Request):
    """A request whose form was read before."""

    fields: FormData

    def form(self, **limits):
        """The form as it was read."""
        return asyncio.sleep(0, self.fields)


async def stands_for(request: Request) -> bytes:
    """What the key of a request stands for."""
    client = RetryClient("mongodb://127.0.0.1:1/?connect=false")
    request.state.mongodb, request.state.mongodb_keys = client, Keys(SECRET, "tests")
    try:
        return (await of_me(request, "me"))._request
    finally:
        client.close()


class TestWhatAKeyStandsFor:
    async def test_path_and_query(self):
        """Each path and query is one of its own, whatever their bytes are."""
        parts = [
            {"path": "/a#b"},
            {"path": "/a#c"},
            {"path": "/a?b"},
            {"path": "/a", "query_string": b"b"},
            {"path": "/a", "query_string": b"\xff"},
            {"path": "/a", "query_string": b"\xfe"},
        ]
        found = [await stands_for(Request({**HTTP, **part}, receive)) for part in parts]
        assert len(set(found)) == len(parts)
        assert found[-1] == await stands_for(Request({**HTTP, **parts[-1]}, receive))

    async def test_forms(self):
        """A form that was read before stands for its fields, and its files' contents."""

        async def of(*fields):
            request = FormRequest({**HTTP, "headers": [KEY, FORM]}, receive)
            async for _ in request.stream():
                pass
            request.fields = FormData(fields)
            return await stands_for(request)

        def file(content):
            return "f", UploadFile(io.BytesIO(content), filename="file")

        first, *others = found = [
            await of(("a", "1")),
            await of(("a", "2")),
            await of(("a", "1"), ("a", "2")),
            await of(file(b"one")),
            await of(file(b"two")),
        ]
        assert len(set(found)) == len(found)
        assert first == await of(("a", "1"))
        assert others[2] == await of(file(b"one"))

    async def test_a_route_with_a_form(self, app, scene):
        """A form and a file in a route, sent twice, with another boundary each time."""
        pytest.importorskip("python_multipart")
        from fastapi import Form

        @app.post("/")
        async def handler(key: MyKey, name: Annotated[str, Form()], file: UploadFile) -> None:
            async def work(session):
                return name + (await file.read()).decode()

            return await key.once(work)

        header = {"Idempotency-Key": scene.collection}
        async with asgi_client(app) as service:
            answers = [
                await service.post(
                    "/", headers=header, data={"name": "a"}, files={"file": ("f", content)}
                )
                for content in (b"1", b"1", b"2")
            ]
        assert [answer.status_code for answer in answers] == [200, 200, 422]
        assert [answer.json() for answer in answers[:2]] == ["a1", "a1"]
        assert answers[2].json()["reason"] == "key_reused"

    async def test_a_body_that_is_gone(self):
        """A stream that somebody has read can't be looked at; that is said."""
        request = Request(HTTP, receive)
        async for _ in request.stream():
            pass
        with pytest.raises(RuntimeError, match="Stream consumed"):
            await stands_for(request)


class TestAnswers:
    async def test_without_a_body(self, app, scene):
        """With 204 nothing is sent but the header, whatever the work returns."""

        @app.delete("/{what}", status_code=204)
        async def handler(what: str, key: MyKey) -> Response:
            async def work(session):
                return JSONResponse("text", 204, {"X-Mine": "1"}) if what == "response" else None

            return await key.once(work, status_code=204)

        async with asgi_client(app) as service:
            for what in "response", "nothing":
                header = {"Idempotency-Key": f"{scene.collection}-{what}"}
                for _ in range(2):
                    answer = await service.delete(f"/{what}", headers=header)
                    assert (answer.status_code, answer.content) == (204, b"")
                    assert ("X-Mine" in answer.headers) == (what == "response")
                    assert "Content-Length" not in answer.headers
                    assert "Content-Type" not in answer.headers

    async def test_groups(self, app):
        """What a task group raises is answered like the error in it."""

        async def late():
            raise DeadlineExceeded("late")

        async def wrong():
            raise ValueError

        @app.get("/late")
        async def of_one_kind() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(late())

        @app.get("/wrong")
        async def of_another() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(wrong())

        async with asgi_client(app) as service:
            answer = await service.get("/late")
            assert (answer.status_code, answer.json()["reason"]) == (504, "deadline_exceeded")
            answer = await service.get("/wrong")
            assert (answer.status_code, answer.text) == (500, "Internal Server Error")

    async def test_websockets(self, app):
        """An error in a websocket is not answered as a request's would be."""

        @app.websocket("/")
        async def handler(websocket: WebSocket) -> None:
            await websocket.accept()
            raise AutoReconnect("lost")

        sent = []

        async def connect():
            return {"type": "websocket.connect"}

        async def send(event):
            sent.append(event["type"])

        scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": []}
        with pytest.raises(AutoReconnect, match="lost"):
            await app(scope, connect, send)
        assert sent == ["websocket.accept"]

    async def test_a_response_that_begins_too_late(self):
        """What begins to answer when it is cancelled is broken off, and not answered again."""
        sent = []

        async def late(scope, receive, send):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await send({"type": "http.response.start", "status": 500, "headers": []})
                raise

        async def send(event):
            sent.append(event["type"])

        limited = DeadlineMiddleware(late, default=0.05, grace=0.05)
        with pytest.raises(TimeoutError, match="answered then"):
            await limited(HTTP, receive, send)
        assert sent == ["http.response.start"]
