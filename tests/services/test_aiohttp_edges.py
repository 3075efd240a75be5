"""aiohttp where it is easily got wrong: forms, cookies, websockets, own answers, late responses."""

import asyncio

import aiohttp
import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pymongo.errors import PyMongoError

from aioretry import DeadlineExceeded, deadline
from aioretry.aiohttp import (
    CLIENT,
    deadline_middleware,
    idempotency_key,
    mongodb_ctx,
    problem_middleware,
)
from aioretry.idempotent import Keys
from tests.services.apps import DATABASE, caller
from tests.services.conftest import aiohttp_client

key_of = idempotency_key(scope=caller, database=DATABASE)


@pytest.fixture
def app(scene) -> web.Application:
    """An application with a client and problem details."""
    app = web.Application(middlewares=[problem_middleware])
    app.cleanup_ctx.append(
        mongodb_ctx(scene.uri, client=scene.client, keys=Keys(b"0123456789abcdef", "tests"))
    )
    return app


@pytest.fixture
def header(scene) -> dict[str, str]:
    """A key of the test's own."""
    return {"Idempotency-Key": scene.collection}


async def test_own_answers_to_errors(app, scene, faults):
    """What a handler raises in the place of the database's error stays what it is."""

    async def handler(request):
        collection = request.app[CLIENT][DATABASE][scene.collection]
        try:
            await collection.insert_one({})
        except PyMongoError:
            raise web.HTTPConflict(text="mine") from None

    app.router.add_post("/", handler)
    async with aiohttp_client(app) as service:
        faults.write_concern_error(64, "insert", times=None)
        answer = await service.post("/")
    assert (answer.status_code, answer.text) == (409, "mine")


async def test_groups(app):
    """What a task group raises is answered like the error in it."""

    async def late():
        raise DeadlineExceeded("late")

    async def handler(request):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(late())

    app.router.add_get("/", handler)
    async with aiohttp_client(app) as service:
        answer = await service.get("/")
    assert (answer.status_code, answer.json()["reason"]) == (504, "deadline_exceeded")


