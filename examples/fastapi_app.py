"""A FastAPI service that counts events; `uvicorn examples.fastapi_app:app`."""

# The README's snippet begins here.
import os
from typing import Annotated

from fastapi import Depends, FastAPI

from aioretry.fastapi import DeadlineMiddleware, add_problem_handlers, database, mongodb_lifespan
from aioretry.pymongo import AsyncRetryClient, AsyncRetryDatabase

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0&w=majority&journal=true")
Metrics = Annotated[AsyncRetryDatabase, Depends(database("metrics"))]

app = FastAPI(lifespan=mongodb_lifespan(URI, client=AsyncRetryClient))
app.add_middleware(DeadlineMiddleware, default=20.0, maximum=25.0)
add_problem_handlers(app)


@app.post("/events/{day}", status_code=204)
async def count(day: str, metrics: Metrics) -> None:
    await metrics.events.update_one({"_id": day}, {"$inc": {"counter": 1}}, upsert=True)


# The README's snippet ends here.
