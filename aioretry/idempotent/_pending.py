"""Updates that are applied once on any deployment, by way of a token in the document."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bson import ObjectId
from pymongo.errors import InvalidOperation

from aioretry import deadline
from aioretry.errors import links_of
from aioretry.idempotent._collections import Collection
from aioretry.idempotent._pending_apply import Application
from aioretry.idempotent._pending_cleanup import CleanUp, read_status
from aioretry.idempotent._pending_sending import Documents, repeat
from aioretry.idempotent._pending_update import (
    NewUpdate,
    validate_array_filters,
    validate_update,
)
from aioretry.idempotent._pending_values import (
    AppliedUpdate,
    CleanUpReport,
    PendingStatus,
    UpdateInterruptedError,
)

_SHORTEST, _LONGEST = 2.0, 7 * 24 * 3600.0
_MOST_PENDING = 10_000


class PendingUpdates:
    """Updates of single documents that are applied exactly once, without sessions.

    An update takes two writes: the first adds a token to an array in the document, the second
    applies the update and takes the token away, at once. Each can be repeated. What a process began
    and did not end is finished by :meth:`clean_up`, from any process: run it now and then.

    All writes have the write concern ``w: majority, j: true``, whatever the collection has.

    Args:
        collection: A collection of aioretry, of Motor or of PyMongo's ``AsyncMongoClient``, on any
            deployment, standalone servers included. MongoDB 4.2 or newer.
        field: The name of the array, at the top level of the documents. Nobody else may write it.
        max_pending: How many tokens and marks a document may have at once, from 1 to 10,000.
        lifetime: How many seconds a token may be added for, from its making on, by the server's
            clock; from 2 to 604,800. It must be the same in all processes, and longer than the
            clocks of clients and servers differ.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        collection: Collection,
        *,
        field: str = "pending",
        max_pending: int = 100,
        lifetime: float = 60.0,
    ) -> None:
        _validate_field(field)
        _validate_whole("max_pending", max_pending, _MOST_PENDING)
        _validate_seconds("lifetime", lifetime, _SHORTEST, _LONGEST)
        self._options = collection.codec_options
        self._documents = Documents(collection, field)
        self._field = field
        self._max_pending = max_pending
        self._lifetime = timedelta(seconds=lifetime)

    async def apply(
        self,
        id: Any,
        update: Mapping[str, Any],
        *,
        token: ObjectId | None = None,
        array_filters: Sequence[Mapping[str, Any]] | None = None,
        upsert: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> AppliedUpdate:
        """Apply an update to the document with an ``_id``, once.

        Failures of the network and of servers that stop or step down are repeated: as often as
        time allows under a deadline, otherwise once for each of the two writes.

        Args:
            id: The document's ``_id``.
            update: Update operators, whether they are idempotent or not. The same names as in
                ``update_one``, but no pipeline, no ``$setOnInsert`` and no positional ``$``.
            token: The same for every call that means the same update, from whatever process; its
                time counts as that of its making. It leaves a mark in the document for two
                lifetimes. None makes one for this call.
            array_filters: Which array elements the update is for.
            upsert: Whether to create the document if there is none.
            timeout: How many seconds it may take; a surrounding deadline that is nearer counts.

        Returns:
            Whether there was a document, and whether the update had been applied before.

        Raises:
            UpdateInterruptedError: It was begun and is not known to be applied; :meth:`resolve`
                goes on, and :meth:`clean_up` finishes what was left. It is the cause of a
                CancelledError, and so of a TimeoutError, that has cut the call off then.
            TooManyPendingError: The document has no room for a token.
            TokenExpiredError: The token is too old.
            TokenConflictError: The token was used for another update.
            UpdateRefusedError: The server refused the update in an earlier call with this token.
            PyMongoError: Nothing was done: the server refuses the update, or nothing was sent.
            InvalidOperation: By the server's clock the token is made in the future.
            InvalidDocument: The update can't be encoded.
            TypeError: An argument is of the wrong type; nothing was sent.
            ValueError: An argument is out of its range; nothing was sent.
        """
        validate_update(update, self._field)
        validate_array_filters(array_filters)
        if token is not None and not isinstance(token, ObjectId):
            raise TypeError(f"token must be an ObjectId or None, not {type(token).__name__}")
        new = NewUpdate.of(
            id,
            update,
            array_filters,
            token,
            lifetime=self._lifetime,
            upsert=bool(upsert),
            options=self._options,
        )
        return await self._run(new, timeout, added=False)

    async def resolve(self, exc: BaseException, *, timeout: float | None = None) -> AppliedUpdate:  # noqa: ASYNC109
        """Go on with an update that was interrupted.

        It is safe at any time, and to repeat. If the token may not have been added, it has to
        be within its lifetime.

        Args:
            exc: What :meth:`apply` or this method raised, or what was raised from it.
            timeout: How many seconds it may take; a surrounding deadline that is nearer counts.

        Returns:
            As :meth:`apply`.

        Raises:
            PyMongoError: As :meth:`apply`.
            InvalidOperation: Nothing was sent: the exception is no
                :class:`UpdateInterruptedError`, and was not raised from one.
            TypeError: ``timeout`` is not a number.
            ValueError: ``timeout`` is negative or NaN.
        """
        links = links_of(exc)
        interrupted = next((e for e in links if isinstance(e, UpdateInterruptedError)), None)
        if interrupted is None:
            raise InvalidOperation(
                f"exc must be an UpdateInterruptedError, not {type(exc).__name__}"
            )
        # The interrupted call may still have a command under way: so the token leaves a mark.
        return await self._run(
            replace(interrupted.update, is_shared=True), timeout, added=interrupted.will_be_applied
        )

    async def clean_up(
        self,
        *,
        older_than: float | None = None,
        drop_refused: bool = False,
        batch_size: int = 100,
        on_progress: Callable[[CleanUpReport], object] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> CleanUpReport:
        """Finish updates that were begun and left, and remove marks that are old enough.

        It is safe at any time, beside writers and other clean-ups, and to repeat.

        Args:
            older_than: From which age on tokens are finished, in seconds by the server's clock;
                None for the lifetime. Less only takes work from writers that still live.
            drop_refused: Whether a token whose update the server refuses, as one of a wrong type,
                is taken away. It is in the report either way.
            batch_size: How many tokens are read at a time, from 1 to 10,000.
            on_progress: Is called with what was done so far after each batch, and at the end.
            timeout: How many seconds it may take; a surrounding deadline that is nearer counts.

        Returns:
            What was done.

        Raises:
            PyMongoError: It was cut off; what is done is done.
            TypeError: An argument is of the wrong type.
            ValueError: An argument is out of its range.
        """
        age = self._lifetime.total_seconds() if older_than is None else older_than
        _validate_seconds("older_than", age, 0.0, math.inf)
        _validate_whole("batch_size", batch_size, 10_000)
        async with deadline(timeout) as limit:
            return await CleanUp(
                self._documents,
                older_than=age,
                drop_refused=drop_refused,
                batch_size=batch_size,
                limit=limit,
                on_progress=on_progress,
            ).run()

    async def status(self, *, timeout: float | None = None) -> PendingStatus:  # noqa: ASYNC109
        """Count what is pending.

        Args:
            timeout: How many seconds it may take; a surrounding deadline that is nearer counts.

        Returns:
            The number of tokens and marks, and the age of the oldest token.

        Raises:
            PyMongoError: It could not be read.
        """
        async with deadline(timeout) as limit:
            return await repeat(lambda: read_status(self._documents), limit)

    async def create_index(self) -> str:
        """Create the index that :meth:`clean_up` and :meth:`status` find tokens by.

        It holds only what is pending. Without it they read the whole collection.

        Returns:
            Its name.

        Raises:
            PyMongoError: It could not be created.
        """
        return await repeat(self._documents.create_index, None)

    async def _run(self, new: NewUpdate, seconds: float | None, *, added: bool) -> AppliedUpdate:
        async with deadline(seconds) as limit:
            return await Application(
                self._documents, new, max_pending=self._max_pending, limit=limit, added=added
            ).run()


def _validate_field(field: object) -> None:
    if not isinstance(field, str):
        raise TypeError(f"field must be a name, not {type(field).__name__}")
    if not field or field == "_id" or field.startswith("$") or "." in field or "\0" in field:
        raise ValueError(f"field must be a name at the top level of a document, not {field!r}")


def _validate_whole(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} must be from 1 to {most:,}, not {value}")


def _validate_seconds(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not least <= value <= most or math.isinf(value):
        raise ValueError(f"{name} must be from {least:g} to {most:g} seconds, not {value!r}")
