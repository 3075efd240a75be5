"""What a member stores: documents, and what was done under which transaction id. Pure.

It is a function of the member's oplog, so that what is rolled back is forgotten by both.
"""

from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from bson.timestamp import Timestamp

from tests.simulation.commands import (
    DUPLICATE_KEY,
    INCOMPLETE_HISTORY,
    INVALID_OPTIONS,
    MAX_TIME,
    Command,
    CommandError,
    StatementError,
    error_of,
)
from tests.simulation.language import NO_TIME, changes, is_match, key_of, updated

FIRST_TELLING = (6, 0)
"""From this version on a reply says what is known from before."""

FIRST_IN_ORDER = (5, 0)

# TransactionRecordMinimumLifetimeMinutes, and logicalSessionTimeoutMinutes.
REMEMBERED_FOR = 30 * 60.0

Documents: TypeAlias = Mapping[Any, Mapping[str, Any]]
T = TypeVar("T")
Work: TypeAlias = Generator[bool, None, T]
"""What is done in one go, unless it yields because it has to wait until something has happened.

It yields whether it can be given up meanwhile.
"""

Change: TypeAlias = tuple[str, Any, Mapping[str, Any] | None]
"""A collection, an id, and what the document is now; None if it was deleted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the oplog: a statement that has changed something, a commit, or a new term."""

    term: int
    index: int
    at: float
    changes: tuple[Change, ...] = ()
    session: bytes | None = None
    number: int = 0
    statement: int = 0
    answer: Mapping[str, Any] = field(default_factory=dict)
    """What is told of the statement, now and whenever it is asked again."""

    commits: bool = False
    """Whether it is all that a transaction has written."""


@dataclass(slots=True)
class Record:
    """What is remembered of the latest transaction id of a session."""

    number: int
    at: float
    statements: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    is_incomplete: bool = False
    """Whether entries of it have left the oplog."""

    is_committed: bool = False
    """Whether it is that of a transaction."""


class Watcher(Protocol):
    """Who wants to know what documents were before others changed them."""

    def note(self, collection: str, key: Any, before: Mapping[str, Any] | None) -> None:
        """Take note of one that is about to be changed."""
        ...


