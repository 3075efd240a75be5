"""One worker: it takes a lease, reads changes, folds them and commits, again and again."""

import logging
import os
import socket
import time
import uuid
from dataclasses import dataclass

import anyio
from pymongo.errors import PyMongoError

from aioretry import RetryMotorClientSession
from aioretry.streams._changes import Change, Position
from aioretry.streams._committing import Committer, load
from aioretry.streams._errors import LeaseLostError, lost_position, passes_by_itself
from aioretry.streams._folding import Fold
from aioretry.streams._leases import PLAIN, Lease, LeaseKind
from aioretry.streams._reading import Read, Reader
from aioretry.streams._settings import Settings
from aioretry.streams._watermarks import Watermark

_log = logging.getLogger("aioretry.streams")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_RELEASE_SECONDS = 2.0


def new_owner() -> str:
    """Return a name that no other worker has, and that tells people where it is."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


@dataclass(slots=True)
class Follower:
    """Keeps one part of the aggregates up to date.

    Args:
        settings: The aggregator's.
        part: Which part.
        until_caught_up: Whether to end when there are no more changes.
    """

    settings: Settings
    part: int
    until_caught_up: bool = False

    async def run(self) -> None:
        """Follow the source.

        Raises:
            RebuildNeededError: Changes alone won't do any more.
            SourceError: The source can't be followed.
            Exception: Whatever the increments raise, and errors that don't pass by themselves.
        """
        owner = new_owner()
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                if await self._hold(owner):
                    return
            except PyMongoError as exc:
                if not passes_by_itself(exc):
                    lost = lost_position(exc)
                    if lost is None:
                        raise
                    raise lost from exc
                _log.info("%s begins again at the watermark: %s", owner, exc)
            if time.monotonic() - began > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE, self.settings.lease_seconds / 3)

    async def _hold(self, owner: str) -> bool:
        """Take the lease and follow; return whether that is all, False if the lease is gone."""
        settings = self.settings
        async with await settings.client.start_session(causal_consistency=False) as session:
            lease = await settings.leases.take(self.part, LeaseKind.UPDATE, owner, session)
            if lease is None:
                return False
            _log.info("%s holds %s, part %d", owner, settings.name, self.part)
            try:
                return await self._follow(lease, session)
            finally:
                await release(settings, lease)

    async def _follow(self, lease: Lease, session: RetryMotorClientSession) -> bool:
        settings = self.settings
        committer = Committer(settings.target, settings.leases, lease, session)
        watermark = await load(settings.target, self.part, settings.parts, PLAIN)
        async with Reader(settings.source, watermark.position, settings.max_changes) as reader:
            return await Following(
                settings, committer, watermark, reader, self.until_caught_up
            ).run()


@dataclass(slots=True)
class Following:
    """A worker while it holds its lease.

    Args:
        settings: The aggregator's.
        committer: Commits for the lease.
        watermark: Where the aggregates are.
        reader: Reads from there on.
        until_caught_up: Whether to end when there are no more changes.
    """

    settings: Settings
    committer: Committer
    watermark: Watermark
    reader: Reader
    until_caught_up: bool
    is_wanted: bool = False
    renewed: float = 0.0

    async def run(self) -> bool:
        """Read and commit until that is all; return False if a rebuild wants the lease."""
        self.renewed = time.monotonic()
        while not self.is_wanted:
            read = await self.reader.read(self.settings.max_changes, self.settings.max_seconds)
            await self._apply(read)
            if read.is_at_end and self.until_caught_up:
                return True
        return False

    async def _apply(self, read: Read) -> None:
        fold, changes, position = self._new_fold(), 0, self.watermark.position
        for event in read.events:
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
        elif time.monotonic() - self.renewed > self.settings.lease_seconds / 3:
            await self._commit(fold, position, 0)

    async def _commit(self, fold: Fold, position: Position, changes: int) -> None:
        began = time.monotonic()
        self.watermark, self.is_wanted = await self.committer.commit(
            self.watermark, fold, position, changes
        )
        self.renewed = began

    def _new_fold(self) -> Fold:
        settings = self.settings
        part = self.watermark.part if settings.parts > 1 else None
        return Fold(settings.increments, part, settings.parts, settings.target.codec_options)


async def release(settings: Settings, lease: Lease) -> None:
    """Give a lease back, if that can be done at once; it ends by itself otherwise."""
    with anyio.move_on_after(_RELEASE_SECONDS, shield=True):
        try:
            await settings.leases.release(lease)
        except (PyMongoError, LeaseLostError) as exc:
            _log.info("%s could not give its lease back: %s", lease.owner, exc)
