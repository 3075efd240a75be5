"""A Motor database whose collections retry their writes."""

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
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
from aioretry._retry.overload import OverloadRetries, writes
from aioretry._writes.context import WritePath
from aioretry.collection import RetryMotorCollection

__all__ = ["RetryMotorDatabase"]

Session = AgnosticClientSession


class RetryMotorDatabase(AsyncIOMotorDatabase[DocumentT]):
    """A database of a :class:`~aioretry.RetryClient`: Motor's, but for its collections.

    Its commands are sent again after an overload error only, by PyMongo from 4.17 on, and by
    aioretry where PyMongo is older.
    """

    def __init__(self, client: Any, name: str, **kwargs: Any) -> None:
        super().__init__(client, name, **kwargs)
        self._write_path: WritePath = client._write_path
        self._overload: OverloadRetries = client._overload
        self._overload_of_commands: OverloadRetries = client._overload_of_commands

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

    def command(  # type: ignore[override]
        self,
        command: str | MutableMapping[str, Any],
        value: Any = 1,
        check: bool = True,
        allowable_errors: Sequence[str | int] | None = None,
        read_preference: Any = None,
        codec_options: CodecOptions[Any] | None = None,
        session: Session | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[Any]:
        """Send a command; again after an overload error only.

        Args:
            command: The command, or its name.
            value: The value of its name.
            check: Whether an error of the server is raised.
            allowable_errors: Which errors are not raised, by code or message.
            read_preference: Which server gets it; the primary by default.
            codec_options: How the reply is decoded.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            **kwargs: Further fields of the command.

        Returns:
            A future that ends with the server's reply.
        """
        call: Any = partial(
            super().command,
            command,
            value,
            check,
            allowable_errors,
            read_preference,
            codec_options,
            session,
            comment,
            **kwargs,
        )
        return self._overload_of_commands.start(call, session)

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
        """Create a collection; its command is sent again after an overload error only.

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
        call: Any = partial(
            super().create_collection,
            name,
            codec_options,
            read_preference,
            write_concern,
            read_concern,
            session,
            check_exists,
            **kwargs,
        )
        created: RetryMotorCollection[DocumentT] = await self._overload.run(call, session)
        return created

    def drop_collection(  # type: ignore[override]
        self,
        name_or_collection: str | RetryMotorCollection[Any],
        session: Session | None = None,
        comment: Any = None,
        encrypted_fields: Mapping[str, Any] | None = None,
    ) -> asyncio.Future[dict[str, Any]]:
        """Drop a collection; its command is sent again after an overload error only.

        Args:
            name_or_collection: The collection, or its name.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            encrypted_fields: Which fields are encrypted, for queryable encryption.

        Returns:
            A future that ends with the server's reply.
        """
        call: Any = partial(
            super().drop_collection, name_or_collection, session, comment, encrypted_fields
        )
        return self._overload.start(call, session)

    def _async_aggregate(  # type: ignore[override]
        self, pipeline: Any, session: Any = None, *args: Any, **kwargs: Any
    ) -> asyncio.Future[Any]:
        # What Motor's aggregate() calls once its cursor is iterated.
        call: Any = partial(super()._async_aggregate, pipeline, session, *args, **kwargs)
        return self._overload.start(call, session) if writes(pipeline) else call()
