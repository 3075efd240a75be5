"""How services start, what probes are told, and how services end: the same in all frameworks."""

import asyncio

import pytest
from fastapi import FastAPI
from pymongo.errors import OperationFailure
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from aioretry import RetryClient, drain
from aioretry.asgi import ProbesMiddleware, mongodb_lifespan
from tests.services.apps import aiohttp_app, fastapi_app, starlette_app
from tests.services.conftest import aiohttp_client, asgi_client
from tests.services.test_problems import problem_in

WELL = {"status": "ok", "reason": "a server takes writes"}


async def until(service, path, status):
    """Ask until it is answered so; return the answer."""
    async with asyncio.timeout(60):
        while (answer := await service.get(path)).status_code != status:
            await asyncio.sleep(0.02)
    return answer


class TestProbes:
    async def test_all_is_well(self, service):
        """A service that has started is alive and ready; nobody may keep the answer."""
        for path in "/livez", "/readyz":
            answer = await service.get(path)
            assert (answer.status_code, answer.json()["status"]) == (200, "ok")
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Content-Type"] == "application/json"
            assert (await service.head(path)).status_code == 200
        assert answer.json() == WELL

    @pytest.mark.parametrize("time", ["soon", "0.000000001"])
    async def test_no_deadline(self, service, time):
        """Whatever a request says of its time."""
        for path in "/livez", "/readyz":
            answer = await service.get(path, headers={"X-Request-Timeout": time})
            assert answer.status_code == 200

    async def test_other_methods(self, service):
        """They are the application's."""
        assert (await service.post("/readyz")).status_code in {404, 405}

    async def test_without_a_primary(self, scene, start, replica_set):
        """It is ready for some time after a primary is lost, and alive."""
        scene.options["heartbeatFrequencyMS"] = 500
        service = await start()
        killed = await replica_set.primary()
        await replica_set.kill(killed)
        async with asyncio.timeout(60):
            while (answer := (await service.get("/readyz")).json()) == WELL:
                await asyncio.sleep(0.02)
        assert answer["status"] == "ok"
        assert answer["reason"].endswith("s, of 30 s of grace")
        assert (await service.get("/livez")).status_code == 200
        await replica_set.restart(killed)
        async with asyncio.timeout(60):
            while (await service.get("/readyz")).json() != WELL:
                await asyncio.sleep(0.02)


class TestStart:
    async def test_nobody_is_there(self, scene, start, free_port, caplog):
        """It starts all the same, says so, and is not ready."""
        scene.uri = f"mongodb://127.0.0.1:{free_port}/?replicaSet=rs0"
        scene.options.update(serverSelectionTimeoutMS=100, startup_timeout=0.3)
        service = await start()
        answer = await service.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
        assert (await service.get("/livez")).status_code == 200
        assert ["none was ready after 0.3 s" in r.getMessage() for r in caplog.records] == [True]

    async def test_wrong_credentials(self, scene, start):
        """It does not start."""
        scene.options.update(username="nobody", password="wrong")
        with pytest.raises(OperationFailure, match="Authentication failed"):
            await start()

    async def test_unwaited(self, scene, start, free_port):
        """Without a time for it, nothing is waited for."""
        scene.uri = f"mongodb://127.0.0.1:{free_port}/?replicaSet=rs0"
        scene.options["startup_timeout"] = None
        async with asyncio.timeout(5):
            service = await start()
        assert (await service.get("/readyz")).status_code == 503


@pytest.fixture(params=["fastapi", "aiohttp", "starlette"])
def serve(request, scene):
    """What serves the application until the end of a block."""
    match request.param:
        case "fastapi":
            return lambda: asgi_client(fastapi_app(scene))
        case "starlette":
            return lambda: asgi_client(starlette_app(scene))
        case _:
            return lambda: aiohttp_client(aiohttp_app(scene))


class TestEnd:
    async def test_what_waits_is_sent(self, scene, serve, stored):
        """What handlers have left behind is done before the client is closed."""
        writes = []

        async def work(collection, session):
            together = collection.coalesced()
            writes.extend(together.insert_one({"n": n}) for n in range(2000))

        scene.work = work
        async with serve() as service:
            assert (await service.post("/optional")).status_code == 201
        assert all(write.done() and write.exception() is None for write in writes)
        assert stored.count_documents({"n": {"$exists": True}}) == len(writes)

    async def test_too_late(self, scene, service, stored):
        """A request that comes meanwhile is told to go elsewhere; nothing is written for it."""
        clients = []

        async def work(collection, session):
            clients.append(collection.database.client)

        scene.work = work
        await service.post("/optional")
        assert (await drain(clients[0])).is_complete
        answer = await service.post("/write")
        assert problem_in(answer) == (503, "draining", "not applied")
        assert answer.headers["Retry-After"] == "1"
        assert stored.count_documents({}) == 0
        answer = await service.get("/readyz")
        assert (answer.status_code, answer.json()["reason"]) == (
            503,
            "the client is being drained",
        )


class TestMounted:
    async def test_in_another_application(self, scene):
        """Below a root path, the probes are where the application is."""
        inner = Starlette(middleware=[Middleware(ProbesMiddleware)])
        outer = Starlette(routes=[Mount("/api", inner)], lifespan=mongodb_lifespan(scene.uri))
        async with asgi_client(outer) as service:
            assert (await service.get("/api/readyz")).status_code == 200
            assert (await service.get("/readyz")).status_code == 404

    async def test_without_a_client(self):
        """A lifespan that was not run is a reason."""
        app = FastAPI()
        app.add_middleware(ProbesMiddleware, live="/alive")
        async with asgi_client(app) as service:
            answer = await service.get("/alive")
        assert (answer.status_code, answer.json()["reason"]) == (503, "there is no client")

    async def test_a_client_from_elsewhere(self, scene):
        """Frameworks that keep their state elsewhere say where the client is."""
        async with RetryClient(scene.uri) as client:
            app = FastAPI()
            app.add_middleware(ProbesMiddleware, client=lambda scope: client)
            async with asgi_client(app) as service:
                await until(service, "/readyz", 200)
                await drain(client)
                answer = await service.get("/readyz")
                assert (answer.status_code, answer.json()["reason"]) == (
                    503,
                    "the client is being drained",
                )
        with pytest.raises(TypeError, match="client"):
            ProbesMiddleware(app, client=client)
