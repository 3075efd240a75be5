"""What callers see of pending updates: results, reports and errors."""

import asyncio
from dataclasses import dataclass
from typing import Any

from pymongo.errors import PyMongoError

from aioretry import Outcome
from aioretry.idempotent._pending_update import NewUpdate, Token


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """What came of an update."""

    token: Token
    """What the update was known by."""

    matched: bool
    """Whether there was a document with this ``_id``; if so, the update was applied to it once."""

    already: bool = False
    """Whether it had been applied before this call, or by a clean-up during it."""


@dataclass(frozen=True, slots=True)
class FailedToken:
    """A token whose update the server refuses."""

    id: Any
    """The ``_id`` of the document."""

    token: Token
    """The token."""

    error: PyMongoError
    """What the server said."""


@dataclass(frozen=True, slots=True)
class CleanUpReport:
    """What a clean-up has done, or has done so far."""

    found: int = 0
    """Tokens that were old enough."""

    finished: int = 0
    """Those whose update was applied."""

    already_gone: int = 0
    """Those that somebody else was quicker to finish, or whose document was deleted."""

    failed: tuple[FailedToken, ...] = ()
    """Those whose update the server refuses; they are left, unless they were to be dropped."""

    tidied: int = 0
    """Documents that marks of updates applied long ago were removed from."""


@dataclass(frozen=True, slots=True)
class PendingStatus:
    """What is pending in a collection."""

    tokens: int
    """Updates that were begun and are not applied yet."""

    oldest: float | None
    """The age of the oldest of them, in seconds by the server's clock; None if there is none."""

    marks: int
    """Marks of updates that are applied, kept so that they can't be repeated by mistake."""


class PendingError(PyMongoError):
    """What pending updates raise of their own."""

    def __init__(self, message: str, update: NewUpdate) -> None:
        super().__init__(message)
        self.update = update
        """The update; for :meth:`~aioretry.idempotent.PendingUpdates.resolve`."""

    @property
    def id(self) -> Any:
        """The ``_id`` of the document."""
        return self.update.update.id

    @property
    def token(self) -> Token:
        """What the update is known by."""
        return self.update.update.token


class TooManyPendingError(PendingError):
    """The document has no room for another token; this call has sent nothing that is there.

    Run the clean-up, or raise ``max_pending``.
    """


class TokenConflictError(PendingError):
    """The token is that of another update; this call has changed nothing."""


class UpdateRefusedError(PendingError):
    """The server has refused the update, in an earlier call with this token.

    Or in this one, and the token could not be taken away, as the message says: then the clean-up
    will try the update again.
    """


class TokenExpiredError(PendingError):
    """The token is too old to be added; this call has changed nothing.

    ``outcome`` is ``NOT_APPLIED`` if no earlier call with this token has changed anything either,
    and ``UNKNOWN`` if the document does not remember that any more.
    """

    def __init__(self, message: str, update: NewUpdate, outcome: Outcome) -> None:
        super().__init__(message, update)
        self.outcome = outcome


class UpdateInterruptedError(PendingError):
    """An update was begun, and could not be brought to its end.

    ``error`` is what it failed with, or was cancelled with. If ``will_be_applied``, the token is in
    the document: the update is applied already, or will be by the next clean-up, once. Otherwise it
    is unknown whether the token is there; if it is, the same holds. :func:`~aioretry.outcome_of`
    says ``UNKNOWN`` in either case.
    :meth:`~aioretry.idempotent.PendingUpdates.resolve` goes on where it ended.
    """

    def __init__(
        self,
        message: str,
        update: NewUpdate,
        error: PyMongoError | asyncio.CancelledError,
        *,
        will_be_applied: bool,
    ) -> None:
        super().__init__(message, update)
        self.error = error
        self.will_be_applied = will_be_applied

    @property
    def timeout(self) -> bool:
        """Whether it failed because time was over."""
        return isinstance(self.error, PyMongoError) and self.error.timeout
