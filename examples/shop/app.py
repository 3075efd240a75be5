"""A shop, with metrics for Prometheus.

uvicorn examples.shop.app:app --timeout-graceful-shutdown 26

MONGODB_URI and SHOP_SECRET are in the environment.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Field

from aioretry import RetryMotorClientSession, RetryMotorDatabase
from aioretry.fastapi import (
    CallerKey,
    DeadlineMiddleware,
    ProbesMiddleware,
    ProblemError,
    add_problem_handlers,
    database,
    idempotency_key,
    mongodb_lifespan,
)
from aioretry.idempotent import Keys
from aioretry.telemetry.prometheus import PrometheusHook

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0")
# All processes need the same secret, which nobody else may know.
SECRET = os.environ["SHOP_SECRET"].encode()

PROBLEMS = "https://shop.example.org/problems"  # a page that explains them
MOST = 1_000_000  # of anything; what is larger than the database's integers would be an error

keys = Keys(SECRET, "shop", per_second=1000)
registry = CollectorRegistry()
hook = PrometheusHook(registry)
mongodb = mongodb_lifespan(URI, keys=keys, hooks=[hook], w="majority", journal=True)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    async with mongodb(app) as state:
        hook.observe(state["mongodb"])
        yield {**state}


app = FastAPI(title="Shop", lifespan=lifespan)
app.add_middleware(DeadlineMiddleware, default=20.0, maximum=25.0, documentation=PROBLEMS)
app.add_middleware(ProbesMiddleware)
add_problem_handlers(app, documentation=PROBLEMS)


class Quantity(BaseModel):
    quantity: int = Field(ge=0, le=MOST)


class Stock(Quantity):
    sku: str


class Wanted(BaseModel):
    sku: str
    quantity: int = Field(ge=1, le=MOST)


class Order(Wanted):
    id: str


class Ticket(BaseModel):
    event: str
    number: int


async def customer(x_customer: Annotated[str, Header(min_length=1)] = "anonymous") -> str:
    """Who calls; a real shop knows it from a login."""
    return x_customer


Shop = Annotated[RetryMotorDatabase, Depends(database("shop"))]
Key = Annotated[CallerKey, Depends(idempotency_key(scope=customer, database="shop"))]


@app.get("/metrics")
async def metrics() -> Response:
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@app.put("/stock/{sku}")
async def put_stock(sku: str, wanted: Quantity, shop: Shop) -> Stock:
    await shop.stock.update_one({"_id": sku}, {"$set": {"quantity": wanted.quantity}}, upsert=True)
    return Stock(sku=sku, quantity=wanted.quantity)


@app.get("/stock/{sku}")
async def get_stock(sku: str, shop: Shop) -> Stock:
    found = await shop.stock.find_one({"_id": sku})
    if found is None:
        raise ProblemError(404, "no_such_sku", "the shop does not have this")
    return Stock(sku=sku, quantity=found["quantity"])


@app.post("/orders", status_code=201, response_model=Order)
async def post_order(wanted: Wanted, shop: Shop, key: Key) -> Response:
    async def place(session: RetryMotorClientSession) -> Order:
        enough = {"_id": wanted.sku, "quantity": {"$gte": wanted.quantity}}
        less = {"$inc": {"quantity": -wanted.quantity}}
        if not (await shop.stock.update_one(enough, less, session=session)).modified_count:
            raise ProblemError(409, "sold_out", "the shop does not have so many of this")
        order = await shop.orders.insert_one(wanted.model_dump(), session=session)
        return Order(id=str(order.inserted_id), **wanted.model_dump())

    return await key.once(place, status_code=201)


@app.post("/events/{event}/tickets", status_code=201)
async def post_ticket(event: str, shop: Shop, key: Key) -> Ticket:
    async with shop.events.operation(key=key) as op:
        after = await op.find_one_and_update(
            {"_id": event}, {"$inc": {"tickets": 1}}, upsert=True, return_document=True
        )
    return Ticket(event=event, number=after["tickets"])
