"""Customers' points, on Motor, with a retry of its author's own.

python examples/migration/before.py "mongodb://localhost/?replicaSet=rs0" --port 8080
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web
from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorCollection
from pymongo.errors import AutoReconnect

CUSTOMERS = web.AppKey("customers", AsyncIOMotorCollection)
PAUSES = (0.1, 0.5, 1.0, 2.0, 4.0)

Customer = Mapping[str, Any]


async def retried(write: Callable[[], Awaitable[Customer]]) -> Customer:
    for pause in PAUSES:
        try:
            return await write()
        except AutoReconnect:
            await asyncio.sleep(pause)
    return await write()


async def add_points(request: web.Request) -> web.Response:
    points: int = (await request.json())["points"]
    customer = await retried(
        lambda: request.app[CUSTOMERS].find_one_and_update(
            {"_id": request.match_info["name"]},
            {"$inc": {"points": points}},
            upsert=True,
            return_document=True,
        )
    )
    return web.json_response({"points": customer["points"]})


async def show_points(request: web.Request) -> web.Response:
    customer = await request.app[CUSTOMERS].find_one({"_id": request.match_info["name"]})
    return web.json_response({"points": 0 if customer is None else customer["points"]})


def make_app(uri: str) -> web.Application:
    async def mongodb(app: web.Application) -> AsyncIterator[None]:
        client = AsyncIOMotorClient(uri, w="majority", journal=True)
        app[CUSTOMERS] = client.get_default_database("aioretry_examples").customers
        yield
        client.close()

    app = web.Application()
    app.cleanup_ctx.append(mongodb)
    app.router.add_post("/customers/{name}/points", add_points)
    app.router.add_get("/customers/{name}/points", show_points)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count customers' points.")
    parser.add_argument("uri", help="of a replica set or a sharded cluster")
    parser.add_argument("--port", type=int, default=8080, help="to listen on (default: 8080)")
    arguments = parser.parse_args()
    web.run_app(make_app(arguments.uri), host="127.0.0.1", port=arguments.port)
