"""The client of an application, from its start to its end."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypedDict

from aioretry._faces import Client
from aioretry._web.serving import DRAIN_TIMEOUT, STARTUP_TIMEOUT, Serving
from aioretry.asgi._connection import Scope
from aioretry.idempotent import Keys


class MongoState(TypedDict):
    """What the lifespan adds to the state of each request."""

    mongodb: Any
    """The client, of the class that was asked for."""

    mongodb_keys: Keys | None


def mongodb_lifespan(
    uri: str,
    *,
    client: type[Client] | None = None,
    keys: Keys | None = None,
    startup_timeout: float | None = STARTUP_TIMEOUT,
    drain_timeout: float = DRAIN_TIMEOUT,
    **options: Any,
) -> Callable[[Any], AbstractAsyncContextManager[MongoState]]:
    """Return a lifespan: a client that is ready at the start, and drained and closed at the end.

    In a lifespan of your own: ``async with mongodb_lifespan(uri)(app) as state: yield {**state,
    ...}``.

    An application starts without a server, too, if none is found in time; that is logged, and
    ``/readyz`` tells of it. A server that refuses the client's credentials is an error at once.

    Args:
        uri: Of the deployment.
        client: Its class, such as :class:`~aioretry.pymongo.AsyncRetryClient`; None is
            :class:`~aioretry.RetryClient`.
        keys: What :func:`idempotency_key` needs; closed before the client.
        startup_timeout: How many seconds :func:`~aioretry.ready` may take; None does not wait.
        drain_timeout: How many seconds :func:`~aioretry.drain` may take at the end.
        **options: As for the client.

    Raises:
        TypeError: ``uri`` is not a str, ``keys`` not a :class:`~aioretry.idempotent.Keys`, or a
            time no number.
        ValueError: A time is not above 0, or not finite.
        ImportError: ``client`` is None, and Motor is not installed.
    """
    serving = Serving(uri, client, keys, startup_timeout, drain_timeout, options)

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[MongoState]:
        del app
        async with serving.client() as made:
            yield MongoState(mongodb=made, mongodb_keys=keys)

    return lifespan


def client_of(scope: Scope) -> Any:
    """Return the client of the lifespan, or None."""
    return scope.get("state", {}).get("mongodb")
