"""The shop of the examples, each order of which has somebody told; and who is told, a file.

``MOTOR_SHOP=no`` in the environment puts it on PyMongo's asynchronous client; with ``OUTBOX=no``
nobody is told.
"""

import json
import os
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response

from aioretry import RetryClient
from aioretry.fastapi import (
    DeadlineMiddleware,
    ProbesMiddleware,
    ProblemError,
    add_problem_handlers,
    mongodb_lifespan,
)
from aioretry.outbox import Entry, Outbox, Relay
from aioretry.pymongo import AsyncRetryClient
from examples.shop.app import URI, Key, Order, Shop, Wanted, keys
from examples.shop.app import app as shop_without

CLIENT: Any = AsyncRetryClient if os.environ.get("MOTOR_SHOP") == "no" else RetryClient
IS_TOLD = os.environ.get("OUTBOX") != "no"
OPTIONS: Any = {"w": "majority", "journal": True}

app = FastAPI(lifespan=mongodb_lifespan(URI, client=CLIENT, keys=keys, **OPTIONS))
app.add_middleware(DeadlineMiddleware, default=20.0, maximum=25.0)
app.add_middleware(ProbesMiddleware)
add_problem_handlers(app)
app.router.routes += [
    route for route in shop_without.routes if getattr(route, "path", None) == "/stock/{sku}"
]


@app.post("/orders", status_code=201, response_model=Order)
async def post_order(wanted: Wanted, shop: Shop, key: Key) -> Response:
    outbox = Outbox(shop.outbox)

    async def place(session: Any) -> Order:
        enough = {"_id": wanted.sku, "quantity": {"$gte": wanted.quantity}}
        less = {"$inc": {"quantity": -wanted.quantity}}
        left = await shop.stock.find_one_and_update(
            enough, less, return_document=True, session=session
        )
        if left is None:
            raise ProblemError(409, "sold_out", "the shop does not have so many of this")
        order = await shop.orders.insert_one(wanted.model_dump(), session=session)
        placed = Order(id=str(order.inserted_id), **wanted.model_dump())
        told = {"order": placed.id, "left": left["quantity"]}
        if IS_TOLD:
            await outbox.add(session, "order", told, key=wanted.sku)
        return placed

    return await key.once(place, status_code=201)


async def deliver(entry: Entry) -> None:
    """Tell the file, which is there when this process is killed."""
    told = {"id": entry.id, "sku": entry.key, "by": os.getpid(), **entry.payload}
    with Path(os.environ["TOLD"]).open("a") as file:
        file.write(json.dumps(told) + "\n")


def relay() -> Relay:
    return Relay(Outbox(CLIENT(URI).shop.outbox), deliver, at_once=50, lease_seconds=5.0)
