"""Services that are stopped under load: each order is written, and a note of it later on."""

import asyncio
import os
from typing import Any

from aiohttp import web
from fastapi import FastAPI, Request

from aioretry import RetryMotorCollection
from aioretry.aiohttp import CLIENT, add_probes, mongodb_ctx, problem_middleware
from aioretry.fastapi import ProbesMiddleware, add_problem_handlers, mongodb_lifespan
from tests.clients import ours

_notes: set[asyncio.Future[Any]] = set()


async def _take(client: Any, order: str) -> None:
    collection: RetryMotorCollection[Any] = client.aioretry_tests[os.environ["COLLECTION"]]
    await collection.insert_one({"_id": order})
    # No request waits for it; with the asyncio client it has begun in the loop's next turn only.
    note = asyncio.ensure_future(collection.coalesced().insert_one({"_id": f"note of {order}"}))
    _notes.add(note)
    note.add_done_callback(_notes.discard)


def _options() -> dict[str, Any]:
    return {"uri": os.environ["MONGODB_URI"], "client": ours(), "w": "majority"}


def fastapi_service() -> FastAPI:
    """The service in FastAPI."""
    app = FastAPI(lifespan=mongodb_lifespan(**_options()))
    add_problem_handlers(app)
    app.add_middleware(ProbesMiddleware)

    @app.post("/orders/{order}", status_code=201)
    async def take(request: Request, order: str) -> None:
        await _take(request.state.mongodb, order)

    return app


async def aiohttp_service() -> web.Application:
    """The service in aiohttp."""
    app = web.Application(middlewares=[problem_middleware])
    app.cleanup_ctx.append(mongodb_ctx(**_options()))
    add_probes(app)

    async def take(request: web.Request) -> web.Response:
        await _take(app[CLIENT], request.match_info["order"])
        return web.Response(status=201)

    app.router.add_post("/orders/{order}", take)
    return app
