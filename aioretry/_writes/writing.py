"""What the writes and reads of a collection need of it, whichever driver's client it belongs to."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from aioretry._commands import bulk_arguments, single
from aioretry._commands.target import Target
from aioretry._drivers.port import DocumentT
from aioretry._retry.monitoring import OperationWatch
from aioretry._writes.bulk import BulkWrite
from aioretry._writes.context import TransactionalSession, WritePath
from aioretry._writes.group.kinds import Kind
from aioretry._writes.group.queue import DEFAULT_BYTES, DEFAULT_DOCUMENTS, Coalescing, GroupQueue
from aioretry._writes.single import Write
from aioretry._writes.statements import Statement

FoundT = TypeVar("FoundT")
SessionT = TypeVar("SessionT")
T = TypeVar("T")


class WritingCollection:
    """What a collection's writes need of it, beside what every driver's collection has."""

    _driver_methods: Any
    """The driver's own collection class, for what stays the driver's."""

    _write_path: WritePath
    _own_target: Target | None = None
    _coalescing: Coalescing | None = None
    _own_queues: "dict[Kind, GroupQueue] | None" = None

    def coalesced(
        self, *, max_documents: int = DEFAULT_DOCUMENTS, max_bytes: int = DEFAULT_BYTES
    ) -> Self:
        """Return a view of this collection whose writes of one document travel together.

        They are ``insert_one``, and ``update_one``, ``replace_one`` and ``delete_one`` for one
        ``_id``. Those that come while one command is under way are sent in the next one, which is
        unordered. Nothing waits when nothing is under way. Each call has its own result, error,
        deadline and cancellation. All views of a collection with the same options share a queue.
        Calls with a session or with options of their own are sent alone.

        Args:
            max_documents: How many statements travel together at most, from 1 to 100,000.
            max_bytes: How many bytes of them do, from 1 to 40,000,000; a larger one goes alone.

        Returns:
            The view; everything else is as here.

        Raises:
            TypeError: An argument is not a whole number.
            ValueError: An argument is out of its range.
        """
        view = self._copy()
        view._coalescing = Coalescing.of(max_documents, max_bytes)
        return view

    @property
    def _drivers_own(self) -> Any:
        """The same, as the driver's collection that it is."""
        return self

    def _copy(self) -> Self:
        """Return the same collection, with the same options."""
        raise NotImplementedError

    def _session_of_call(self, session: Any) -> Any:
        """Return the session that a call goes over."""
        return session

    def _is_drivers(self, session: Any, options: "dict[str, Any] | None" = None) -> bool:
        own = options.get("writeConcern") if options else None
        if own is not None and isinstance(own, Mapping):
            acknowledged = own.get("w") != 0 or bool(own.get("j"))
        else:
            acknowledged = self._target().is_acknowledged
        if acknowledged and self._write_path.makes_transactions:
            return False
        if acknowledged and not is_in_transaction(self._session_of_call(session)):
            return False
        return self._leave_to_driver(session)

    def _is_drivers_bulk(self, session: Any) -> bool:
        # Commands are split at another size before they are encrypted (Client Side Encryption,
        # "Size limits for Write Commands").
        if self._write_path.encrypts or is_in_transaction(self._session_of_call(session)):
            return self._leave_to_driver(session)
        return self._is_drivers(session)

    def _told_to_driver(self, session: Any) -> Any:
        """Return the session of a write that is the driver's own.

        PyMongo takes a write concern into the transaction of a session that it finds by itself, and
        the server refuses that.
        """
        own = self._session_of_call(session)
        return own if is_in_transaction(own) else session

    def _leave_to_driver(self, session: Any) -> bool:
        """Let the driver begin an operation, if any may begin; return True."""
        self._write_path.under_way.admit(self._session_of_call(session))
        return True

    def _be_kept(self) -> None:
        """Be ready to be copied."""
        self._target()

    def _target(self) -> Target:
        if self._own_target is None:
            own = self._drivers_own
            self._own_target = Target.of(
                own.database.name, own.name, own.codec_options, own.write_concern
            )
        return self._own_target

    def _together(
        self, kind: Kind, arguments: single.Travelling[T], session: Any
    ) -> asyncio.Future[T] | None:
        """Have a write travel with others; return None if it goes alone."""
        coalescing = self._coalescing
        if coalescing is None or not arguments.may_travel:
            return None
        if self._session_of_call(session) is not None:
            return None
        queue = self._queue(kind, coalescing)
        if queue is None or not queue.is_of_use:
            return None
        return queue.add(arguments, self._write_path.deadline())

    def _queue(self, kind: Kind, coalescing: Coalescing) -> GroupQueue | None:
        """Return where writes of this collection wait; None if they may not travel together."""
        coordinator = self._write_path.coordinator()
        self._write_path.under_way.admit()
        own = self._own_queues
        if own is None:
            own = self._own_queues = {}
        queue = own.get(kind)
        if queue is not None and queue.loop is coordinator.loop:
            return queue
        if self._is_drivers_bulk(None):
            return None
        queues, target = coordinator.waits.queues, self._target()
        queue = next((each for each in queues if each.is_for(kind, target, coalescing)), None)
        if queue is None:
            queue = GroupQueue(coordinator, kind, target, self._write_path.lease, coalescing)
        own[kind] = queue
        return queue

    def _submit(self, arguments: single.Arguments[T], session: Any) -> asyncio.Future[T]:
        path, target, session = self._write_path, self._target(), self._session_of_call(session)
        coordinator = path.coordinator()
        path.under_way.admit(session)
        watch = coordinator.watchers.watch(arguments.operation, target.namespace, watch_in(session))
        write: Write[T]
        if is_in_transaction(session):
            lease = path.statement_lease(session)
            write = Statement(coordinator, lease, path.deadline(), watch, session)
        else:
            write = Write(coordinator, path.lease(session), path.deadline(), watch)
        return write.begin(arguments, target)

    def _submit_bulk(
        self, arguments: bulk_arguments.Arguments[T], session: Any
    ) -> asyncio.Future[T]:
        path, target, session = self._write_path, self._target(), self._session_of_call(session)
        coordinator = path.coordinator()
        path.under_way.admit(session)
        watch = coordinator.watchers.watch(arguments.operation, target.namespace, watch_in(session))
        write: BulkWrite[T] = BulkWrite(coordinator, path.lease(session), path.deadline(), watch)
        return write.begin(arguments, target)


if TYPE_CHECKING:

    class Typed(Generic[SessionT, FoundT, DocumentT]):
        """What a collection is generic in."""

else:

    class Typed:
        """Motor's classes are generic for type checkers alone; so is what comes before them."""

        def __class_getitem__(cls, _: object) -> type:
            return cls


def is_in_transaction(session: Any) -> bool:
    """Tell whether a transaction is in progress on a session, if it is one."""
    return session is not None and bool(getattr(session, "in_transaction", False))


def watch_in(session: Any) -> OperationWatch | None:
    """Return who is told of the transaction in progress on a session, if there is one."""
    is_part = is_in_transaction(session) and isinstance(session, TransactionalSession)
    return session._watch.latest if is_part else None
