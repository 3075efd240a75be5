"""The shop's stock and orders on plain Motor, as one writes it who has read Motor's manual.

Retryable writes are on, as they are by default. An order is a transaction: Motor's
``with_transaction`` repeats it after an election. A unique index tells repeated requests.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from motor.motor_asyncio import AsyncIOMotorClient, AsyncIOMotorClientSession, AsyncIOMotorDatabase
from pydantic import BaseModel, Field
from pymongo.errors import DuplicateKeyError

URI = os.environ["MONGODB_URI"]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    client = AsyncIOMotorClient(URI, w="majority", journal=True)
    app.state.shop = client.shop
    await client.shop.orders.create_index("key", unique=True)
    yield
    client.close()


def shop_of(request: Request) -> AsyncIOMotorDatabase:
    return request.app.state.shop


Shop = Annotated[AsyncIOMotorDatabase, Depends(shop_of)]
app = FastAPI(lifespan=lifespan)


class Quantity(BaseModel):
    quantity: int = Field(ge=0)


class Wanted(BaseModel):
    sku: str
    quantity: int = Field(ge=1)


@app.put("/stock/{sku}")
async def put_stock(sku: str, wanted: Quantity, shop: Shop) -> dict[str, Any]:
    await shop.stock.update_one({"_id": sku}, {"$set": {"quantity": wanted.quantity}}, upsert=True)
    return {"sku": sku, "quantity": wanted.quantity}


@app.get("/stock/{sku}")
async def get_stock(sku: str, shop: Shop) -> dict[str, Any]:
    found = await shop.stock.find_one({"_id": sku})
    if found is None:
        raise HTTPException(404, "the shop does not have this")
    return {"sku": sku, "quantity": found["quantity"]}


@app.post("/orders", status_code=201)
async def post_order(
    wanted: Wanted, shop: Shop, idempotency_key: Annotated[str, Header()]
) -> dict[str, Any]:
    order = {"key": idempotency_key, **wanted.model_dump()}

    async def place(session: AsyncIOMotorClientSession) -> Mapping[str, Any]:
        enough = {"_id": wanted.sku, "quantity": {"$gte": wanted.quantity}}
        less = {"$inc": {"quantity": -wanted.quantity}}
        if not (await shop.stock.update_one(enough, less, session=session)).modified_count:
            raise HTTPException(409, "the shop does not have so many of this")
        placed = await shop.orders.insert_one(dict(order), session=session)
        return {"_id": placed.inserted_id, **order}

    try:
        async with await shop.client.start_session() as session:
            placed = await session.with_transaction(place)
    except DuplicateKeyError:
        placed = await shop.orders.find_one({"key": idempotency_key})
        if placed is None or order != {name: placed[name] for name in order}:
            raise HTTPException(422, "the key was used for another order") from None
    return {"id": str(placed["_id"]), **wanted.model_dump()}


@app.get("/readyz")
async def ready(shop: Shop) -> dict[str, str]:
    await shop.command("ping")
    return {"status": "ok"}
