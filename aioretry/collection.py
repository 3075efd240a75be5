"""A Motor collection whose writes are retried."""

from typing import Any

from bson.codec_options import CodecOptions
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._drivers.motor import (
    AgnosticClientSession,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
    Collection,
)
from aioretry._drivers.port import DocumentT
from aioretry._writes.context import WritePath
from aioretry._writes.methods import WriteMethods
from aioretry._writes.reading import ReadMethods
from aioretry.operation import BeginsOperations

__all__ = ["RetryMotorCollection"]


class RetryMotorCollection(  # type: ignore[misc]  # a running future is more than a coroutine
    WriteMethods[AgnosticClientSession, DocumentT, DocumentT],  # the session as in Motor's stubs
    ReadMethods[AgnosticClientSession, DocumentT, DocumentT],
    BeginsOperations,
    AsyncIOMotorCollection[DocumentT],
):
    """A collection of a :class:`~aioretry.RetryClient`.

    Everything is Motor's, apart from the writes below, :meth:`find_one`, the counts and
    :meth:`distinct`, which are retried alike, and :meth:`operation`. Those writes take
    Motor's arguments and give its results and exceptions, and return a running future: a write that
    nobody awaits still happens. They are retried as the retryable-writes specification says, once,
    or inside a :func:`~aioretry.deadline` as often as time allows; ``update_many`` and
    ``delete_many`` after overload errors only. With ``w: 0`` and inside a transaction they are
    Motor's own.

    Every exception that leaves such a write answers :func:`~aioretry.outcome_of` and
    :func:`~aioretry.attempts_of`. Beyond Motor's they raise :class:`~aioretry.DeadlineExceeded`
    when a deadline is over, and ``InvalidOperation`` on another event loop than the client's.
    """

    _driver_methods = AsyncIOMotorCollection

    database: AsyncIOMotorDatabase[DocumentT]
    """The database that it was made from; one of ours."""

    def __init__(
        self,
        database: Any,
        name: str,
        codec_options: Any = None,
        read_preference: Any = None,
        write_concern: Any = None,
        read_concern: Any = None,
        _delegate: Any = None,
    ) -> None:
        super().__init__(
            database,
            name,
            codec_options=codec_options,
            read_preference=read_preference,
            write_concern=write_concern,
            read_concern=read_concern,
            _delegate=_delegate,
        )
        self._write_path: WritePath = database._write_path

    def __getitem__(self, name: str) -> "RetryMotorCollection[DocumentT]":
        # Concatenated so that what is no name is a TypeError: `for x in collection` has to end.
        full_name: str = self.name + "." + name
        return type(self)(self.database, full_name, _delegate=self.delegate[name])

    def __getattr__(self, name: str) -> "RetryMotorCollection[DocumentT]":
        if name.startswith("_"):
            super().__getattr__(name)  # raises
        return self[name]

    def wrap(self, obj: Any) -> Any:
        """Wrap what PyMongo returned; its collections become collections of this class."""
        if isinstance(obj, Collection):
            wrapped = type(self)(self.database, obj.name, _delegate=obj)
            wrapped._coalescing = self._coalescing
            return wrapped
        return super().wrap(obj)

    def with_options(
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> "RetryMotorCollection[DocumentT]":
        """Return this collection with other options; arguments and errors as Motor's."""
        return self.wrap(  # type: ignore[no-any-return]
            self.delegate.with_options(codec_options, read_preference, write_concern, read_concern)
        )

    def _copy(self) -> "RetryMotorCollection[DocumentT]":
        return self.wrap(self.delegate)  # type: ignore[no-any-return]
