"""An aiohttp service that counts events; `python examples/aiohttp_app.py`."""

# The README's snippet begins here.
import os

from aiohttp import web

from aioretry.aiohttp import ASYNCIO_CLIENT, deadline_middleware, mongodb_ctx, problem_middleware
from aioretry.pymongo import AsyncRetryClient

URI = os.environ.get("MONGODB_URI", "mongodb://localhost/?replicaSet=rs0&w=majority&journal=true")


async def count(request: web.Request) -> web.Response:
    day = request.match_info["day"]
    events = request.app[ASYNCIO_CLIENT].metrics.events
    await events.update_one({"_id": day}, {"$inc": {"counter": 1}}, upsert=True)
    return web.Response(status=204)


app = web.Application(middlewares=[problem_middleware, deadline_middleware(default=20.0)])
app.cleanup_ctx.append(mongodb_ctx(URI, client=AsyncRetryClient))
app.router.add_post("/events/{day}", count)
# The README's snippet ends here.

if __name__ == "__main__":
    web.run_app(app)
