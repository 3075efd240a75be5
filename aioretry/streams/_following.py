"""One worker: it takes a lease, reads changes, folds them and commits, again and again."""

import logging
import time
from dataclasses import dataclass, field
from functools import partial

import anyio
from pymongo.errors import PyMongoError

from aioretry import deadline
from aioretry._faces import Session, settled, under_way_of
from aioretry.streams._changes import Change, Position
from aioretry.streams._committing import Committer, load
from aioretry.streams._errors import (
    BatchTooLargeError,
    ChangeTooLargeError,
    NotBuiltError,
    RebuildNeededError,
    StreamError,
    exceeds_a_transaction,
)
from aioretry.streams._folding import Fold
from aioretry.streams._holding import hold, new_owner, until_done, while_renewed
from aioretry.streams._leases import Lease, LeaseKind
from aioretry.streams._pace import Courtesy, Pace
from aioretry.streams._reading import Read, Reader
from aioretry.streams._settings import Settings
from aioretry.streams._sources import check_deployment
from aioretry.streams._watermarks import Watermark

_log = logging.getLogger("aioretry.streams")

_PATIENCE = 2.0
_MANY_BUCKETS = 1000  # fewer are never what makes a commit slow


@dataclass(slots=True)
class Follower:
    """Keeps one part of the aggregates up to date."""

    settings: Settings
    part: int
    until_caught_up: bool = False
    _pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self._pace = Pace(self.settings.max_changes)

    async def run(self) -> None:
        """Follow the source.

        Raises:
            RebuildNeededError: Changes alone won't do any more.
            ClientDraining: The client is being drained; the lease was given back.
            DeadlineExceeded: The surrounding deadline is over.
            SourceError: The source can't be followed.
            Exception: Whatever the increments raise, and errors that don't pass by themselves.
        """
        owner = new_owner()
        is_checked = False

        async def once() -> bool:
            nonlocal is_checked
            if not is_checked:
                await check_deployment(self.settings.client)
                is_checked = True
            return await self._hold(owner)

        def failed(error: PyMongoError) -> None:
            self._pace.fail(error)
            level = logging.WARNING if self._pace.is_stuck else logging.INFO
            _log.log(
                level,
                "%s begins again at the watermark of %s, part %d, after a %s (%d in a row)",
                *(owner, self.settings.name, self.part, type(error).__name__),
                self._pace.failures,
            )

        await until_done(self.settings.client, once, failed, self.settings.lease_seconds / 3)

    async def _hold(self, owner: str) -> bool:
        """Take the lease and follow; return whether that is all, False if the lease is gone."""
        settings = self.settings
        session = await settled(settings.client.start_session(causal_consistency=False))
        follow = partial(self._follow, session)
        kind = LeaseKind.UPDATE
        return bool(await hold(settings.leases, self.part, kind, owner, follow, session))

    async def _follow(self, session: Session, lease: Lease) -> bool:
        settings, pace = self.settings, self._pace
        committer = Committer(settings.target, settings.leases, lease, session)
        watermark = await load(settings.target, self.part)
        if watermark is None:
            raise NotBuiltError(f"{settings.target.full_name} was never built: rebuild it")
        try:
            mismatch = settings.mismatch(watermark)
            if mismatch is not None:
                raise mismatch
            after = await settings.leases.renew_all([lease]) if self.until_caught_up else None
            reader = Reader(
                settings.source, watermark.position, pace.patience, settings.max_changes, after
            )
            async with reader:
                following = Following(
                    settings, committer, watermark, reader, pace, self.until_caught_up
                )
                return await while_renewed(
                    following.renew_when_due, settings.lease_seconds / 6, following.run
                )
        except RebuildNeededError as exc:
            exc.build = watermark.build
            raise


