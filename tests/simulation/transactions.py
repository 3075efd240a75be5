"""Transactions at a primary: what each sees and has written, and how it ends. Pure."""

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bson.timestamp import Timestamp

from tests.simulation.commands import (
    ABORT,
    ALREADY_STARTED,
    COMMIT,
    COMMITTED,
    INCOMPLETE_HISTORY,
    NO_SUCH_TRANSACTION,
    TOO_OLD,
    WRITE_CONFLICT,
    Command,
    CommandError,
    error_of,
)
from tests.simulation.reading import answer_to
from tests.simulation.state import Change, Documents, Execution, State, T, Work

_NOTHING: dict[Any, Any] = {}


class Status(enum.Enum):
    """How far a transaction has come."""

    IN_PROGRESS = enum.auto()
    COMMITTED = enum.auto()
    ABORTED = enum.auto()


class Transaction:
    """A transaction that was begun here.

    Args:
        state: What the primary stores.
        session: Whose it is.
        number: Its number.
    """

    def __init__(self, state: State, session: bytes, number: int) -> None:
        self.session = session
        self.number = number
        self.status = Status.IN_PROGRESS
        self._state = state
        self._own: dict[str, dict[Any, Mapping[str, Any] | None]] = {}
        self._before: dict[str, dict[Any, Mapping[str, Any] | None]] = {}
        """What others have changed since it began, as it was then."""

        state.watchers.append(self)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What it has written."""
        return tuple(
            (collection, key, document)
            for collection, documents in self._own.items()
            for key, document in documents.items()
        )

    def note(self, collection: str, key: Any, before: Mapping[str, Any] | None) -> None:
        """Take note of what a document was when the transaction began."""
        self._before.setdefault(collection, {}).setdefault(key, before)

    def documents(self, collection: str) -> Documents:
        """Return what it sees of a collection: what was there when it began, and its own."""
        return _Seen(
            self._state.documents(collection),
            self._before.get(collection, _NOTHING),
            self._own.get(collection, _NOTHING),
        )

    def bars(self, collection: str, key: Any, *, inserts: bool = False) -> bool:
        """Tell whether nobody else can write a document before this has ended.

        Args:
            collection: The document's.
            key: Its id.
            inserts: Whether it would be inserted: of one that was there before the id is known.
        """
        is_there = inserts and key in self._state.documents(collection)
        return key in self._own.get(collection, _NOTHING) and not is_there

    def was_changed(self, collection: str, key: Any) -> bool:
        """Tell whether somebody else has changed a document since it began."""
        return key in self._before.get(collection, _NOTHING)

    def write(self, collection: str, key: Any, document: Mapping[str, Any] | None) -> None:
        """Write a document, for those who come after its commit."""
        self._own.setdefault(collection, {})[key] = document

    def end(self, status: Status) -> None:
        """See and keep nothing any more."""
        self.status = status
        self._own, self._before = {}, {}
        if self in self._state.watchers:
            self._state.watchers.remove(self)


class _Seen(Mapping[Any, Mapping[str, Any]]):
    """The documents of a collection, as they are, as they were before, and as they are written."""

    def __init__(self, now: Documents, *layers: Mapping[Any, Mapping[str, Any] | None]) -> None:
        self._now = now
        self._layers = {key: each for layer in layers for key, each in layer.items()}

    def __getitem__(self, key: Any) -> Mapping[str, Any]:
        document = self._layers[key] if key in self._layers else self._now[key]
        if document is None:
            raise KeyError(key)
        return document

    def __iter__(self) -> Iterator[Any]:
        yield from (key for key in self._now if key not in self._layers)
        yield from (key for key, document in self._layers.items() if document is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Transactions:
    """The transactions that were begun at a primary since it is one, and what numbers it has seen.

    Args:
        version: The server's.
        has_begun: Told of each that begins.
        tick: Returns the next time that documents have of the server.
    """

    def __init__(
        self,
        version: tuple[int, int],
        has_begun: Callable[[Transaction], object],
        tick: Callable[[], Timestamp],
    ) -> None:
        self._version = version
        self._has_begun = has_begun
        self._tick = tick
        self._latest: dict[bytes, Transaction] = {}
        self._numbers: dict[bytes, int] = {}
        """The number that was begun last over a session, whether or not that has written."""

    @property
    def in_progress(self) -> list[Transaction]:
        """Those that have not ended."""
        return [one for one in self._latest.values() if one.status is Status.IN_PROGRESS]

    def clear(self) -> None:
        """Abort all of them, and know of none: the member is no primary any more."""
        for transaction in self.in_progress:
            transaction.end(Status.ABORTED)
        self._latest.clear()
        self._numbers.clear()

    def forget(self, session: bytes) -> None:
        """Know nothing of a session any more."""
        latest = self._latest.get(session)
        if latest is not None and latest.status is not Status.IN_PROGRESS:
            del self._latest[session]

    def begin_write(self, command: Command, state: State) -> None:
        """Begin a write with a number of its own, which ends a transaction with an earlier one.

        Raises:
            CommandError: The session has gone on, or the number is that of a transaction.
        """
        session, number = command.session, command.number
        if session is None or number is None:
            return
        self._require_latest(session, number, state)
        latest = self._latest.get(session)
        if latest is not None and latest.number == number:
            raise CommandError(INCOMPLETE_HISTORY, "it has been converted into a transaction")
        self._abort(latest)
        self._numbers[session] = number

    def are_barring(self, collection: str, key: Any, *, inserts: bool = False) -> bool:
        """Tell whether one that is open bars whoever would write a document."""
        return any(one.bars(collection, key, inserts=inserts) for one in self.in_progress)

    def run(self, command: Command, state: State) -> dict[str, Any]:
        """Do a part of a transaction, or end it without having anything written.

        Raises:
            CommandError: It is refused.
        """
        transaction = self._of(command, state)
        if transaction is None or transaction.status is Status.COMMITTED:
            if command.name == COMMIT:
                return {"ok": 1.0}
            raise CommandError(COMMITTED, "TransactionCommitted")
        if transaction.status is Status.ABORTED:
            raise self._unknown(command)
        if command.body.get("recovers"):  # another router has it, or had
            transaction.end(Status.ABORTED)
            raise self._unknown(command)
        if command.ends_transaction:
            transaction.end(Status.ABORTED if command.name == ABORT else Status.COMMITTED)
            return {"ok": 1.0}
        try:
            if command.reads:
                return answer_to(command, transaction.documents)
            statement = _Statement(self._version, state, transaction, self.in_progress, self._tick)
            reply = _done(statement.run(command))
        except CommandError:
            transaction.end(Status.ABORTED)
            raise
        if "writeErrors" in reply:
            transaction.end(Status.ABORTED)
        return reply

    def is_in_progress(self, command: Command) -> bool:
        """Tell whether the transaction that a command belongs to is open."""
        latest = self._latest.get(command.session or b"")
        is_open = latest is not None and latest.status is Status.IN_PROGRESS
        return is_open and latest.number == command.number

    def to_commit(self, command: Command, state: State) -> tuple[Change, ...]:
        """Return what a command commits; nothing if it is no commit, or of nothing."""
        latest = self._latest.get(command.session or b"")
        commits = command.name == COMMIT and not command.body.get("recovers")
        if not commits or latest is None or latest.number != command.number:
            return ()
        self._require_latest(latest.session, latest.number, state)
        return latest.changes

    def _of(self, command: Command, state: State) -> Transaction | None:
        """Return the transaction that a command belongs to; None if others have committed it."""
        session, number = command.session, command.number
        if session is None or number is None:
            raise AssertionError("a transaction has a session and a number")
        known = self._require_latest(session, number, state)
        starts = bool(command.body.get("startTransaction"))
        latest, record = self._latest.get(session), state.records.get(session)
        if number > known:
            if not starts:
                raise self._unknown(command)
            self._abort(latest)
            self._numbers[session] = number
            self._latest[session] = begun = Transaction(state, session, number)
            self._has_begun(begun)
            return begun
        if starts:
            raise CommandError(ALREADY_STARTED, "ConflictingOperationInProgress")
        if latest is not None and latest.number == number:
            return latest
        if record is not None and record.number == number and record.is_committed:
            return None
        raise self._unknown(command)

    def _require_latest(self, session: bytes, number: int, state: State) -> int:
        """Return the latest number of a session.

        Raises:
            CommandError: That is a later one.
        """
        record = state.records.get(session)
        known = max(self._numbers.get(session, 0), 0 if record is None else record.number)
        if number < known:
            raise CommandError(TOO_OLD, "TransactionTooOld")
        return known

    def _unknown(self, command: Command) -> CommandError:
        return error_of(NO_SUCH_TRANSACTION, "NoSuchTransaction", command, self._version)

    @staticmethod
    def _abort(transaction: Transaction | None) -> None:
        if transaction is not None and transaction.status is Status.IN_PROGRESS:
            transaction.end(Status.ABORTED)


class _Statement(Execution):
    """A command that writes in a transaction; its first error aborts that."""

    def __init__(
        self,
        version: tuple[int, int],
        state: State,
        transaction: Transaction,
        others: list[Transaction],
        tick: Callable[[], Timestamp],
    ) -> None:
        super().__init__(version, state, _refuse, 0.0, tick)
        self._transaction = transaction
        self._others = [one for one in others if one is not transaction]

    def documents(self, collection: str) -> Documents:
        return self._transaction.documents(collection)

    def _ends_with_error(self, command: Command) -> bool:
        return True

    def _record_of(self, command: Command) -> None:
        return None

    def _log(
        self,
        command: Command,
        number: int,
        key: Any,
        document: Mapping[str, Any] | None,
        answer: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        collection, transaction = command.collection, self._transaction
        if any(one.bars(collection, key) for one in self._others) or transaction.was_changed(
            collection, key
        ):
            raise error_of(WRITE_CONFLICT, "WriteConflict", command, self._version)
        transaction.write(collection, key, document)
        return answer


def _refuse(**_: Any) -> None:
    raise AssertionError("nothing is written before the commit")


def _done(work: Work[T]) -> T:
    """Return what comes of work that waits for nobody."""
    try:
        next(work)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a part of a transaction waits for nobody")
