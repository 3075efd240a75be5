"""An aiohttp service that keeps events and counts them; those of one moment are stored together.

python examples/event_counter/event_counter.py "mongodb://localhost/?replicaSet=rs0" --port 8080

curl -d '{"kind": "login"}' localhost:8080/events
curl localhost:8080/events
"""

import argparse
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from bson import ObjectId

from aioretry import RetryMotorCollection
from aioretry.aiohttp import (
    CLIENT,
    ProblemError,
    deadline_middleware,
    mongodb_ctx,
    problem_middleware,
)


def events_of(request: web.Request) -> RetryMotorCollection[dict[str, Any]]:
    return request.app[CLIENT].get_default_database("aioretry_examples").events


async def kind_in(request: web.Request) -> str:
    try:
        kind = (await request.json())["kind"]
    except (ValueError, LookupError, TypeError):
        kind = None
    if not isinstance(kind, str) or not 0 < len(kind) <= 100 or not kind.isprintable():
        raise ProblemError(400, "bad_event", 'an event is {"kind": "a short text"}')
    return kind


async def take(request: web.Request) -> web.Response:
    event = {"_id": ObjectId(), "kind": await kind_in(request), "at": datetime.now(UTC)}
    # Alone it is as fast as any insert; when many come at once, they travel in one command.
    await events_of(request).coalesced().insert_one(event)
    return web.json_response({"id": str(event["_id"])}, status=201)


async def count(request: web.Request) -> web.Response:
    by_kind = [{"$group": {"_id": "$kind", "number": {"$sum": 1}}}]
    found = await events_of(request).aggregate(by_kind).to_list(None)
    return web.json_response({group["_id"]: group["number"] for group in found})


def make_app(uri: str) -> web.Application:
    # A request has 20 seconds, which is longer than a failover. What the database raises becomes an
    # answer, as 504 after them, which says whether the event may be stored.
    app = web.Application(middlewares=[deadline_middleware(default=20.0), problem_middleware])
    app.cleanup_ctx.append(mongodb_ctx(uri, w="majority", journal=True))
    app.router.add_post("/events", take)
    app.router.add_get("/events", count)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Keep events, and count them.")
    parser.add_argument("uri", help="of a replica set or a sharded cluster")
    parser.add_argument("--port", type=int, default=8080, help="to listen on (default: 8080)")
    arguments = parser.parse_args()
    web.run_app(make_app(arguments.uri), host="127.0.0.1", port=arguments.port)
