"""Reads of one command and one reply: made as writes are, and with nothing that is in doubt."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from pymongo.errors import OperationFailure

from aioretry._commands import reads
from aioretry._commands.arguments import Hint
from aioretry._commands.command import Command, Reading
from aioretry._commands.target import Target
from aioretry._drivers.port import DocumentT
from aioretry._writes.context import TransactionalSession
from aioretry._writes.statements import Statement, WithoutOutcome
from aioretry._writes.writing import Typed, WritingCollection, is_in_transaction, watch_in

T = TypeVar("T")
FoundT = TypeVar("FoundT")
SessionT = TypeVar("SessionT")

_NAMESPACE_NOT_FOUND = 26


class ReadingArguments:
    """What a user gave to a method that reads, and how it reads."""

    def __init__(self, given: Any, reading: Reading) -> None:
        self._given = given
        self._reading = reading
        self.operation: str = given.operation

    def command(self, target: Target) -> Command[Any]:
        """Return the command."""
        command: Command[Any] = self._given.command(target, self._reading)
        return command


class Read(WithoutOutcome[T]):
    """A read."""

    __slots__ = ()

    def _fail(self, exc: BaseException) -> None:
        is_none = isinstance(exc, OperationFailure) and exc.code == _NAMESPACE_NOT_FOUND
        if is_none and self.execution is not None and self.execution.command.name == "aggregate":
            self._take({"cursor": {"firstBatch": []}})  # there is nothing to count
        else:
            super()._fail(exc)


class ReadInTransaction(Read[T], Statement[T]):
    """A read in a transaction."""

    __slots__ = ()


class ReadingCollection(WritingCollection):
    """What a collection's reads need of it."""

    def _is_drivers_read(self, session: Any) -> bool:
        """Tell whether a read is the driver's: in a transaction, of a snapshot, or encrypted."""
        if self._write_path.encrypts:
            return self._leave_to_driver(session)
        session = self._session_of_call(session)
        if session is None:
            return False
        if is_in_transaction(session):
            # Another preference than the primary is ignored, or refused, by the driver.
            is_elsewhere = self._drivers_own.read_preference.mode
            if isinstance(session, TransactionalSession):
                given = session._calls.transaction_options(session)
                is_elsewhere = is_elsewhere or given.read_preference.mode
            is_drivers = bool(is_elsewhere) or not self._write_path.makes_transactions
        else:
            is_drivers = bool(getattr(getattr(session, "options", None), "snapshot", False))
        return is_drivers and self._leave_to_driver(session)

    def _read(self, given: Any, session: Any) -> "Read[Any]":
        path, target, session = self._write_path, self._target(), self._session_of_call(session)
        coordinator = path.coordinator()
        path.under_way.admit(session)
        own = self._drivers_own
        reading = Reading(own.read_preference, own.read_concern)
        watch = coordinator.watchers.watch(given.operation, target.namespace, watch_in(session))
        read: Read[Any]
        if is_in_transaction(session):
            lease = path.statement_lease(session)
            read = ReadInTransaction(coordinator, lease, path.deadline(), watch, session)
        else:
            read = Read(coordinator, path.read_lease(session), path.deadline(), watch)
        return read.begin(ReadingArguments(given, reading), target)


class ReadMethods(ReadingCollection, Typed[SessionT, FoundT, DocumentT]):
    """The reads of one command and one reply: each returns a running future."""

    def find_one(
        self, filter: Any = None, *args: Any, **kwargs: Any
    ) -> "asyncio.Future[FoundT | None]":
        """Read the first document that matches; arguments as for ``find``.

        Args:
            filter: What it has to match, or its ``_id``; None is any document.
            *args: As for ``find``.
            **kwargs: As for ``find``.

        Returns:
            A future that ends with the document, or with None if there is none.
        """
        options = dict(kwargs)
        session = options.pop("session", None)
        if len(args) == 1:
            options.setdefault("projection", args[0])
        given = None
        if len(args) <= 1 and len(options) == len(kwargs) - ("session" in kwargs) + len(args):
            given = reads.FindOne.of(filter, options)
        if given is None or self._is_drivers_read(session):
            return self._driver_methods.find_one(  # type: ignore[no-any-return]
                self, filter, *args, **kwargs
            )
        return self._read(given, session)

    def count_documents(
        self,
        filter: Mapping[str, Any],
        session: SessionT | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[int]:
        """Count the documents that match.

        Args:
            filter: What they have to match.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            **kwargs: ``skip``, ``limit``, ``hint``, ``collation``, ``maxTimeMS`` (milliseconds).

        Returns:
            A future that ends with their number.
        """
        if self._is_drivers_read(session):
            return self._driver_methods.count_documents(  # type: ignore[no-any-return]
                self, filter, session=session, comment=comment, **kwargs
            )
        return self._read(reads.Count(filter, comment, kwargs), session)

    def estimated_document_count(self, comment: Any = None, **kwargs: Any) -> asyncio.Future[int]:
        """Estimate the number of documents by what the server knows without counting.

        Args:
            comment: Any BSON value, for the server's logs.
            **kwargs: ``maxTimeMS`` (milliseconds).

        Returns:
            A future that ends with the number.
        """
        if self._is_drivers_read(None):
            return self._driver_methods.estimated_document_count(  # type: ignore[no-any-return]
                self, comment=comment, **kwargs
            )
        return self._read(reads.EstimatedCount(comment, kwargs), None)

    def distinct(
        self,
        key: str,
        filter: Mapping[str, Any] | None = None,
        session: SessionT | None = None,
        comment: Any = None,
        hint: Hint | None = None,
        **kwargs: Any,
    ) -> asyncio.Future[list[Any]]:
        """Read the different values of a field.

        Args:
            key: The field.
            filter: What its documents have to match; None is all.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            hint: The index to use, by name or by keys.
            **kwargs: ``collation``, ``maxTimeMS`` (milliseconds).

        Returns:
            A future that ends with the values.
        """
        if self._is_drivers_read(session):
            return self._driver_methods.distinct(  # type: ignore[no-any-return]
                self, key, filter, session=session, comment=comment, hint=hint, **kwargs
            )
        return self._read(reads.Distinct(key, filter, comment, hint, kwargs), session)
