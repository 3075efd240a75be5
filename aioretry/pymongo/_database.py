"""A database of PyMongo's asynchronous client whose collections retry their writes."""

from typing import Any

from bson.codec_options import CodecOptions
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._drivers.port import DocumentT
from aioretry._drivers.pymongo_async import AsyncClientSession, AsyncDatabase
from aioretry._writes.context import WritePath
from aioretry._writes.kept import by_name
from aioretry.pymongo._collection import AsyncRetryCollection


class AsyncRetryDatabase(AsyncDatabase[DocumentT]):
    """A database of an :class:`AsyncRetryClient`: PyMongo's, but for its collections.

    Its own commands are sent again after an overload error only, by PyMongo.
    """

    _collections: type[AsyncRetryCollection[Any]] = AsyncRetryCollection

    _known: dict[str, AsyncRetryCollection[DocumentT]] | None = None

    def __init__(self, client: Any, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(client, name, *args, **kwargs)
        self._write_path: WritePath = client._write_path

    def _be_kept(self) -> None:
        self._known = {}

    def __getitem__(self, name: str) -> AsyncRetryCollection[DocumentT]:
        return by_name(self._known, self._collections, self, name, "_database")

    def __getattr__(self, name: str) -> AsyncRetryCollection[DocumentT]:
        if name.startswith("_"):
            super().__getattr__(name)  # raises
        return self[name]

    def get_collection(
        self,
        name: str,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> AsyncRetryCollection[DocumentT]:
        """Return a collection with options of its own; arguments and errors as PyMongo's."""
        return self._collections(
            self, name, False, codec_options, read_preference, write_concern, read_concern
        )

    def with_options(  # type: ignore[override]
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> "AsyncRetryDatabase[DocumentT]":
        """Return this database with other options; arguments and errors as PyMongo's."""
        return type(self)(
            self.client,
            self.name,
            codec_options or self.codec_options,
            read_preference or self.read_preference,
            write_concern or self.write_concern,
            read_concern or self.read_concern,
        )

    async def create_collection(
        self,
        name: str,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
        session: AsyncClientSession | None = None,
        check_exists: bool | None = True,
        **kwargs: Any,
    ) -> AsyncRetryCollection[DocumentT]:
        """Create a collection.

        Args:
            name: Its name.
            codec_options: As for ``get_collection``.
            read_preference: As for ``get_collection``.
            write_concern: As for ``get_collection``.
            read_concern: As for ``get_collection``.
            session: A session of this client.
            check_exists: Whether it is looked for first.
            **kwargs: Further fields of the command.

        Returns:
            The collection.

        Raises:
            CollectionInvalid: It exists.
        """
        options = codec_options, read_preference, write_concern, read_concern
        await super().create_collection(name, *options, session, check_exists, **kwargs)
        return self.get_collection(name, *options)
