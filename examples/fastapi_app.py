"""A FastAPI service that counts events; `uvicorn examples.fastapi_app:app`."""

# The README's snippet begins here.
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from pymongo.errors import PyMongoError

from aioretry import Outcome, RetryClient, RetryMotorCollection, deadline, outcome_of

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0&w=majority&journal=true")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with RetryClient(URI) as client:
        app.state.events = client.metrics.events
        yield


def events_of(request: Request) -> RetryMotorCollection:
    return request.app.state.events


Events = Annotated[RetryMotorCollection, Depends(events_of)]
app = FastAPI(lifespan=lifespan)


@app.post("/events/{day}", status_code=204)
async def count(day: str, events: Events) -> None:
    try:
        async with deadline(5.0):
            await events.update_one({"_id": day}, {"$inc": {"counter": 1}}, upsert=True)
    except PyMongoError as exc:
        if outcome_of(exc) is Outcome.NOT_APPLIED:
            raise HTTPException(503, "not counted") from exc
        raise HTTPException(504, "perhaps counted") from exc


# The README's snippet ends here.
