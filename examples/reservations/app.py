"""Seats of shows, each reserved once: Starlette, and PyMongo's own asyncio client.

uvicorn examples.reservations.app:app --timeout-graceful-shutdown 26

MONGODB_URI and BOX_OFFICE_SECRET are in the environment. Spans and metrics go where OpenTelemetry
is told to send them, as by `opentelemetry-instrument`.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bson import ObjectId
from pymongo import UpdateOne
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.responses import Response as Answer
from starlette.routing import Route

from aioretry import run_transaction
from aioretry.asgi import (
    DeadlineMiddleware,
    ProbesMiddleware,
    ProblemError,
    ProblemMiddleware,
    Response,
    idempotency_key,
    mongodb_lifespan,
)
from aioretry.idempotent import Keys
from aioretry.pymongo import AsyncRetryClient, AsyncRetryClientSession, AsyncRetryDatabase
from aioretry.telemetry.opentelemetry import OpenTelemetryHook

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0")
# All processes need the same secret, which nobody else may know.
SECRET = os.environ["BOX_OFFICE_SECRET"].encode()
PROBLEMS = "https://box-office.example.org/problems"  # a page that explains them
MOST_SEATS = 10_000


async def customer(scope: Any) -> str:
    """Who calls; a real box office knows it from a login."""
    caller: bytes = dict(scope["headers"]).get(b"x-customer", b"anonymous")
    return caller.decode("latin-1")


keys = Keys(SECRET, "box office")
hook = OpenTelemetryHook()
mongodb = mongodb_lifespan(URI, client=AsyncRetryClient, keys=keys, hooks=[hook], w="majority")
key_of = idempotency_key(scope=customer, database="box_office")


def box_office(request: Request) -> AsyncRetryDatabase:
    client: AsyncRetryClient = request.state.mongodb
    return client.box_office


async def json_of(request: Request, **kinds: type) -> dict[str, Any]:
    """The members of the body, each of its kind."""
    try:
        given: dict[str, Any] = json.loads(await request.body())
        if all(type(given[name]) is kind for name, kind in kinds.items()):
            return given
    except (ValueError, TypeError, KeyError):
        pass
    wanted = ", ".join(f"{name} ({kind.__name__})" for name, kind in kinds.items())
    raise ProblemError(400, "bad_body", f"the body must be a JSON object with {wanted}")


async def put_show(request: Request) -> Answer:
    """Have seats for a show, as many as wanted; repeated, it changes nothing."""
    show, wanted = request.path_params["show"], await json_of(request, seats=int)
    if not 1 <= wanted["seats"] <= MOST_SEATS:
        raise ProblemError(422, "bad_number", f"a show has 1 to {MOST_SEATS} seats")
    new = {"$setOnInsert": {"reservation": None}}
    seats = [{"show": show, "seat": number} for number in range(1, wanted["seats"] + 1)]
    upserts = [UpdateOne({"_id": seat}, new, upsert=True) for seat in seats]
    await box_office(request).seats.bulk_write(upserts, ordered=False)
    return Answer(status_code=204)


async def get_show(request: Request) -> Answer:
    """The seats that are free."""
    show = request.path_params["show"]
    of_show = {"$gte": {"show": show, "seat": 1}, "$lte": {"show": show, "seat": MOST_SEATS}}
    free = {"_id": of_show, "reservation": None}
    return JSONResponse({"free": await box_office(request).seats.distinct("_id.seat", free)})


async def post_reservation(request: Request) -> Response:
    wanted = await json_of(request, show=str, seat=int)
    seat = {"show": wanted["show"], "seat": wanted["seat"]}
    key = await key_of(request.scope, await request.body())

    async def reserve(session: AsyncRetryClientSession) -> dict[str, Any]:
        office, reservation = box_office(request), ObjectId()
        taken = await office.seats.update_one(
            {"_id": seat, "reservation": None},
            {"$set": {"reservation": reservation}},
            session=session,
        )
        if not taken.modified_count:
            raise ProblemError(409, "not_free", "there is no such seat, or it is reserved")
        await office.reservations.insert_one({"_id": reservation, **seat}, session=session)
        return {"id": str(reservation), **seat}

    return await key.once(reserve, status=201)


async def delete_reservation(request: Request) -> Answer:
    """Give a seat back; who repeats it is answered the same, so that it needs no key."""
    wanted = request.path_params["reservation"]
    if not ObjectId.is_valid(wanted):
        raise ProblemError(404, "no_such_reservation", "there was never such a reservation")
    reservation, office = ObjectId(wanted), box_office(request)

    async def give_back(session: AsyncRetryClientSession) -> None:
        found = await office.reservations.find_one_and_delete({"_id": reservation}, session=session)
        if found is not None:
            seat = {"_id": {"show": found["show"], "seat": found["seat"]}}
            await office.seats.update_one(seat, {"$set": {"reservation": None}}, session=session)

    await run_transaction(office.client, give_back)
    return Answer(status_code=204)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    async with mongodb(app) as state:
        hook.observe(state["mongodb"])
        yield {**state}


app = Starlette(
    lifespan=lifespan,
    middleware=[
        Middleware(ProbesMiddleware),
        Middleware(ProblemMiddleware, documentation=PROBLEMS),
        Middleware(DeadlineMiddleware, default=20.0, maximum=25.0, documentation=PROBLEMS),
    ],
    routes=[
        Route("/shows/{show}", get_show, methods=["GET"]),
        Route("/shows/{show}", put_show, methods=["PUT"]),
        Route("/reservations", post_reservation, methods=["POST"]),
        Route("/reservations/{reservation}", delete_reservation, methods=["DELETE"]),
    ],
)
