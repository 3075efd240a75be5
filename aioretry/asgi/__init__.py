"""aioretry in ASGI services of any framework: the client, deadlines, problems, probes, keys."""

from aioretry._web.problems import ProblemError
from aioretry._web.requests import seconds_of
from aioretry.asgi._connection import Response
from aioretry.asgi._deadlines import DeadlineMiddleware
from aioretry.asgi._keys import CallerKey, idempotency_key
from aioretry.asgi._lifespan import MongoState, mongodb_lifespan
from aioretry.asgi._probes import ProbesMiddleware
from aioretry.asgi._problems import ProblemMiddleware

__all__ = [
    "CallerKey",
    "DeadlineMiddleware",
    "MongoState",
    "ProbesMiddleware",
    "ProblemError",
    "ProblemMiddleware",
    "Response",
    "idempotency_key",
    "mongodb_lifespan",
    "seconds_of",
]

# Where users import them from is what messages and tracebacks should say.
for _name in __all__:
    if isinstance(_public := globals()[_name], type):
        _public.__module__ = __name__
