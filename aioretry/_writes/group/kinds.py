"""What may travel together, and what the reply to a command says of each statement in it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pymongo.errors import OperationFailure, WriteConcernError, WriteError

from aioretry._commands.replies import alone

Reply = Mapping[str, Any]

_UNREAD = frozenset({15, 22})  # Overflow, of the levels of a document; InvalidBSON

_SUMS = frozenset({"n", "nModified", "retriedStmtIds", "upserted", "writeErrors"})


class Reading:
    """What the reply to several inserts says of each.

    Args:
        reply: The reply.
        count: How many statements the command has.
    """

    def __init__(self, reply: Reply, count: int) -> None:
        self._reply = reply
        self._count = count
        self.denials: dict[int, Reply] = {e["index"]: e for e in reply.get("writeErrors", ())}
        """The errors of the statements that were refused, by their places."""

        self._good: Reply | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every statement is acknowledged, and it is known what came of it."""
        return self.says_each and not self.denials and not self._reply.get("writeConcernError")

    @property
    def says_each(self) -> bool:
        """Whether it says of every statement what came of it, if none is refused."""
        return self._count == 1 or self._reply.get("n") == self._count

    def alone(self, index: int) -> Reply | None:
        """Return what the reply to a statement alone would have been; None if that is not said."""
        denial = self.denials.get(index)
        if denial is not None:
            return alone(self._reply, denial)
        if self._good is None:  # which is the same for thousands
            self._good = alone(self._reply, None)
        return self._good


class _SumReading(Reading):
    """What the sums of a reply say of each statement: something if they are all or nothing."""

    def __init__(self, reply: Reply, count: int) -> None:
        super().__init__(reply, count)
        self._rest = count - len(self.denials)
        self._same = {name: value for name, value in reply.items() if name not in _SUMS}

    @property
    def says_each(self) -> bool:
        """Whether it says of every statement that is not refused what came of it."""
        return not self._rest or self._each() is not None

    def alone(self, index: int) -> Reply | None:
        """Return what the reply to a statement alone would have been; None if that is not said."""
        denial = self.denials.get(index)
        if denial is not None:
            return {**self._same, "n": 0, "writeErrors": [{**denial, "index": 0}]}
        each = self._each()
        return None if each is None else {**self._same, **each}

    def _each(self) -> Reply | None:
        """Return what is said of each statement of which nothing else is said."""
        removed = self._reply.get("n", 0)
        return {"n": 1 if removed else 0} if removed in (0, self._rest) else None


class _UpdateReading(_SumReading):
    """What the reply to several updates and replacements says of each."""

    def __init__(self, reply: Reply, count: int) -> None:
        super().__init__(reply, count)
        self._upserted: dict[int, Reply] = {u["index"]: u for u in reply.get("upserted", ())}
        self._rest -= len(self._upserted)

    def alone(self, index: int) -> Reply | None:
        """Return what the reply to a statement alone would have been; None if that is not said."""
        upserted = self._upserted.get(index)
        if upserted is not None:
            return {**self._same, "n": 1, "nModified": 0, "upserted": [{**upserted, "index": 0}]}
        return super().alone(index)

    def _each(self) -> Reply | None:
        matched = self._reply.get("n", 0) - len(self._upserted)
        modified = self._reply.get("nModified", 0)
        if matched == 0:
            return {"n": 0, "nModified": 0}
        if matched == self._rest and modified in (0, matched):
            return {"n": 1, "nModified": 1 if modified else 0}
        return None


@dataclass(frozen=True, slots=True)
class Kind:
    """What travels together."""

    operation: str
    """The method that such a command stands for."""

    command: str
    field: str
    """Of the command's statements."""

    reading: type[Reading]


INSERTS = Kind("insert_one", "insert", "documents", Reading)
UPDATES = Kind("update_one", "update", "updates", _UpdateReading)
DELETES = Kind("delete_one", "delete", "deletes", _SumReading)


def is_unread(error: BaseException | None) -> bool:
    """Tell whether a server has refused a command as a whole because of something in it.

    It has executed none of its statements then.
    """
    if not isinstance(error, OperationFailure) or isinstance(error, WriteError | WriteConcernError):
        return False
    return error.code in _UNREAD
