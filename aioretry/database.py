"""A Motor database whose collections retry their writes."""

from typing import Any

from bson.codec_options import CodecOptions
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._drivers.motor import (
    AgnosticClientSession,
    AsyncIOMotorDatabase,
    Collection,
    Database,
)
from aioretry._drivers.port import DocumentT
from aioretry._writes.context import WritePath
from aioretry._writes.kept import by_name
from aioretry.collection import RetryMotorCollection

__all__ = ["RetryMotorDatabase"]

Session = AgnosticClientSession


class RetryMotorDatabase(AsyncIOMotorDatabase[DocumentT]):
    """A database of a :class:`~aioretry.RetryClient`: Motor's, but for its collections.

    Its own commands are sent again after an overload error only, by PyMongo.
    """

    _known: dict[str, RetryMotorCollection[DocumentT]] | None = None

    def __init__(self, client: Any, name: str, **kwargs: Any) -> None:
        super().__init__(client, name, **kwargs)
        self._write_path: WritePath = client._write_path

    def _be_kept(self) -> None:
        self._known = {}

    def __getitem__(self, name: str) -> RetryMotorCollection[DocumentT]:
        return by_name(self._known, RetryMotorCollection, self, name, "database")

    def __getattr__(self, name: str) -> RetryMotorCollection[DocumentT]:
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
    ) -> RetryMotorCollection[DocumentT]:
        """Return a collection with options of its own; arguments and errors as Motor's."""
        return self.wrap(  # type: ignore[no-any-return]
            self.delegate.get_collection(
                name, codec_options, read_preference, write_concern, read_concern
            )
        )

    def with_options(
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> "RetryMotorDatabase[DocumentT]":
        """Return this database with other options; arguments and errors as Motor's."""
        return self.wrap(  # type: ignore[no-any-return]
            self.delegate.with_options(codec_options, read_preference, write_concern, read_concern)
        )

    def wrap(self, obj: Any) -> Any:
        """Wrap what PyMongo returned; its databases and collections become ours."""
        if isinstance(obj, Collection):
            return RetryMotorCollection(self, obj.name, _delegate=obj)
        if isinstance(obj, Database):
            return type(self)(self._client, obj.name, _delegate=obj)
        return super().wrap(obj)

    async def create_collection(
        self,
        name: str,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
        session: Session | None = None,
        check_exists: bool | None = True,
        **kwargs: Any,
    ) -> RetryMotorCollection[DocumentT]:
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
        created: Any = await super().create_collection(
            name,
            codec_options,
            read_preference,
            write_concern,
            read_concern,
            session,
            check_exists,
            **kwargs,
        )
        return created  # type: ignore[no-any-return]
