"""Both clients, for commands that take either; and PyMongo's for tests written for Motor's."""

import inspect
import os
import zlib
from collections.abc import Generator, Mapping
from typing import Any, Self

import pytest
from pymongo.asynchronous.client_session import AsyncClientSession

from aioretry import RetryClient
from aioretry._writes.methods import WriteMethods
from aioretry.pymongo import (
    AsyncRetryClient,
    AsyncRetryClientSession,
    AsyncRetryCollection,
    AsyncRetryDatabase,
)
from tests.lengths import FULL

CHOSEN = "AIORETRY_TEST_CLIENT"
OURS: Mapping[str, Any] = {"motor": RetryClient, "asyncio": AsyncRetryClient}
"""What ``--client`` and that variable name."""


def ours() -> Any:
    """The class that the variable names; the processes that this one starts inherit it."""
    return OURS[os.environ.get(CHOSEN, "motor")]


async def close(client: Any) -> None:
    """Close a client of any kind; Motor's, and ours on it, without blocking where that is known."""
    if isinstance(client, RetryClient):
        await client.__aexit__(None, None, None)
        return
    closing = client.close()
    if inspect.isawaitable(closing):
        await closing


class AwaitedSession(AsyncRetryClientSession):
    """A session whose start may be awaited, as Motor's has to be."""

    def __await__(self) -> Generator[Any, Any, Self]:
        return self
        yield

    @property
    def delegate(self) -> Self:
        """What PyMongo knows it by."""
        return self

    def start_transaction(self, *args: Any, **kwargs: Any) -> Any:
        """Start a transaction, which waits for nothing."""
        try:
            super().start_transaction(*args, **kwargs).send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("it waits")


class RunningCollection(  # type: ignore[misc]
    WriteMethods[Any, AsyncClientSession, Any], AsyncRetryCollection[Any]
):
    """A collection whose writes run as soon as they are called, as Motor's do."""

    @property
    def delegate(self) -> Self:
        """What PyMongo knows it by."""
        return self


class RunningDatabase(AsyncRetryDatabase[Any]):
    """A database of such collections."""

    _collections = RunningCollection


class MotorLikeClient(AsyncRetryClient[Any]):
    """A client with what tests use of Motor's beside its public methods."""

    _databases = RunningDatabase

    @property
    def delegate(self) -> Self:
        """What PyMongo knows it by."""
        return self

    def get_io_loop(self) -> Any:
        """Return its event loop."""
        return self._write_path.coordinator().loop

    def start_session(self, *args: Any, **kwargs: Any) -> Any:
        """Start a session."""
        session = super().start_session(*args, **kwargs)
        session.__class__ = AwaitedSession
        return session


CLIENTS = {"motor": RetryClient, "asyncio": MotorLikeClient}


def chosen_client() -> type[Any]:
    """The client that the environment names: in processes of a test, its own."""
    return CLIENTS[os.environ.get(CHOSEN, "motor")]


def for_both(metafunc: pytest.Metafunc, sample: set[str]) -> None:
    """Test with both clients what is not about one of them: a sample, or all in full length.

    PyMongo's own is slow (tests/plugins/samples.py), but for a third of the functions.

    Args:
        metafunc: Pytest's.
        sample: The names of modules and of functions.
    """
    if "client_class" not in metafunc.fixturenames:
        return
    for mark in metafunc.definition.iter_markers("parametrize"):
        assert "client_class" not in mark.args[0], "in full length that would be its second time"
    names = {metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__}
    is_for_both = metafunc.definition.get_closest_marker("motor") is None
    if is_for_both and (FULL or names & sample):
        name = f"{metafunc.module.__name__}.{metafunc.function.__name__}".encode()
        slow = [] if zlib.crc32(name) % 3 == 0 else [pytest.mark.slow]
        asyncio = pytest.param("asyncio", marks=slow)
        metafunc.parametrize("client_class", ["motor", asyncio], indirect=True)
