"""A Motor database whose collections retry their writes."""

from typing import Any

from bson.codec_options import CodecOptions
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._driver import DocumentT
from aioretry._motor import (
    AgnosticClientSession,
    AsyncIOMotorDatabase,
    Collection,
    Database,
)
from aioretry._write_path import WritePath
from aioretry.collection import RetryMotorCollection

__all__ = ["RetryMotorDatabase"]


class RetryMotorDatabase(AsyncIOMotorDatabase[DocumentT]):
    """A database of a :class:`~aioretry.RetryClient`: Motor's, but for its collections."""

    def __init__(self, client: Any, name: str, **kwargs: Any) -> None:
        super().__init__(client, name, **kwargs)
        self._write_path: WritePath = client._write_path

    def __getitem__(self, name: str) -> RetryMotorCollection[DocumentT]:
        return RetryMotorCollection(self, name)

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

    async def create_collection(
        self,
        name: str,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: Any = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
        session: AgnosticClientSession | None = None,
        check_exists: bool | None = True,
        **kwargs: Any,
    ) -> RetryMotorCollection[DocumentT]:
        """Create a collection on the server and return it; arguments and errors as Motor's."""
        return await super().create_collection(  # type: ignore[return-value]
            name,
            codec_options,
            read_preference,
            write_concern,
            read_concern,
            session,
            check_exists,
            **kwargs,
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
