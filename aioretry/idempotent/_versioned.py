"""Documents that carry the hash of their content, saved by compare-and-swap."""

import inspect
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import anyio
from pymongo.errors import ConfigurationError, PyMongoError

from aioretry import Deadline, DeadlineExceeded, deadline
from aioretry._faces import Whole
from aioretry.idempotent._repeat import repeat
from aioretry.idempotent._versioned_steps import Save, Steps
from aioretry.idempotent._versions import Fields, Version, VersionConflict, Versioned, stamp_of

__all__ = ["VersionedDocuments"]

T = TypeVar("T")

Change = Callable[[Any], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None]
Step = Callable[[PyMongoError | None], Awaitable[Versioned]]

_HISTORY = 20
_REPEATED = 2  # times, each step, without a deadline
_TRIES = 100  # of an update without a deadline
_FIRST_WAIT, _LONGEST_WAIT = 0.01, 0.5  # between them


class VersionedDocuments:
    """Documents that carry the hash of their content, in a collection of theirs.

    Creating the same content twice makes one document. Saving is a compare-and-swap on the version
    that was read: of two who save over the same version one wins, and the other is told by a
    :class:`VersionConflict`. Every call may be repeated after an error.

    Whoever writes to the documents must do it by this class, with the same ``version_field`` and
    the same choice of fields. Updates by other means are overwritten without a word, unless they
    are of fields that don't count.

    Args:
        collection: A collection of a :class:`~aioretry.RetryClient`, of Motor, or of PyMongo's
            ``AsyncMongoClient``. Its writes must be acknowledged, and should be by the majority.
        version_field: The field that holds the version.
        fields: The fields that count, all others don't; None for all.
        ignored: The fields that don't count, all others do. A field that doesn't count is stored
            when the document is created, and left alone by ``save`` and ``update``.
        history: How many of the latest saves a document remembers; each takes 32 bytes or so. After
            a lost reply, so many saves by others may come before it can't be told any more whether
            one's own was applied; and for so many saves a ``key`` is remembered.
        writer: A name for those who save by this object, for the conflicts of others to tell.

    Raises:
        TypeError: A name is not a string, or ``history`` not a whole number.
        ValueError: A name can't be that of a field at the top of a document, ``fields`` and
            ``ignored`` were both given, or ``history`` is less than 1.
        ConfigurationError: The collection's writes are not acknowledged.
    """

    def __init__(
        self,
        collection: Any,
        *,
        version_field: str = "_version",
        fields: Iterable[str] | None = None,
        ignored: Iterable[str] | None = None,
        history: int = _HISTORY,
        writer: str | None = None,
    ) -> None:
        self._fields = Fields.of(version_field, fields, ignored)
        if isinstance(history, bool) or not isinstance(history, int):
            raise TypeError(f"history must be a whole number, not {type(history).__name__}")
        if history < 1:
            raise ValueError(f"history must be at least 1, not {history}")
        if writer is not None and not isinstance(writer, str):
            raise TypeError(f"writer must be a string, not {type(writer).__name__}")
        if not collection.write_concern.acknowledged:
            raise ConfigurationError("versioned documents need acknowledged writes, not w: 0")
        self._history = history
        self._writer = writer
        self._steps = Steps(collection, self._fields)

    def version_of(self, document: Mapping[str, Any]) -> str:
        """Return the version that a document's content has, whatever version it carries.

        Args:
            document: Its ``_id``, its version and what doesn't count don't matter.

        Returns:
            ``sha256:`` and the SHA-256 of the content's canonical BSON in hexadecimal digits.

        Raises:
            InvalidDocument: The content can't be encoded.
        """
        return self._steps.hash(document)

    def verify(self, document: Mapping[str, Any]) -> bool:
        """Tell whether the version that a document carries is that of its content.

        Args:
            document: As it was read, or as it is to be saved.

        Returns:
            Whether it is; False also for a document that carries no version.

        Raises:
            InvalidDocument: The content can't be encoded.
        """
        version = self._steps.version(document)
        return version is not None and version.hash == self._steps.hash(document, version.algorithm)

    async def create_index(self, *, unique: bool = False) -> str:
        """Make the index on the versions' hashes.

        Args:
            unique: Whether no two documents may have the same content. ``save`` and ``update`` to a
                content that another document has raise a ``DuplicateKeyError`` then.

        Returns:
            The name of the index.

        Raises:
            PyMongoError: The server's or the driver's error.
        """
        return await self._steps.create_index(unique=unique)

    async def create(
        self,
        content: Mapping[str, Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Versioned:
        """Create a document, unless it was created before.

        Without an ``_id``, the hash of the content becomes the ``_id``. A document that was created
        with the same ``_id`` and content is the same document, even if it was saved since.

        Args:
            content: The document, with an ``_id`` or without.
            timeout: How long it may take, in seconds; None for the surrounding deadline. Without
                any, lost replies are survived twice.

        Returns:
            The document. ``written`` says whether it is new.

        Raises:
            VersionConflict: Another document has this ``_id``.
            DuplicateKeyError: A unique index forbids the document.
            ValueError: The content carries a version already.
            InvalidDocument: It can't be encoded.
            ValueError: A field that counts is an empty timestamp, which the server would replace.
            DeadlineExceeded: The deadline is over; the document may or may not be created.
            PyMongoError: The driver's own error.
        """
        if self._fields.version in content:
            raise ValueError(f"the content has a field {self._fields.version!r}: it is not new")
        stored, digest = self._steps.snapshot(content)
        version = Version(digest, (_new_stamp(),), digest, self._writer)
        stored = {"_id": digest, **stored, self._fields.version: version.stored()}
        save = Save(content.get("_id", digest), None, version, content, stored)
        return await _repeated("create", partial(self._steps.create, save), timeout)

    async def save(
        self,
        document: Mapping[str, Any],
        *,
        key: str | None = None,
        accept_equal: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Versioned:
        """Store the content of a document, if nobody has saved it since it was read.

        Args:
            document: With the ``_id`` and the version that it was read with. It is not changed.
            key: Names this change, for repeating it later or in another process: the same content
                saved with the same key is the same save, and succeeds again.
            accept_equal: Whether it is a success that somebody else has saved the same content. Say
                so only of contents that don't depend on the one before: of two who both count
                from 1 to 2, one would be lost.
            timeout: As for :meth:`create`.

        Returns:
            The document with its new version. ``written`` is False if there was nothing to change.
            When an earlier attempt, or an earlier call with this key, has saved it, the document is
            the one that is stored now.

        Raises:
            VersionConflict: Somebody else was first, or the document is gone.
            ValueError: The document has no ``_id`` or no version, or the key is empty.
            TypeError: The key is not a string.
            InvalidDocument: It can't be encoded.
            ValueError: A field that counts is an empty timestamp, which the server would replace.
            DeadlineExceeded: The deadline is over; the document may or may not be saved.
            PyMongoError: The driver's own error, which leaves open whether the document is saved
                if it is a lost connection.
        """
        identity, held = self._steps.held(document)
        stored, digest = self._steps.snapshot(document)
        stamp = _new_stamp() if key is None else stamp_of("save", _checked_key(key), digest)
        new = held.next(digest, stamp, self._writer, self._history)
        save = Save(identity, held, new, document, stored, accept_equal)
        step: Step = partial(self._steps.save, save)
        if stamp in held.saves:  # by its key; the document was read since
            step = partial(self._steps.known, document, stamp, digest)
        return await _repeated("save", step, timeout)

    async def update(
        self,
        id: Any,
        change: Change,
        *,
        key: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Versioned:
        """Read a document, change it and save it, again and again until nobody was faster.

        Args:
            id: The document's ``_id``.
            change: Is called with the document as it is stored, and returns it changed, or None if
                it has changed what it was given; may be an ``async def``. It is called once for
                every try, so that it must do nothing else. It is not interrupted when time is over.
            key: Names this change, for repeating it later or in another process: a document that
                was changed with the key is left as it is.
            timeout: As for :meth:`create`; recommended. Without any deadline, a hundred tries are
                made.

        Returns:
            As for :meth:`save`. ``written`` is False also if the document was changed with this
            key before, and that was seen before trying.

        Raises:
            VersionConflict: There is no such document, or a hundred tries were lost to others.
            ValueError: The document carries no version, or the key is empty.
            TypeError: The key is not a string, or ``change`` returned something else.
            DeadlineExceeded: The deadline is over; the change may or may not be applied.
            PyMongoError: As for :meth:`save`.
            Exception: Whatever ``change`` raises.
        """
        stamp = None if key is None else stamp_of("update", _checked_key(key))
        attempt = 1
        with Whole(), deadline(timeout) as limit:
            while True:
                read = await _repeated("update", partial(self._steps.read, id))
                step: Step
                if stamp is not None and stamp in self._steps.held(read)[1].saves:
                    step = partial(self._steps.known, read, stamp, None)
                else:
                    step = partial(self._steps.save, await self._changed(id, read, change, stamp))
                try:
                    return await _repeated("update", step)
                except VersionConflict as exc:
                    if limit is None and attempt >= _TRIES:
                        raise
                    await _pause(limit, attempt, exc)
                attempt += 1

    async def delete(
        self,
        document: Mapping[str, Any],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Delete a document, if nobody has saved it since it was read.

        One that is gone already is deleted: that makes it safe to repeat.

        Args:
            document: With the ``_id`` and the version that it was read with.
            timeout: As for :meth:`create`.

        Raises:
            VersionConflict: Somebody else has saved the document, or created it anew.
            ValueError: The document has no ``_id`` or no version.
            DeadlineExceeded: The deadline is over; the document may or may not be deleted.
            PyMongoError: The driver's own error.
        """
        identity, held = self._steps.held(document)
        await _repeated("delete", partial(self._steps.delete, identity, held), timeout)

    async def _changed(
        self, identity: Any, read: Mapping[str, Any], change: Change, stamp: str | None
    ) -> Save:
        """Return what is to be saved after a change."""
        _, held = self._steps.held(read)
        changed: Any = change(read)
        if inspect.isawaitable(changed):
            changed = await changed
        document = read if changed is None else changed
        if not isinstance(document, Mapping):
            raise TypeError(f"change must return a document, not {type(document).__name__}")
        stored, digest = self._steps.snapshot({**document, "_id": identity})
        new = held.next(digest, stamp or _new_stamp(), self._writer, self._history)
        return Save(identity, held, new, document, stored)


async def _repeated(
    name: str,
    step: Callable[[PyMongoError | None], Awaitable[T]],
    timeout: float | None = None,  # noqa: ASYNC109
) -> T:
    """Do a step until it gives an answer."""
    given, _ = await repeat(name, step, timeout, _REPEATED)
    return given


async def _pause(limit: Deadline | None, attempt: int, reason: VersionConflict) -> None:
    """Wait for a random time before another attempt.

    Raises:
        DeadlineExceeded: The deadline would be over, or is.
    """
    wait = random.random() * min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(attempt - 1, 30))
    if limit is not None and wait >= limit.remaining():
        raise DeadlineExceeded(f"the deadline is over: {reason}") from reason
    await anyio.sleep(wait)


def _new_stamp() -> str:
    return secrets.token_hex(12)


def _checked_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"key must be a string, not {type(key).__name__}")
    if not key:
        raise ValueError("key must not be empty")
    return key
