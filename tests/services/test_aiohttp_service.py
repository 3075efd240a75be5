"""What is aiohttp's own: cleanup contexts, streams, sub-applications, cancelled handlers."""

import asyncio

import httpx
import pytest
from aiohttp import web

from aioretry import deadline
from aioretry.aiohttp import (
    CLIENT,
    KEYS,
    deadline_middleware,
    idempotency_key,
    mongodb_ctx,
    problem_middleware,
)
from aioretry.idempotent import Keys
from tests.services.apps import DATABASE
from tests.services.conftest import aiohttp_client

SECRET = b"0123456789abcdef"


@pytest.fixture
def app(scene) -> web.Application:
    """An application with a client, deadlines and problem details."""
    limit_time = deadline_middleware(default=30.0)
    app = web.Application(middlewares=[limit_time, problem_middleware])
    app.cleanup_ctx.append(mongodb_ctx(scene.uri, client=scene.client, keys=Keys(SECRET, "tests")))
    return app


async def me(request: web.Request) -> str:
    """Who calls."""
    return "me"


async def test_client_and_keys(app, scene):
    """They are there from start to end, for sub-applications too."""

    async def handler(request):
        of_this, of_all = request.app.get(CLIENT), request.config_dict[CLIENT]
        await of_all.admin.command("ping")
        return web.json_response([of_this is None, isinstance(of_all, scene.client)])

    inner = web.Application()
    inner.router.add_get("/", handler)
    app.add_subapp("/inner", inner)
    async with aiohttp_client(app) as service:
        assert isinstance(app[KEYS], Keys)
        assert (await service.get("/inner/")).json() == [True, True]


async def test_error_in_a_stream(app, scene, faults):
    """What is out is out: the stream breaks off, and nothing of a problem is in it."""

    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        async with deadline(0.5):
            await request.app[CLIENT][DATABASE][scene.collection].insert_one({})

    app.router.add_get("/", handler)
    async with aiohttp_client(app) as service:
        # On a busy machine the time may be over before there is a connection.
        faults.hang("insert", times=None, must_fire=False)
        async with service.stream("GET", "/") as answer:
            parts = answer.aiter_raw()
            assert (answer.status_code, await anext(parts)) == (200, b"one")
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(parts)


async def test_a_stream_that_takes_longer():
    """A response that has begun is not cancelled."""

    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        with deadline(None) as limit:
            await asyncio.sleep(limit.remaining() + 0.1)
        await response.write(b"two")
        return response

    app = web.Application(middlewares=[deadline_middleware(default=0.3, grace=0.001)])
    app.router.add_get("/", handler)
    async with aiohttp_client(app) as service:
        assert (await service.get("/")).content == b"onetwo"


async def test_http_exceptions_pass(app):
    """What aiohttp raises for its own answers stays so."""

    async def handler(request):
        raise web.HTTPGone(text="gone")

    app.router.add_get("/", handler)
    async with aiohttp_client(app) as service:
        answer = await service.get("/")
    assert (answer.status_code, answer.text) == (410, "gone")


async def test_client_that_goes_away(app, scene, stored, free_port):
    """A handler that is cancelled in its work leaves the key usable, and nothing applied."""
    entered, cancelled, opened = asyncio.Event(), asyncio.Event(), asyncio.Event()
    key_of = idempotency_key(scope=me, database=DATABASE)

    async def handler(request):
        key = await key_of(request)

        async def work(session):
            answer = await scene.work(request.app[CLIENT][DATABASE][scene.collection], session)
            entered.set()
            await opened.wait()
            return answer

        try:
            return await key.once(work)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    app.router.add_post("/", handler)
    headers = {"Idempotency-Key": scene.collection}
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", free_port)
        await site.start()
        address = f"http://127.0.0.1:{free_port}"
        async with httpx.AsyncClient(base_url=address, timeout=120) as service:
            first = asyncio.create_task(service.post("/", headers=headers))
            await entered.wait()
            first.cancel()
            await cancelled.wait()
            opened.set()
            answers = [await service.post("/", headers=headers) for _ in range(2)]
    finally:
        await runner.cleanup()
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content
    assert stored.count_documents({}) == 1


async def test_responses(app, scene):
    """A response that the work makes is kept whole; one that has no body yet is refused."""
    key_of = idempotency_key(scope=me, database=DATABASE)

    async def whole(request):
        async def work(session):
            return web.Response(body=b"\x00\xff", status=202, headers={"Location": "/there"})

        return await (await key_of(request)).once(work)

    async def stream(request):
        async def work(session):
            return web.StreamResponse()

        with pytest.raises(TypeError, match="text or bytes"):
            await (await key_of(request)).once(work)
        return web.Response()

    app.router.add_get("/whole", whole)
    app.router.add_get("/stream", stream)
    async with aiohttp_client(app) as service:
        header = {"Idempotency-Key": scene.collection}
        answers = [await service.get("/whole", headers=header) for _ in range(2)]
        other = {"Idempotency-Key": f"{scene.collection}-2"}
        assert (await service.get("/stream", headers=other)).status_code == 200
    for answer in answers:
        assert (answer.status_code, answer.content) == (202, b"\x00\xff")
        assert answer.headers["Location"] == "/there"
        assert answer.headers["Content-Length"] == "2"


async def test_without_keys(scene):
    """Keys that were forgotten are asked for."""
    app = web.Application()
    app.cleanup_ctx.append(mongodb_ctx(scene.uri))
    key_of = idempotency_key(scope=me, database=DATABASE)

    async def handler(request):
        with pytest.raises(RuntimeError, match="keys=Keys"):
            await key_of(request)
        return web.Response()

    app.router.add_get("/", handler)
    async with aiohttp_client(app) as service:
        assert (await service.get("/")).status_code == 200


def test_bad_arguments():
    """They are refused at once, by name."""
    with pytest.raises(TypeError, match="uri"):
        mongodb_ctx(None)
    with pytest.raises(TypeError, match="keys"):
        mongodb_ctx("mongodb://localhost", keys=SECRET)
    with pytest.raises(ValueError, match="default"):
        deadline_middleware(default=-1.0)
    with pytest.raises(TypeError, match="scope"):
        idempotency_key(scope=None)
