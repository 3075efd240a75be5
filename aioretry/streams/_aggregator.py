"""An aggregator: what a user makes, and what can be done with it."""

import inspect
from contextlib import suppress
from typing import cast

from pymongo import ReadPreference

from aioretry._faces import Client, Collection, WritingCollection
from aioretry.streams import _status
from aioretry.streams._checks import require_numbers, require_seconds, require_texts
from aioretry.streams._errors import RebuildNeededError, SourceError
from aioretry.streams._folding import Increments
from aioretry.streams._following import Follower
from aioretry.streams._leases import LEASES, MAJORITY, Leases
from aioretry.streams._rebuilding import OnProgress, Progress, Rebuild
from aioretry.streams._settings import Settings
from aioretry.streams._sources import Source
from aioretry.streams._status import Status


class Aggregator:
    """Counters by bucket that follow a source, each change counted exactly once.

    A bucket is a document of the target: its ``_id``, and its counters as whole numbers. Counters
    that are zero are left out, and so are buckets without any other: the target equals what a fresh
    count of the same increments would give, document by document. Nobody else writes to it. Beside
    the buckets it holds a watermark for each worker, which :data:`NO_WATERMARKS` leaves out.

    Args:
        name: What its leases are called; another one for each aggregator of a database.
        source: What it follows.
        increments: What a change means: pairs of a bucket and of what to add to its counters. A
            plain function without side effects; for one change it always gives the same. For a
            document's deletion it takes off what it has given for the insert, and for an update
            both: what the old one counted for is taken off, and the new one added.
        target: The collection of the aggregates.
        parts: Among how many workers the buckets are divided.
        version: Of the increments: another one for each change of what they give. Aggregates of
            one version are not followed by another one.
        lease_seconds: How long a worker that is dead or frozen holds up the next one. At best more
            than an election takes.
        max_changes: How many changes a batch has at most.
        max_bytes: About how many bytes of updates.
        max_seconds: For how many seconds a batch is collected at most.

    Raises:
        TypeError: ``target`` is no collection of a :class:`~aioretry.RetryClient` or of an
            :class:`~aioretry.pymongo.AsyncRetryClient`, ``increments`` no plain function, or
            another argument of another type.
        ValueError: A number is out of its range, the name is empty, the target is what the source
            reads, or the source and the target have different clients: a rebuild needs both to have
            the same clock.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        increments: Increments,
        target: Collection,
        *,
        parts: int = 1,
        version: str = "",
        lease_seconds: float = 15.0,
        max_changes: int = 1000,
        max_bytes: int = 1_000_000,
        max_seconds: float = 0.5,
    ) -> None:
        require_texts(name=name, version=version)
        if not name:
            raise ValueError("name must be a str that is not empty")
        if not isinstance(target, WritingCollection):
            raise TypeError(
                "target must be a collection of a RetryClient or of an AsyncRetryClient, "
                f"not {target!r}"
            )
        _check_plain(increments=increments)
        require_numbers(parts=parts, max_changes=max_changes, max_bytes=max_bytes)
        require_seconds(lease_seconds=lease_seconds, max_seconds=max_seconds)
        client = cast(Client, target.database.client)
        if source.watched.database.client is not client:
            raise ValueError(f"target must have the client of the source {source!r}")
        _check_target(target, source)
        self._settings = Settings(
            name,
            source,
            increments,
            target.with_options(write_concern=MAJORITY, read_preference=ReadPreference.PRIMARY),
            client,
            Leases(client.get_database(target.database.name), name, lease_seconds),
            parts,
            version,
            max_changes,
            max_bytes,
            max_seconds,
        )

    def __repr__(self) -> str:
        settings = self._settings
        return f"<Aggregator {settings.name}: {settings.source!r} to {settings.target.full_name}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._settings.name

    @property
    def parts(self) -> int:
        """Among how many workers the buckets are divided."""
        return self._settings.parts

    @property
    def client(self) -> Client:
        """The client of its target."""
        return self._settings.client

    async def run(self, part: int = 0, *, until_caught_up: bool = False) -> None:
        """Keep one part of the aggregates up to date, for as long as this is not cancelled.

        While somebody else holds the part's lease, it waits. After lost connections, elections and
        a lost lease it goes on by itself at the watermark. A surrounding deadline counts: a task
        that is to last is started without its caller's (:func:`aioretry.detached`).

        Args:
            part: Which part, from 0.
            until_caught_up: Whether to return once everything was applied that was acknowledged by
                the majority before the call. On a sharded cluster: once there is no more to read.

        Raises:
            NotBuiltError: There are no aggregates yet: :meth:`rebuild` them.
            MismatchError: They are for another number of parts, by another version or by another
                aggregator.
            PositionLostError: The changes after the watermark can't be read any more, say because
                the oplog has rolled over: :meth:`rebuild` them.
            SourceChangedError: The source was dropped or renamed: :meth:`rebuild` them.
            ChangeTooLargeError: One change moves too many buckets for a transaction:
                :meth:`rebuild` them, or give them more ``lease_seconds``.
            CounterOverflowError: A counter would leave the range of 64-bit integers.
            SourceError: The source can't be followed.
            DeadlineExceeded: The surrounding deadline is over.
            ValueError: There is no such part.
            Exception: What ``increments`` raises, and errors of the driver that don't pass by
                themselves. The batch was not applied.
        """
        if not 0 <= part < self.parts:
            raise ValueError(f"there are the parts 0 to {self.parts - 1}, and no {part!r}")
        await Follower(self._settings, part, until_caught_up).run()

    async def rebuild(self, on_progress: OnProgress | None = None) -> Progress:
        """Count everything anew, and put the result in the place of the aggregates.

        All is read from the primary: a delayed member would hold it up for as long as it lags.
        Workers leave their leases to it and wait until it is done; writes to the source go on.
        Readers see the old aggregates until the end, and then the new ones. It begins again by
        itself after lost connections and elections; if its process dies, the aggregates stay as
        they were, and the next rebuild clears up what it has left.

        Args:
            on_progress: What is called now and then, with a :class:`Progress`.

        Returns:
            The last progress.

        Raises:
            LeaseLostError: It was frozen for longer than its lease, and somebody took it over.
            MismatchError: The target is another aggregator's.
            TargetError: The target holds documents that are no aggregates; they stay.
            SourceError: The source can't be rebuilt from, or the reading took longer than the
                servers keep a snapshot (``minSnapshotHistoryWindowInSeconds``).
            TypeError: ``on_progress`` is no plain function.
            Exception: As for :meth:`run`.
        """
        progress = await self._rebuild(on_progress, None)
        return cast(Progress, progress)  # None only after an error

    async def rebuild_after(
        self, error: RebuildNeededError, on_progress: OnProgress | None = None
    ) -> Progress | None:
        """Rebuild because of an error, unless somebody else has done so since it was raised.

        Of several workers that meet the same error, one rebuilds.

        Args:
            error: What :meth:`run` has raised.
            on_progress: What is called now and then, with a :class:`Progress`.

        Returns:
            The last progress, or None if there was nothing to do any more.

        Raises:
            Exception: As for :meth:`rebuild`.
            TypeError: ``error`` is something else.
        """
        if not isinstance(error, RebuildNeededError):
            raise TypeError(f"error must be a RebuildNeededError, not {error!r}")
        return await self._rebuild(on_progress, error)

    async def _rebuild(
        self, on_progress: OnProgress | None, error: RebuildNeededError | None
    ) -> Progress | None:
        told = on_progress or (lambda _: None)
        _check_plain(on_progress=told)
        return await Rebuild(self._settings, told, error).run()

    async def status(self, *, count_up_to: int = _status.MOST) -> Status:
        """Tell who holds the leases, and how far behind the aggregates are.

        Args:
            count_up_to: How many changes are counted at most, for all parts together.

        Raises:
            ValueError: ``count_up_to`` is less than 1.
            PyMongoError: The servers could not be asked.
        """
        if count_up_to < 1:
            raise ValueError(f"count_up_to must be at least 1, not {count_up_to!r}")
        return await _status.status(self._settings, count_up_to)


def _check_target(target: Collection, source: Source) -> None:
    taken = {source.watched.full_name, f"{target.database.name}.{LEASES}"}
    with suppress(SourceError):
        taken.add(source.documents.full_name)
    if target.full_name in taken:
        raise ValueError(
            f"target must be a collection of its own, because a rebuild replaces it: "
            f"{target.full_name} has what is counted, or the leases"
        )


def _check_plain(**functions: object) -> None:
    for what, function in functions.items():
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise TypeError(f"{what} must be a plain function, not {function!r}")