class State:
    """What the entries of an oplog amount to."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[Any, Mapping[str, Any]]] = {}
        self.records: dict[bytes, Record] = {}
        self.watchers: list[Watcher] = []
        """Told of each document that is about to be changed."""

    def documents(self, collection: str) -> dict[Any, Mapping[str, Any]]:
        """Return the documents of a collection, by their ids."""
        return self.collections.setdefault(collection, {})

    def apply(self, entry: Entry) -> None:
        """Take over an entry of the oplog."""
        for collection, key, document in entry.changes:
            documents = self.documents(collection)
            for watcher in self.watchers:
                watcher.note(collection, key, documents.get(key))
            if document is None:
                documents.pop(key, None)
            else:
                documents[key] = document
        if entry.session is not None:
            record = self.records.get(entry.session)
            if record is None or record.number != entry.number:
                record = self.records[entry.session] = Record(entry.number, entry.at)
            record.at = entry.at
            record.is_committed = entry.commits
            if not entry.commits:
                record.statements[entry.statement] = entry.answer

    def forget_old(self, now: float, sessions: Container[bytes]) -> dict[bytes, float]:
        """Forget what is old, apart from what was done over sessions that there are.

        Returns:
            The sessions of what it was, and when it was done, by the wall clock.
        """
        old = {
            session: record.at
            for session, record in self.records.items()
            if session not in sessions and now - record.at > REMEMBERED_FOR
        }
        for session in old:
            del self.records[session]
        return old

    def lose_history(self) -> None:
        """Have all that was done left the oplog: that it was is known, and not what it was."""
        for record in self.records.values():
            record.statements.clear()
            record.is_incomplete = True


class Execution:
    """Executes a command on a primary, as a mongod does.

    Args:
        version: Its version.
        state: What the primary stores; it is changed through entries only.
        append: Adds an entry to the oplog, which applies it.
        at: The server's time.
        tick: Returns the next time that documents have of it.
        is_locked: Tells whether a transaction that is open bars who would write a document.
        is_late: Tells whether its time is over.
    """

    def __init__(
        self,
        version: tuple[int, int],
        state: State,
        append: Callable[..., None],
        at: float,
        tick: Callable[[], Timestamp],
        is_locked: Callable[..., bool] = lambda *_, **__: False,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        self._version = version
        self._state = state
        self._append = append
        self._at = at
        self._tick = tick
        self._is_locked = is_locked
        self._is_late = is_late

    def run(self, command: Command) -> Work[dict[str, Any]]:
        """Return the reply, once no transaction holds it up any more.

        Raises:
            CommandError: The command is refused as a whole.
        """
        if command.is_retryable_write and command.holds_multi:
            raise CommandError(INVALID_OPTIONS, "no multi updates in retryable writes")
        record = self._record_of(command)
        if record is not None and record.is_committed:
            raise CommandError(INCOMPLETE_HISTORY, "it has been converted into a transaction")
        if command.name == "findAndModify":
            return (yield from self._find_and_modify(command, record))
        reply: dict[str, Any] = {"ok": 1.0, "n": 0}
        if command.name == "update":
            reply["nModified"] = 0
        errors, retried, upserted = [], [], []
        ids = command.body.get("stmtIds") or range(len(command.statements))
        for index, number, statement in self._in_order(command, record, ids):
            known = None if record is None else record.statements.get(number)
            if record is not None and known is None and record.is_incomplete:
                raise CommandError(INCOMPLETE_HISTORY, "IncompleteTransactionHistory")
            try:
                answer = known or (yield from self._execute(command, statement, number))
            except StatementError as exc:
                errors.append({"index": index, "code": exc.code, "errmsg": str(exc)})
                if self._ends_with_error(command):
                    break
                continue
            if known is not None:
                retried.append(number)
            reply["n"] += answer["n"]
            if command.name == "update":
                reply["nModified"] += answer["nModified"]
            if "upserted" in answer:
                upserted.append({"index": index, "_id": answer["upserted"]})
        if upserted:
            reply["upserted"] = upserted
        if errors:
            reply["writeErrors"] = errors
        if retried and self._version >= FIRST_TELLING:
            reply["retriedStmtIds"] = retried
        return reply

    def _in_order(
        self, command: Command, record: Record | None, ids: Sequence[int]
    ) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
        """Give the statements that are executed, or answered from memory; each with its index.

        Before MongoDB 5.0, inserts that are new are gathered until the last one; those that are
        known go first, and if the last one is known, nobody executes what was gathered.
        """
        numbered = [*zip(ids, command.statements, strict=True)]
        if command.name == "insert" and record is not None and self._version < FIRST_IN_ORDER:
            known = [one for one in numbered if one[0] in record.statements]
            new = [one for one in numbered if one[0] not in record.statements]
            numbered = known if known and known[-1] is numbered[-1] else known + new
        for index, (number, statement) in enumerate(numbered):
            yield index, number, statement

    def documents(self, collection: str) -> Documents:
        """Return what the command sees of a collection."""
        return self._state.documents(collection)

    def _wait(self, command: Command, key: Any, *, upserts: bool) -> Work[None]:
        """Wait for a transaction; who would insert by an update does so however long it takes.

        Raises:
            CommandError: It has taken so long that a write with an id ends with it.
        """
        is_patient = upserts and key not in self.documents(command.collection)
        yield not is_patient
        if is_patient and command.is_retryable_write and self._is_late():
            raise error_of(MAX_TIME, "MaxTimeMSExpired", command, self._version)

    def _ends_with_error(self, command: Command) -> bool:
        """Tell whether the statements after one that was refused are left out."""
        return bool(command.body.get("ordered", True))

    def _record_of(self, command: Command) -> Record | None:
        if command.number is None or command.session is None:
            return None
        record = self._state.records.get(command.session)
        return record if record is not None and record.number == command.number else None

    def _find_and_modify(self, command: Command, record: Record | None) -> Work[dict[str, Any]]:
        known = None if record is None else record.statements.get(0)
        if record is not None and known is None and record.is_incomplete:
            raise CommandError(INCOMPLETE_HISTORY, "IncompleteTransactionHistory")
        if known is not None:
            told = {"retriedStmtId": 0} if self._version >= FIRST_TELLING else {}
            return {"ok": 1.0, **known, **told}
        query = command.body["query"]
        key = key_of(query["_id"])
        upserts = bool(command.body.get("upsert"))
        while self._is_locked(command.collection, key):
            if not upserts and key not in self.documents(command.collection):
                break  # it finds nothing
            yield from self._wait(command, key, upserts=upserts)
        before = self.documents(command.collection).get(key)
        if before is not None and not is_match(before, query, self._at):
            before = None  # nobody here upserts by more than an id
        after, is_changed = before, False
        if command.body.get("remove"):
            after, is_changed = None, before is not None
        elif before is not None or command.body.get("upsert"):
            update, inserts = command.body["update"], before is None
            found = before or {"_id": query["_id"]}
            after = updated(found, update, self._at, inserts=inserts)
            is_changed = before is None or changes(before, after, update)
        answer = {"value": after if command.body.get("new") else before}
        if is_changed:
            self._log(command, 0, key, after, answer)
        return {"ok": 1.0, **answer}

    def _execute(
        self, command: Command, statement: Mapping[str, Any], number: int
    ) -> Work[Mapping[str, Any]]:
        documents = self.documents(command.collection)
        keys = self._targets(command, statement, documents)
        inserts = command.name == "insert"
        while any(self._is_locked(command.collection, key, inserts=inserts) for key in keys):
            yield from self._wait(command, keys[0], upserts=bool(statement.get("upsert")))
            keys = self._targets(command, statement, documents)
        if command.name == "insert":
            (key,) = keys
            if key in documents:
                raise StatementError(DUPLICATE_KEY, f"E11000 duplicate key: {key}")
            timed = {name: self._tick() for name, value in statement.items() if value == NO_TIME}
            return self._log(command, number, key, {**statement, **timed}, {"n": 1})
        if command.name == "delete":
            for key in keys:
                self._log(command, number, key, None, {"n": 1})
            return {"n": len(keys)}
        if keys and keys[0] not in documents:
            (key,), name = keys, statement["q"]["_id"]
            after = updated({"_id": name}, statement["u"], self._at, inserts=True)
            answer = {"n": 1, "nModified": 0, "upserted": name}
            return self._log(command, number, key, after, answer)
        modified = 0
        for key in keys:
            after = updated(documents[key], statement["u"], self._at)
            if changes(documents[key], after, statement["u"]):
                modified += 1
                self._log(command, number, key, after, {"n": 1, "nModified": 1})
        return {"n": len(keys), "nModified": modified}

    def _targets(
        self, command: Command, statement: Mapping[str, Any], documents: Documents
    ) -> list[Any]:
        """Return the ids of the documents that a statement inserts or changes."""
        if command.name == "insert":
            return [key_of(statement["_id"])]
        keys = matching(documents, statement["q"], self._at)
        if not keys and statement.get("upsert"):
            return [key_of(statement["q"]["_id"])]
        return keys if statement.get("multi") or statement.get("limit") == 0 else keys[:1]

    def _log(
        self,
        command: Command,
        number: int,
        key: Any,
        document: Mapping[str, Any] | None,
        answer: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        session = None if command.number is None else command.session
        self._append(
            changes=((command.collection, key, document),),
            session=session,
            number=command.number or 0,
            statement=number,
            answer=answer,
            at=self._at,
        )
        return answer


def matching(documents: Documents, query: Mapping[str, Any], now: float = 0.0) -> list[Any]:
    """Return the ids of the documents that match, as they are kept by them."""
    if "_id" in query:
        key = key_of(query["_id"])
        return [key] if key in documents and is_match(documents[key], query, now) else []
    return [key for key, document in documents.items() if is_match(document, query, now)]
