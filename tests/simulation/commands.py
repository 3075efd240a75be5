"""Commands as they came over the wire, and the errors that servers answer with. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WRITE_CONFLICT = 112
DUPLICATE_KEY = 11000
INVALID_OPTIONS = 72
ALREADY_STARTED = 117
INCOMPLETE_HISTORY = 217
TOO_OLD = 225
NO_SUCH_TRANSACTION = 251
COMMITTED = 256
NOT_PRIMARY = 10107
NO_SECONDARY_OK = 13435
INTERRUPTED = 11602
STEPPED_DOWN = 189
SHUTTING_DOWN = 91
MAX_TIME = 50
CONCERN_FAILED = 64

RETRYABLE = "RetryableWriteError"
TRANSIENT = "TransientTransactionError"

COMMIT, ABORT = "commitTransaction", "abortTransaction"
_ENDS = {COMMIT, ABORT}
_READS = {"find", "aggregate", "count", "distinct"}
_FIELDS = {"insert": "documents", "update": "updates", "delete": "deletes"}

# The errors that are retryable, and from which version on.
_RETRYABLE_CODES = dict.fromkeys(
    (6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436), (4, 4)
) | {317: (5, 0), 134: (6, 0), 384: (6, 0)}

# LockTimeout, WriteConflict, SnapshotUnavailable, NoSuchTransaction, PreparedTransactionInProgress.
_TRANSIENT_CODES = {24, WRITE_CONFLICT, 246, NO_SUCH_TRANSACTION, 267}


class CommandError(Exception):
    """The whole command is refused."""

    def __init__(self, code: int, text: str = "", *labels: str) -> None:
        super().__init__(text)
        self.reply: dict[str, Any] = {"ok": 0.0, "code": code, "codeName": text, "errmsg": text}
        if labels:
            self.reply["errorLabels"] = [*labels]


class StatementError(Exception):
    """A statement is refused."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Command:
    """A command as it came over the wire."""

    name: str
    body: Mapping[str, Any]
    session: bytes | None = None
    number: int | None = None

    @property
    def collection(self) -> str:
        """Where it goes."""
        return str(self.body[self.name])

    @property
    def reads(self) -> bool:
        """Whether it writes nothing."""
        return self.name in _READS

    @property
    def in_transaction(self) -> bool:
        """Whether it is a part of a transaction, or ends one."""
        return self.body.get("autocommit") is False

    @property
    def ends_transaction(self) -> bool:
        """Whether it commits or aborts."""
        return self.name in _ENDS

    @property
    def is_retryable_write(self) -> bool:
        """Whether it is a write with an id of its own."""
        return self.number is not None and not self.in_transaction

    @property
    def may_be_repeated(self) -> bool:
        """Whether a router sends it again by itself."""
        is_read = self.reads and not self.in_transaction
        return is_read or self.is_retryable_write or self.ends_transaction

    @property
    def reads_anywhere(self) -> bool:
        """Whether a secondary may answer it."""
        return self.body.get("$readPreference", {}).get("mode", "primary") != "primary"

    @property
    def concern(self) -> Mapping[str, Any]:
        """What it is to see."""
        concern: Mapping[str, Any] = self.body.get("readConcern", {})
        return concern

    @property
    def holds_multi(self) -> bool:
        """Whether a statement may change several documents."""
        if self.name == "delete":
            return not all(one["limit"] for one in self.statements)
        return self.name == "update" and any(one.get("multi") for one in self.statements)

    @property
    def statements(self) -> list[Mapping[str, Any]]:
        """What it holds."""
        if self.name == "findAndModify":
            return [self.body]
        return list(self.body[_FIELDS[self.name]])


def is_retryable(code: int | None, version: tuple[int, int] = (6, 0)) -> bool:
    """Tell whether whatever met an error may be sent again, if it may be at all."""
    since = _RETRYABLE_CODES.get(code or 0)
    return since is not None and since <= version


def labels_of(code: int, command: Command, version: tuple[int, int]) -> list[str]:
    """Return the labels of an error that a command meets."""
    may_be_sent_again, is_transient = is_retryable(code, version), code in _TRANSIENT_CODES
    if command.in_transaction and not command.ends_transaction:
        return [TRANSIENT] if may_be_sent_again or is_transient else []
    if command.ends_transaction and is_transient:
        return [TRANSIENT]
    is_labelled = command.is_retryable_write or command.ends_transaction
    return [RETRYABLE] if is_labelled and may_be_sent_again else []


def error_of(code: int, text: str, command: Command, version: tuple[int, int]) -> CommandError:
    """Return what a command is refused by, with the labels that it has then."""
    return CommandError(code, text, *labels_of(code, command, version))


def with_concern_error(
    reply: Mapping[str, Any], command: Command, code: int, text: str, version: tuple[int, int]
) -> dict[str, Any]:
    """Return a reply that says that the write concern was not met."""
    failed = {**reply, "writeConcernError": {"code": code, "errmsg": text}}
    labels = [one for one in labels_of(code, command, version) if one != TRANSIENT]
    if labels:
        return {**failed, "errorLabels": labels}
    if failed.get("code") == NO_SUCH_TRANSACTION:
        # Whatever tells so may be rolled back.
        failed.pop("errorLabels", None)
    return failed
