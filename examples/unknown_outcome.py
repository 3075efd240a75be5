"""A FastAPI service that finds out what became of a write in doubt before it answers.

uvicorn examples.unknown_outcome:app --timeout-graceful-shutdown 26

MONGODB_URI is in the environment.
"""

import os
from typing import Annotated

from fastapi import Depends, FastAPI
from pymongo.errors import PyMongoError

from aioretry import Outcome, deadline, outcome_of, resolve
from aioretry.fastapi import DeadlineMiddleware, add_problem_handlers, database, mongodb_lifespan
from aioretry.pymongo import AsyncRetryClient, AsyncRetryDatabase

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0&w=majority&journal=true")
FOR_THE_REQUEST = 25.0  # seconds
FOR_THE_WRITE = 20.0  # longer than a failover; what is left of the request is for finding out

Box = Annotated[AsyncRetryDatabase, Depends(database("box_office"))]

app = FastAPI(lifespan=mongodb_lifespan(URI, client=AsyncRetryClient))
app.add_middleware(DeadlineMiddleware, default=FOR_THE_REQUEST)
add_problem_handlers(app)


@app.post("/events/{event}/tickets", status_code=201)
async def draw(event: str, box: Box) -> dict[str, int]:
    try:
        async with deadline(FOR_THE_WRITE):
            after = await box.tickets.find_one_and_update(
                {"_id": event}, {"$inc": {"drawn": 1}}, upsert=True, return_document=True
            )
    except PyMongoError as exc:
        if outcome_of(exc) is not Outcome.UNKNOWN:
            raise  # nothing is applied: 503 or 504 as a rule, with "outcome": "not applied"
        # If nobody can tell in the time that is left, this raises: 504, "outcome": "unknown".
        after = await resolve(exc)  # else it is applied, once, and this is its result
    return {"ticket": after["drawn"]}
