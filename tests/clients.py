"""PyMongo's asynchronous client, for tests that were written for Motor's."""

from collections.abc import Generator
from typing import Any, Self

from pymongo.asynchronous.client_session import AsyncClientSession

from aioretry._writes.methods import WriteMethods
from aioretry.pymongo import (
    AsyncRetryClient,
    AsyncRetryClientSession,
    AsyncRetryCollection,
    AsyncRetryDatabase,
)


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
