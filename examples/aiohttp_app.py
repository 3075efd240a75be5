"""An aiohttp service that counts events; `python examples/aiohttp_app.py`."""

# The README's snippet begins here.
import os
from collections.abc import AsyncIterator

from aiohttp import web
from pymongo.errors import PyMongoError

from aioretry import Outcome, RetryClient, RetryMotorCollection, deadline, outcome_of

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0&w=majority&journal=true")
EVENTS = web.AppKey("events", RetryMotorCollection)


async def mongodb(app: web.Application) -> AsyncIterator[None]:
    async with RetryClient(URI) as client:
        app[EVENTS] = client.metrics.events
        yield


async def count(request: web.Request) -> web.Response:
    day = request.match_info["day"]
    try:
        async with deadline(5.0):
            await request.app[EVENTS].update_one(
                {"_id": day}, {"$inc": {"counter": 1}}, upsert=True
            )
    except PyMongoError as exc:
        if outcome_of(exc) is Outcome.NOT_APPLIED:
            raise web.HTTPServiceUnavailable(text="not counted") from exc
        raise web.HTTPGatewayTimeout(text="perhaps counted") from exc
    return web.Response(status=204)


app = web.Application()
app.cleanup_ctx.append(mongodb)
app.router.add_post("/events/{day}", count)
# The README's snippet ends here.

if __name__ == "__main__":
    web.run_app(app)