async def test_websockets():
    """A websocket has no deadline, and is not cancelled."""

    async def handler(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        with deadline(None) as limit:
            await socket.send_str(repr(limit))
        return socket

    app = web.Application(middlewares=[deadline_middleware(default=30.0)])
    app.router.add_get("/", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        async with session.ws_connect(server.make_url("/")) as socket:
            assert await socket.receive_str() == "None"


@pytest.mark.parametrize("form_first", [True, False], ids=["form first", "key first"])
async def test_forms(app, header, form_first):
    """A form stands for its fields and files, however it is sent, and can be read as well."""

    async def handler(request):
        if form_first:
            await request.post()
        key = await key_of(request)
        form = await request.post()

        async def work(session):
            return form["name"] + form["file"].file.read().decode()

        return await key.once(work)

    app.router.add_post("/", handler)
    async with aiohttp_client(app) as service:
        answers = [
            await service.post(
                "/", headers=header, data={"name": name}, files={"file": ("f", content)}
            )
            for name, content in (("a", b"1"), ("a", b"1"), ("a", b"2"), ("b", b"1"))
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 422, 422]
    assert [answer.json() for answer in answers[:2]] == ["a1", "a1"]
    assert {answer.json()["reason"] for answer in answers[2:]} == {"key_reused"}


async def test_a_form_that_is_none(app, header):
    """A form that can't be read is the caller's fault."""

    async def handler(request):
        await key_of(request)

    app.router.add_post("/", handler)
    form = {**header, "Content-Type": "multipart/form-data; boundary=x"}
    async with aiohttp_client(app) as service:
        answer = await service.post("/", headers=form, content=b"something else\r\n")
    assert (answer.status_code, answer.json()["reason"]) == (400, "bad_form")


async def test_a_body_that_is_gone(app, header):
    """A key can't stand for a body of which something was read; nobody is told that it does."""

    async def handler(request):
        await request.content.read(3)
        with pytest.raises(RuntimeError, match="read already"):
            await key_of(request)
        return web.Response()

    async def whole(request):
        assert await request.text() == "abcdef"
        await key_of(request)
        return web.Response()

    app.router.add_post("/", handler)
    app.router.add_post("/whole", whole)
    async with aiohttp_client(app) as service:
        for path in "/", "/whole":
            answer = await service.post(path, headers=header, content=b"abcdef")
            assert answer.status_code == 200


async def test_callers_that_are_no_text(app, header, scene, stored):
    """Header bytes that are no UTF-8 are a caller like any other."""

    async def handler(request):
        key = await key_of(request)
        collection = request.app[CLIENT][DATABASE][scene.collection]
        return await key.once(lambda session: scene.work(collection, session))

    app.router.add_post("/", handler)
    key = [(b"Idempotency-Key", header["Idempotency-Key"].encode())]
    async with aiohttp_client(app) as service:
        for caller_ in b"\xff", b"\xfe", b"\xff":
            answer = await service.post("/", headers=[*key, (b"X-Caller", caller_)])
            assert answer.status_code == 200
    assert stored.count_documents({}) == 2


async def test_cookies(app, header):
    """Cookies that the work sets are in each answer."""

    async def handler(request):
        async def work(session):
            response = web.json_response("text")
            response.set_cookie("one", "1", httponly=True)
            response.set_cookie("two", "2")
            return response

        return await (await key_of(request)).once(work)

    app.router.add_post("/", handler)
    async with aiohttp_client(app) as service:
        for _ in range(2):
            answer = await service.post("/", headers=header)
            cookies = answer.headers.get_list("Set-Cookie")
            assert [cookie.partition(";")[0] for cookie in cookies] == ["one=1", "two=2"]
            assert "HttpOnly" in cookies[0]


async def test_without_a_body(app, header):
    """With 204 nothing is sent but the header, whatever the work returns."""

    async def handler(request):
        async def work(session):
            return None

        return await (await key_of(request)).once(work, status=204)

    app.router.add_delete("/", handler)
    async with aiohttp_client(app) as service:
        for _ in range(2):
            answer = await service.delete("/", headers=header)
            assert (answer.status_code, answer.content) == (204, b"")
            assert "Content-Type" not in answer.headers


async def test_a_response_that_begins_too_late():
    """What begins to answer when it is cancelled is broken off, and not answered again."""

    async def handler(request):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"one")
            raise

    limit_time = deadline_middleware(default=0.05, grace=0.05)
    app = web.Application(middlewares=[problem_middleware, limit_time])
    app.router.add_get("/", handler)
    async with aiohttp_client(app) as service:
        with pytest.raises(httpx.RemoteProtocolError):
            await service.get("/")


ASKING = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_asking_for_a_websocket_is_no_way_round_the_deadline(method):
    """A request that only says that it wants a websocket ends when its time is over."""
    cancelled = []

    async def handler(request):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.method)
            raise

    app = web.Application(middlewares=[deadline_middleware(default=0.2, grace=0.1)])
    app.router.add_route(method, "/", handler)
    async with aiohttp_client(app) as service:
        answer = await service.request(method, "/", headers=ASKING, timeout=10)
    assert (504, [method]) == (answer.status_code, cancelled)


async def test_a_post_that_asks_for_a_websocket_has_a_deadline():
    """Nobody can begin a websocket by anything but GET, so that such a request is as any other."""

    async def handler(request):
        with deadline(None) as limit:
            return web.json_response(limit is not None and limit.is_limited)

    app = web.Application(middlewares=[deadline_middleware(default=30.0)])
    app.router.add_post("/", handler)
    async with aiohttp_client(app) as service:
        assert True is (await service.post("/", headers=ASKING)).json()


async def test_a_websocket_outlives_the_time():
    """A websocket that was begun in time goes on when that is over."""
    loop = asyncio.get_running_loop()
    ended = []

    async def handler(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        over = asyncio.Event()
        loop.call_later(0.6, over.set)  # twice the time and the grace
        await over.wait()
        ended.append(await socket.receive_str())
        return socket

    app = web.Application(middlewares=[deadline_middleware(default=0.2, grace=0.1)])
    app.router.add_get("/", handler)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        async with session.ws_connect(server.make_url("/")) as socket:
            await socket.send_str("a word")
            await socket.receive()
    assert ["a word"] == ended
