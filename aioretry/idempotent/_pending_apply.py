"""One update by way of a token: add the token, then apply the update and take the token away."""

import asyncio
import enum
from typing import Any

from pymongo.errors import InvalidOperation, PyMongoError

from aioretry import Deadline, Outcome, attempts_of
from aioretry.errors import Doubt, attach
from aioretry.idempotent._pending_sending import Documents, is_refusal, may_have_arrived, repeat
from aioretry.idempotent._pending_update import APPLIED, REFUSED, NewUpdate
from aioretry.idempotent._pending_values import (
    AppliedUpdate,
    PendingError,
    TokenConflictError,
    TokenExpiredError,
    TooManyPendingError,
    UpdateInterruptedError,
    UpdateRefusedError,
)


class _Found(enum.Enum):
    """What a document has of a token."""

    TOKEN = enum.auto()
    MARK = enum.auto()
    NO_DOCUMENT = enum.auto()
    ROOM = enum.auto()


class Application:
    """The way of one update, from its token to its end.

    Args:
        documents: Where its document is.
        new: The update.
        max_pending: How many tokens and marks a document may have.
        limit: When to end; None to repeat each command once.
        added: Whether the token is known to have been added.
    """

    def __init__(
        self,
        documents: Documents,
        new: NewUpdate,
        *,
        max_pending: int,
        limit: Deadline | None,
        added: bool = False,
    ) -> None:
        self._documents = documents
        self._new = new
        self._max_pending = max_pending
        self._limit = limit
        self._added = added
        self._in_doubt = False  # whether a command that adds the token may still arrive
        self._found_nothing = False  # whether one was answered that it found nothing

    async def run(self) -> AppliedUpdate:
        """Bring the update to its end.

        Raises:
            PendingError: The update was not applied, or it is not known to be.
            PyMongoError: Nothing of it was done.
            CancelledError: From an :class:`UpdateInterruptedError`, unless nothing was done.
        """
        try:
            with self._documents.begin():
                return await self._run()
        except PendingError:
            raise
        except PyMongoError as exc:
            if not self._added and not self._in_doubt:
                raise
            raise self._interrupted(exc) from exc
        except asyncio.CancelledError as exc:
            if not self._added and not self._in_doubt:
                raise
            # What was cancelled knows of its own command alone.
            raise asyncio.CancelledError(*exc.args) from self._interrupted(exc)

    async def _run(self) -> AppliedUpdate:
        token = self._new.update.token
        if not self._added:
            found = await self._add()
            if found is _Found.NO_DOCUMENT:
                return AppliedUpdate(token, matched=False)
            if found is _Found.MARK:
                return AppliedUpdate(token, matched=True, already=True)
            self._added = True
        return AppliedUpdate(token, matched=True, already=not await self._finish())

    async def _add(self) -> _Found:
        while not await repeat(self._send_token, self._limit, self._note):
            self._found_nothing = True
            found = await repeat(self._look, self._limit)
            if found is _Found.NO_DOCUMENT and self._new.upsert:
                if await repeat(self._create_with_token, self._limit, self._note):
                    return _Found.TOKEN
            elif found is not _Found.ROOM:
                return found
        return _Found.TOKEN

    def _note(self, error: BaseException) -> None:
        self._in_doubt = self._in_doubt or may_have_arrived(error)

    async def _send_token(self) -> bool:
        field = self._documents.field
        return await self._documents.update_one(
            self._new.adding_filter(field, self._max_pending),
            {"$push": {field: self._new.element}},
        )

    async def _create_with_token(self) -> bool:
        field = self._documents.field
        elements = await self._documents.upsert(
            {"_id": {"$eq": self._new.update.id}}, self._new.creating(field, self._max_pending)
        )
        own = self._new.update.token, self._new.digest
        return any((each["t"], each["h"]) == own and "d" not in each for each in elements)

    async def _look(self) -> _Found:
        """Find out why the token was not added."""
        row = await self._read()
        if row is None:
            return _Found.NO_DOCUMENT
        if row["found"]:
            return self._judge(row["found"][0])
        lifetime = self._new.lifetime.total_seconds()
        if row["is_early"]:
            raise InvalidOperation(
                f"the token is made more than {lifetime:g} s later than it is by the server's "
                "clock: the clocks differ"
            )
        if row["is_expired"]:
            outcome = Outcome.UNKNOWN if row["is_forgotten"] else Outcome.NOT_APPLIED
            raise TokenExpiredError(
                f"the token was made more than {lifetime:g} s ago by the server's clock, and is "
                f"not there; whether the update was applied: {outcome.value}",
                self._new,
                outcome,
            )
        if row["size"] < self._max_pending:
            return _Found.ROOM
        if self._in_doubt:  # a command that is late may still find room
            raise self._interrupted(self._too_many())
        raise self._too_many()

    async def _read(self) -> dict[str, Any] | None:
        rows = await self._documents.read_latest(self._new.looking(self._documents.field))
        return rows[0] if rows else None

    def _judge(self, element: dict[str, Any]) -> _Found:
        if element["h"] != self._new.digest:
            raise TokenConflictError("the token is that of another update", self._new)
        if element.get("d") == REFUSED:
            raise self._refused("in an earlier call")
        return _Found.MARK if element.get("d") == APPLIED else _Found.TOKEN

    async def _finish(self) -> bool:
        """Apply the update and take the token away; return whether it was this that did it."""
        # Whoever may still add the token must find that it was there. The driver repeats commands
        # unseen, and what found nothing has left no record by which a late one would be known.
        mark = self._new.is_shared or self._in_doubt or self._found_nothing
        failures: list[BaseException] = []
        try:
            matched = await repeat(
                lambda: self._documents.finish(self._new.update, mark=mark),
                self._limit,
                failures.append,
            )
        except PyMongoError as exc:
            if not is_refusal(exc):
                raise
            refusal = exc
        else:
            return matched or (await self._was_applied() and bool(failures))
        if await self._withdraw(refusal, mark=mark or len(failures) > 1):
            self._added = self._in_doubt = False
            raise refusal
        return False

    async def _was_applied(self) -> bool:
        """Tell that a token that is gone was applied; raise if it was refused."""
        if await self._states() == [REFUSED]:
            raise self._refused("in an earlier call, or a clean-up")
        return True

    async def _withdraw(self, refusal: PyMongoError, *, mark: bool) -> bool:
        """Take the token away without the update; return whether it had not been applied."""
        update, reason = self._new.update, REFUSED if mark else None
        failures: list[BaseException] = []
        try:
            if await repeat(
                lambda: self._documents.withdraw(update, mark=reason),
                self._limit,
                failures.append,
            ):
                return True
            # Either an answer was lost, or the update was applied meanwhile, after all.
            states = await self._states()
        except PyMongoError as exc:
            error = exc
        else:
            return states == [REFUSED] if states else bool(failures) and not mark
        # No cause, which would speak for the whole: the clean-up may yet succeed.
        raise self._refused(f"({refusal}), and its token may be left ({error})")

    async def _states(self) -> list[str | None]:
        """Return how the token is marked: in a list, which is empty if it is gone."""
        row = await repeat(self._read, self._limit)
        return [] if row is None else [element.get("d") for element in row["found"]]

    def _refused(self, when: str) -> UpdateRefusedError:
        return UpdateRefusedError(f"the server refused the update {when}", self._new)

    def _too_many(self) -> TooManyPendingError:
        return TooManyPendingError(
            f"the document has {self._max_pending} tokens and marks in "
            f"{self._documents.field!r}: run the clean-up",
            self._new,
        )

    def _interrupted(self, error: PyMongoError | asyncio.CancelledError) -> UpdateInterruptedError:
        state = (
            "its token is in the document, so that it is applied, or will be by the clean-up"
            if self._added
            else "whether its token is in the document is unknown"
        )
        interrupted = UpdateInterruptedError(
            f"the update was interrupted, and {state}: {str(error) or type(error).__name__}",
            self._new,
            error,
            will_be_applied=self._added,
        )
        # The error knows of its own command alone.
        attach(interrupted, Outcome.UNKNOWN, attempts_of(error), doubt=_OfTwoWrites())
        return interrupted


class _OfTwoWrites(Doubt):
    """What ``aioretry.resolve()`` can't send once more."""

    def why_unresolvable(self) -> str:
        """Say who can."""
        return "it is an update of two writes, and goes on by PendingUpdates.resolve()"