@dataclass(slots=True)
class Following:
    """A worker while it holds its lease."""

    settings: Settings
    committer: Committer
    watermark: Watermark
    reader: Reader
    pace: Pace
    until_caught_up: bool
    is_wanted: bool = False
    renewed: float = field(default_factory=time.monotonic)
    committed: float = field(default_factory=time.monotonic)
    _begun: float = field(default=0.0, init=False)
    _is_committing: bool = field(default=False, init=False)
    _was_away: bool = field(default=False, init=False)

    async def run(self) -> bool:
        """Read and commit until that is all; return False if a rebuild wants the lease."""
        while not self.is_wanted:
            under_way_of(self.settings.client).go_on()
            read = await self.reader.read(self.pace.changes, self.settings.max_seconds)
            await self._apply(read)
            if read.is_at_end and self.until_caught_up:
                return True
        return False

    async def renew_when_due(self) -> None:
        """Renew the lease, unless a commit has done so, or is about to.

        Its transaction would hold the renewal up. What is asked meanwhile is whether the server is
        there: else it is not the commit that takes too long.
        """
        if self._is_committing:
            # Twice, because the first one may have waited for our own work.
            self._was_away |= not await self._is_there() and not await self._is_there()
            return
        began = time.monotonic()
        if began - self.renewed < self.settings.lease_seconds / 3:
            return
        is_wanted = await self.committer.renew()
        self.is_wanted = self.is_wanted or is_wanted
        self.renewed = max(self.renewed, began)

    async def _apply(self, read: Read) -> None:
        fold, changes, position = self._new_fold(), 0, self.watermark.position
        others = Courtesy()
        for event in read.events:
            await others.let_run()
            change: Change = self.settings.source.change_of(event)
            fold.add(change)
            changes += 1
            position = change.position
            if fold.size >= self.settings.max_bytes:
                await self._commit(fold, position, changes)
                fold, changes = self._new_fold(), 0
        # What the server has looked through since the last change need not be read again.
        position = Position(position.time, read.token)
        if changes:
            await self._commit(fold, position, changes)
        elif time.monotonic() - self.committed > self.settings.lease_seconds / 3:
            await self._commit(fold, position, 0)
        else:
            self.pace.succeed()

    async def _commit(self, fold: Fold, position: Position, changes: int) -> None:
        began = time.monotonic()
        where = self.watermark.build, self.watermark.sequence
        is_large = changes == 1 and len(fold) >= _MANY_BUCKETS
        if is_large and self.pace.is_hopeless(where):
            raise ChangeTooLargeError(
                f"one change moves {len(fold)} buckets, which no transaction could apply in "
                f"lease_seconds={self.settings.lease_seconds:g}, {self.pace.slow_commits} times in "
                "a row: rebuild the aggregates, or give them more lease_seconds"
            )
        self._is_committing, self._was_away = True, False
        try:
            self.watermark, self.is_wanted = await self.committer.commit(
                self.watermark, fold, position, changes
            )
        except BaseException as exc:  # it may be cancelled, too, because the lease is over first
            if exceeds_a_transaction(exc):
                raise self._too_large(len(fold), changes) from exc
            if time.monotonic() - self._begun > self.settings.lease_seconds / 2:
                self.pace.divide(changes)
                if is_large and not self._was_away and await self._is_still_there():
                    self.pace.count_slow(where)
            raise
        finally:
            self._is_committing = False
        self.renewed = self.committed = began
        self.pace.succeed()

    def _too_large(self, buckets: int, changes: int) -> StreamError:
        self.pace.divide(changes)
        if changes > 1:
            return BatchTooLargeError(f"{changes} changes that move {buckets} buckets are too many")
        return ChangeTooLargeError(
            f"one change moves {buckets} buckets, which the server does not take in one "
            "transaction: rebuild the aggregates"
        )

    async def _is_still_there(self) -> bool:
        """Ask once more after a commit, shielded: it may have been cancelled."""
        with anyio.move_on_after(_PATIENCE, shield=True):
            return await self._is_there()
        return False

    async def _is_there(self) -> bool:
        try:
            async with deadline(self.settings.lease_seconds / 4):
                await self.settings.client.admin.command("ping")
        except PyMongoError:
            return False
        return True

    def _new_fold(self) -> Fold:
        self._begun = time.monotonic()
        settings = self.settings
        part = self.watermark.part if settings.parts > 1 else None
        return Fold(settings.increments, part, settings.parts, settings.target.codec_options)
