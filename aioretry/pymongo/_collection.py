"""A collection of PyMongo's asynchronous client whose writes are retried."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from bson.codec_options import CodecOptions
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._drivers.port import DocumentT
from aioretry._drivers.pymongo_async import AsyncCollection, bound_session
from aioretry._writes.context import WritePath
from aioretry._writes.methods import WriteMethods
from aioretry._writes.reading import ReadingCollection, ReadMethods
from aioretry.operation import BeginsOperations


def _coroutine(method: Callable[..., Awaitable[Any]]) -> Any:
    @wraps(method)
    async def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await method(self, *args, **kwargs)

    return call


class AsyncRetryCollection(ReadingCollection, BeginsOperations, AsyncCollection[DocumentT]):
    """A collection of an :class:`AsyncRetryClient`.

    Everything is PyMongo's, apart from the writes below, ``find_one``, the counts and ``distinct``,
    which are retried alike, :meth:`coalesced` and :meth:`operation`.
    Those writes take PyMongo's arguments and give its results and exceptions, and are coroutine
    functions as PyMongo's are. They are retried as the retryable-writes specification says, once,
    or inside a :func:`~aioretry.deadline` as often as time allows; ``update_many`` and
    ``delete_many`` after overload errors only. With ``w: 0`` and inside a transaction they are
    PyMongo's own.

    Every exception that leaves such a write answers :func:`~aioretry.outcome_of` and
    :func:`~aioretry.attempts_of`. Beyond PyMongo's they raise :class:`~aioretry.DeadlineExceeded`
    when a deadline is over, and ``InvalidOperation`` on another event loop than the client's.
    """

    _driver_methods = AsyncCollection

    if not TYPE_CHECKING:  # checkers take the signatures of PyMongo's
        insert_one = _coroutine(WriteMethods.insert_one)
        insert_many = _coroutine(WriteMethods.insert_many)
        bulk_write = _coroutine(WriteMethods.bulk_write)
        update_one = _coroutine(WriteMethods.update_one)
        update_many = _coroutine(WriteMethods.update_many)
        replace_one = _coroutine(WriteMethods.replace_one)
        delete_one = _coroutine(WriteMethods.delete_one)
        delete_many = _coroutine(WriteMethods.delete_many)
        find_one_and_delete = _coroutine(WriteMethods.find_one_and_delete)
        find_one_and_replace = _coroutine(WriteMethods.find_one_and_replace)
        find_one_and_update = _coroutine(WriteMethods.find_one_and_update)
        find_one = _coroutine(ReadMethods.find_one)
        count_documents = _coroutine(ReadMethods.count_documents)
        estimated_document_count = _coroutine(ReadMethods.estimated_document_count)
        distinct = _coroutine(ReadMethods.distinct)

    def __init__(self, database: Any, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(database, name, *args, **kwargs)
        self._write_path: WritePath = database._write_path

    def __getitem__(self, name: str) -> "AsyncRetryCollection[DocumentT]":
        full_name: str = self.name + "." + name
        return self._like(full_name)

    def with_options(  # type: ignore[override]
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> "AsyncRetryCollection[DocumentT]":
        """Return this collection with other options; arguments and errors as PyMongo's."""
        copy = self._like(self.name, codec_options, read_preference, write_concern, read_concern)
        copy._coalescing = self._coalescing
        return copy

    def _like(
        self,
        name: str,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> "AsyncRetryCollection[DocumentT]":
        return type(self)(
            self.database,
            name,
            False,
            codec_options or self.codec_options,
            read_preference or self.read_preference,
            write_concern or self.write_concern,
            read_concern or self.read_concern,
        )

    def _copy(self) -> "AsyncRetryCollection[DocumentT]":
        return self.with_options()

    def _session_of_call(self, session: Any) -> Any:
        return session or bound_session(self.database.client)
