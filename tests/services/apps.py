"""One small service, in FastAPI, in aiohttp and in Starlette, with the same routes."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
from aiohttp import web
from fastapi import Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

import aioretry.aiohttp as for_aiohttp
import aioretry.asgi as for_asgi
import aioretry.fastapi as for_fastapi
from aioretry import RetryMotorCollection, RetryMotorDatabase, deadline
from aioretry.idempotent import Keys

DATABASE = "aioretry_tests"
PAGE = "https://example.com/problems"


@dataclass
class Scene:
    """What a service does, as far as tests have a say in it."""

    collection: str
    work: Callable[[RetryMotorCollection, Any], Awaitable[Any]]
    """The work of `POST /once`."""

    uri: str = ""
    client: type[Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    default: float = 30.0
    grace: float = 20.0

    def keys(self) -> Keys:
        """Keys of one process."""
        return Keys(b"0123456789abcdef", "tests")


async def caller(request: Any) -> str:
    """Who calls."""
    return request.headers.get("X-Caller", "somebody")


async def increment(collection: RetryMotorCollection) -> None:
    """A write that has secrets."""
    await collection.update_one({"_id": "secret"}, {"$inc": {"secret": 1}}, upsert=True)


def fastapi_app(scene: Scene) -> FastAPI:
    """The service in FastAPI."""
    app = FastAPI(
        lifespan=for_fastapi.mongodb_lifespan(
            scene.uri, client=scene.client, keys=scene.keys(), **scene.options
        )
    )
    app.add_middleware(
        for_fastapi.DeadlineMiddleware,
        default=scene.default,
        maximum=60.0,
        grace=scene.grace,
        documentation=PAGE,
    )
    app.add_middleware(for_fastapi.ProbesMiddleware)
    for_fastapi.add_problem_handlers(app, documentation=PAGE)

    async def fastapi_caller(request: Request) -> str:
        return await caller(request)

    async def collection_of(
        database: Annotated[RetryMotorDatabase, Depends(for_fastapi.database(DATABASE))],
    ) -> RetryMotorCollection:
        return database[scene.collection]

    collection_type = Annotated[RetryMotorCollection, Depends(collection_of)]
    dependency = for_fastapi.idempotency_key(scope=fastapi_caller, database=DATABASE)
    key_type = Annotated[for_fastapi.CallerKey, Depends(dependency)]
    optional = for_fastapi.idempotency_key(scope=fastapi_caller, database=DATABASE, required=False)

    @app.get("/left")
    async def left() -> float:
        with deadline(None) as limit:
            return limit.remaining()

    @app.post("/write")
    async def write(collection: collection_type) -> None:
        await increment(collection)

    @app.get("/read")
    async def read(collection: collection_type) -> None:
        await collection.find_one({"_id": "secret"})

    @app.post("/duplicate")
    async def duplicate(collection: collection_type) -> None:
        for _ in range(2):
            await collection.insert_one({"_id": "secret"})

    @app.get("/forever")
    async def forever() -> None:
        await anyio.sleep_forever()

    @app.post("/once")
    async def once(collection: collection_type, key: key_type) -> None:
        return await key.once(lambda session: scene.work(collection, session), status_code=201)

    @app.post("/optional")
    async def maybe(
        collection: collection_type,
        key: Annotated[for_fastapi.CallerKey, Depends(optional)],
    ) -> None:
        return await key.once(lambda session: scene.work(collection, session), status_code=201)

    @app.post("/counted")
    async def counted(collection: collection_type, key: key_type) -> int:
        async with collection.operation(key=key) as op:
            after = await op.find_one_and_update(
                {"_id": "count"}, {"$inc": {"n": 1}}, upsert=True, return_document=True
            )
        return after["n"]

    @app.post("/counted-optional")
    async def counted_optional(
        collection: collection_type,
        key: Annotated[for_fastapi.CallerKey, Depends(optional)],
    ) -> int:
        async with collection.operation(key=key) as op:
            after = await op.find_one_and_update(
                {"_id": "count"}, {"$inc": {"n": 1}}, upsert=True, return_document=True
            )
        return after["n"]

    return app


def aiohttp_app(scene: Scene) -> web.Application:
    """The service in aiohttp."""
    limit_time = for_aiohttp.deadline_middleware(
        default=scene.default, maximum=60.0, grace=scene.grace
    )
    app = web.Application(middlewares=[for_aiohttp.problem_middleware, limit_time])
    app.cleanup_ctx.append(
        for_aiohttp.mongodb_ctx(scene.uri, client=scene.client, keys=scene.keys(), **scene.options)
    )
    for_aiohttp.add_probes(app)
    for_aiohttp.document_problems(app, PAGE)
    key_of = for_aiohttp.idempotency_key(scope=caller, database=DATABASE)
    optional_key_of = for_aiohttp.idempotency_key(scope=caller, database=DATABASE, required=False)

    def collection_of(request: web.Request) -> RetryMotorCollection:
        return request.app[for_aiohttp.CLIENT][DATABASE][scene.collection]

    async def left(request: web.Request) -> web.Response:
        with deadline(None) as limit:
            return web.json_response(limit.remaining())

    async def write(request: web.Request) -> web.Response:
        await increment(collection_of(request))
        return web.json_response(None)

    async def read(request: web.Request) -> web.Response:
        await collection_of(request).find_one({"_id": "secret"})
        return web.json_response(None)

    async def duplicate(request: web.Request) -> web.Response:
        for _ in range(2):
            await collection_of(request).insert_one({"_id": "secret"})
        return web.json_response(None)

    async def forever(request: web.Request) -> web.Response:
        await anyio.sleep_forever()

    async def once(request: web.Request) -> web.Response:
        key = await key_of(request)
        return await key.once(
            lambda session: scene.work(collection_of(request), session), status=201
        )

    async def maybe(request: web.Request) -> web.Response:
        key = await optional_key_of(request)
        return await key.once(
            lambda session: scene.work(collection_of(request), session), status=201
        )

    async def counted(request: web.Request) -> web.Response:
        key = await key_of(request)
        async with collection_of(request).operation(key=key) as op:
            after = await op.find_one_and_update(
                {"_id": "count"}, {"$inc": {"n": 1}}, upsert=True, return_document=True
            )
        return web.json_response(after["n"])

    async def counted_optional(request: web.Request) -> web.Response:
        key = await optional_key_of(request)
        async with collection_of(request).operation(key=key) as op:
            after = await op.find_one_and_update(
                {"_id": "count"}, {"$inc": {"n": 1}}, upsert=True, return_document=True
            )
        return web.json_response(after["n"])

    app.router.add_get("/left", left)
    app.router.add_post("/write", write)
    app.router.add_get("/read", read)
    app.router.add_post("/duplicate", duplicate)
    app.router.add_get("/forever", forever)
    app.router.add_post("/once", once)
    app.router.add_post("/optional", maybe)
    app.router.add_post("/counted", counted)
    app.router.add_post("/counted-optional", counted_optional)
    return app


def starlette_app(scene: Scene) -> Starlette:
    """The service in Starlette, by what any framework on ASGI can use."""

    async def asgi_caller(scope: Any) -> str:
        return await caller(Request(scope))

    key_of = for_asgi.idempotency_key(scope=asgi_caller, database=DATABASE)
    optional_key_of = for_asgi.idempotency_key(scope=asgi_caller, database=DATABASE, required=False)

    def collection_of(request: Request) -> RetryMotorCollection:
        return request.state.mongodb[DATABASE][scene.collection]

    async def left(request: Request) -> JSONResponse:
        with deadline(None) as limit:
            return JSONResponse(limit.remaining())

    async def write(request: Request) -> JSONResponse:
        await increment(collection_of(request))
        return JSONResponse(None)

    async def read(request: Request) -> JSONResponse:
        await collection_of(request).find_one({"_id": "secret"})
        return JSONResponse(None)

    async def duplicate(request: Request) -> JSONResponse:
        for _ in range(2):
            await collection_of(request).insert_one({"_id": "secret"})
        return JSONResponse(None)

    async def forever(request: Request) -> JSONResponse:
        await anyio.sleep_forever()

    def once(asked: Any) -> Any:
        async def answer(request: Request) -> Any:
            key = await asked(request.scope, await request.body())
            return await key.once(
                lambda session: scene.work(collection_of(request), session), status=201
            )

        return answer

    def counted(asked: Any) -> Any:
        async def answer(request: Request) -> Any:
            key = await asked(request.scope, await request.body())
            async with collection_of(request).operation(key=key) as op:
                after = await op.find_one_and_update(
                    {"_id": "count"}, {"$inc": {"n": 1}}, upsert=True, return_document=True
                )
            return JSONResponse(after["n"])

        return answer

    return Starlette(
        lifespan=for_asgi.mongodb_lifespan(
            scene.uri, client=scene.client, keys=scene.keys(), **scene.options
        ),
        middleware=[
            Middleware(for_asgi.ProbesMiddleware),
            Middleware(for_asgi.ProblemMiddleware, documentation=PAGE),
            Middleware(
                for_asgi.DeadlineMiddleware,
                default=scene.default,
                maximum=60.0,
                grace=scene.grace,
                documentation=PAGE,
            ),
        ],
        routes=[
            Route("/left", left),
            Route("/write", write, methods=["POST"]),
            Route("/read", read),
            Route("/duplicate", duplicate, methods=["POST"]),
            Route("/forever", forever),
            Route("/once", once(key_of), methods=["POST"]),
            Route("/optional", once(optional_key_of), methods=["POST"]),
            Route("/counted", counted(key_of), methods=["POST"]),
            Route("/counted-optional", counted(optional_key_of), methods=["POST"]),
        ],
    )
