"""A client's life in an application: its start, its end, and what probes are told."""

import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from pymongo.errors import ConnectionFailure

import aioretry
from aioretry import DeadlineExceeded, Health, drain, liveness, readiness, ready
from aioretry._faces import Client
from aioretry._web.requests import positive
from aioretry.idempotent import Keys

LIVE, READY = "/livez", "/readyz"
"""Where probes ask, unless it is said otherwise."""

STARTUP_TIMEOUT = 10.0
DRAIN_TIMEOUT = 10.0

_logger = logging.getLogger("aioretry")


class Serving:
    """A client in an application, from its start to its end.

    Arguments and errors are as for :func:`~aioretry.asgi.mongodb_lifespan`.
    """

    def __init__(
        self,
        uri: object,
        client: type[Client] | None,
        keys: object,
        startup_timeout: float | None,
        drain_timeout: float,
        options: Mapping[str, Any],
    ) -> None:
        if not isinstance(uri, str):
            raise TypeError(f"uri must be a str, not {type(uri).__name__}")
        if keys is not None and not isinstance(keys, Keys):
            raise TypeError(f"keys must be a Keys or None, not {keys!r}")
        self._keys = keys
        self._startup = (
            None if startup_timeout is None else positive("startup_timeout", startup_timeout)
        )
        self._drain = positive("drain_timeout", drain_timeout)
        self._make: Any = partial(
            aioretry.RetryClient if client is None else client, uri, **options
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        """Have a client that is ready; at the end it is drained, and closed."""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._make())
            if self._keys is not None:
                await stack.enter_async_context(self._keys)
            if self._startup is not None:
                await _start(client, self._startup)
            try:
                yield client
            finally:
                await drain(client, self._drain)


async def _start(client: Client, seconds: float) -> None:
    try:
        await ready(client, seconds)
    except (ConnectionFailure, DeadlineExceeded) as exc:
        # To end here, and be started again and again, would help nobody: probes tell of it.
        _logger.warning(
            "the service starts without a server that takes writes: none was ready after %g s (%s)",
            seconds,
            type(exc).__name__,
        )


def path_of(name: str, value: object) -> str:
    """Return the path of a probe.

    Raises:
        TypeError: It is no str.
        ValueError: It does not begin with a slash.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value.startswith("/"):
        raise ValueError(f"{name} must be a path that begins with a slash, not {value!r}")
    return value


def paths_of(exempt: Collection[str]) -> frozenset[str]:
    """Return paths that have no deadline.

    Raises:
        TypeError: They are not several, or one is no str.
        ValueError: One does not begin with a slash.
    """
    if isinstance(exempt, str | bytes) or not isinstance(exempt, Collection):
        raise TypeError(f"exempt must be a collection of paths, not {exempt!r}")
    return frozenset(path_of("exempt", each) for each in exempt)


class Probes:
    """What an orchestrator asks a process.

    Arguments and errors are as for :class:`~aioretry.asgi.ProbesMiddleware`.
    """

    HEADERS: Mapping[str, str] = {"Content-Type": "application/json", "Cache-Control": "no-store"}

    def __init__(self, live: str, ready: str, grace: float) -> None:
        self._asks: dict[str, Callable[[Client], Health]] = {
            path_of("live", live): liveness,
            path_of("ready", ready): partial(
                readiness, grace=grace if grace == math.inf else positive("grace", grace)
            ),
        }
        if live == ready:
            raise ValueError(f"live and ready must be two paths, not both {live!r}")

    @property
    def paths(self) -> Collection[str]:
        """Where it is asked."""
        return self._asks

    def answer(self, path: str, client: Client | None) -> tuple[int, bytes]:
        """Return status and body for one of the paths."""
        no_client = Health(False, "there is no client")
        health = no_client if client is None else self._asks[path](client)
        status = HTTPStatus.OK if health else HTTPStatus.SERVICE_UNAVAILABLE
        told = {"status": "ok" if health else "unavailable", "reason": health.reason}
        return status, json.dumps(told).encode()
