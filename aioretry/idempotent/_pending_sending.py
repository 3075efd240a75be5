"""Sending the commands of pending updates, as often as it takes."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from pymongo.errors import (
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WriteConcernError,
    WriteError,
)
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from aioretry import Deadline, Outcome, outcome_of
from aioretry._faces import Whole, settled, under_way_of
from aioretry.idempotent._collections import Collection
from aioretry.idempotent._pending_update import NEUTRAL, PendingUpdate
from aioretry.idempotent._repeat import until_done

T = TypeVar("T")

DURABLE = WriteConcern(w="majority", j=True)
LOCAL = ReadConcern("local")

_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0
_NOT_A_REPLICA_SET = 123
# Errors of a server that is stepping down, shutting down or too busy, a lost cursor, no time left.
_PASSING = frozenset(
    {6, 7, 24, 43, 46, 50, 89, 91, 112, 134, 189, 202, 262}
    | {9001, 10107, 11600, 11602, 13435, 13436}
)
# What a server says of a command that it can't read, as one that is nested too deeply.
_UNREADABLE = frozenset({2, 9, 14, 15, 22, 10334})


class Documents:
    """The documents of a collection, and the field in which they have their tokens."""

    def __init__(self, collection: Collection, field: str) -> None:
        self.field = field
        self._collection = collection.with_options(
            codec_options=NEUTRAL,
            read_preference=ReadPreference.PRIMARY,
            write_concern=DURABLE,
            read_concern=LOCAL,
        )

    def begin(self) -> Whole:
        """Return a block of several commands, to be entered.

        Raises:
            ClientDraining: Nothing new may begin.
        """
        return under_way_of(self._collection.database.client).begin()

    async def update_one(
        self,
        filter: Mapping[str, Any],
        update: Mapping[str, Any],
        array_filters: list[dict[str, Any]] | None = None,
    ) -> bool:
        """Send an update; return whether it matched."""
        result = await self._collection.update_one(filter, update, array_filters=array_filters)
        return bool(result.matched_count)

    async def upsert(
        self, filter: Mapping[str, Any], pipeline: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Send an update, which may create the document; return the array as it is then."""
        document = await self._collection.find_one_and_update(
            filter,
            pipeline,
            projection={f"{self.field}.{each}": 1 for each in "tdh"},
            upsert=True,
            return_document=True,
        )
        elements: list[dict[str, Any]] = document[self.field]
        return elements

    async def finish(self, update: PendingUpdate, *, mark: bool) -> bool:
        """Apply a pending update; return whether it was this that applied it."""
        return await self.update_one(
            update.matching(self.field),
            update.finishing(self.field, mark=mark),
            update.array_filters(),
        )

    async def withdraw(self, update: PendingUpdate, *, mark: str | None) -> bool:
        """Take a token away without its update; return whether it was still there."""
        changes = update.withdrawing(self.field, mark=mark)
        return await self.update_one(update.matching(self.field), changes)

    async def update_many(self, filter: Mapping[str, Any], update: Mapping[str, Any]) -> int:
        """Send an update of many; return how many documents it changed."""
        result = await self._collection.update_many(filter, update)
        return int(result.modified_count)

    async def open_cursor(self, pipeline: list[dict[str, Any]], batch_size: int) -> Any:
        """Begin an aggregation; return its cursor."""
        return await settled(self._collection.aggregate(pipeline, batchSize=batch_size))

    async def read(
        self, pipeline: list[dict[str, Any]], read_concern: ReadConcern = LOCAL
    ) -> list[dict[str, Any]]:
        """Return what an aggregation finds on the primary."""
        collection = self._collection.with_options(read_concern=read_concern)
        return [row async for row in await settled(collection.aggregate(pipeline))]

    async def read_latest(self, pipeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what an aggregation finds once all that is acknowledged is visible."""
        try:
            return await self.read(pipeline, ReadConcern("linearizable"))
        except OperationFailure as exc:
            if exc.code != _NOT_A_REPLICA_SET:
                raise
        return await self.read(pipeline)

    async def create_index(self) -> str:
        """Create the index of documents with tokens; return its name."""
        name = f"{self.field}_tokens"
        keys = [(f"{self.field}.f", 1)]
        return str(await self._collection.create_index(keys, sparse=True, name=name))


async def repeat(
    send: Callable[[], Awaitable[T]],
    limit: Deadline | None,
    on_failure: Callable[[BaseException], object] = lambda _: None,
) -> T:
    """Send a command that may be repeated: as often as time allows, or twice without a limit.

    Args:
        send: Sends it.
        limit: When to end; each command ends by itself then.
        on_failure: Is told of each failure, and of a cancellation of what is sent.

    Raises:
        PyMongoError: The last failure, or one that does not pass.
    """
    numbers = itertools.count()

    async def run() -> T:
        try:
            return await send()
        except (asyncio.CancelledError, PyMongoError) as exc:
            on_failure(exc)
            raise

    return await until_done(run, lambda failure: _wait_after(failure, next(numbers), limit))


def may_pass(error: PyMongoError) -> bool:
    """Tell whether a failure says nothing against sending the same once more."""
    if isinstance(error, ConnectionFailure | WriteConcernError | ExecutionTimeout):
        return True
    if error.has_error_label("RetryableWriteError") or error.has_error_label("RetryableError"):
        return True
    return isinstance(error, OperationFailure) and error.code in _PASSING


def may_have_arrived(error: BaseException) -> bool:
    """Tell whether the command that failed can have changed something, now or later."""
    outcome = outcome_of(error)
    if outcome is not None:
        return outcome is not Outcome.NOT_APPLIED
    if isinstance(error, PyMongoError) and not may_pass(error):
        return False  # the server's own answer, or nothing was sent
    return not isinstance(error, ServerSelectionTimeoutError)


def is_refusal(error: PyMongoError) -> bool:
    """Tell whether the server has refused an update for what it is."""
    if not isinstance(error, OperationFailure) or may_pass(error):
        return False
    return isinstance(error, WriteError) or error.code in _UNREADABLE


def _wait_after(error: Exception, number: int, limit: Deadline | None) -> float | None:
    if not (isinstance(error, PyMongoError) and may_pass(error)) or (limit is None and number > 0):
        return None
    wait: float = min(_FIRST_WAIT * 2 ** min(number, 10), _LONGEST_WAIT)
    if limit is not None and limit.remaining() <= wait:
        return None
    return wait
