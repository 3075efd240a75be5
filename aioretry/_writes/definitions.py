"""The calls of a Motor collection that change definitions, or write by an aggregation.

They are Motor's own; an overload error alone has them sent again.
"""

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from pymongo import IndexModel

from aioretry._commands.arguments import Hint
from aioretry._drivers.motor import AgnosticClientSession, AsyncIOMotorCollection
from aioretry._drivers.port import DocumentT
from aioretry._retry.overload import OverloadRetries, writes

Session = AgnosticClientSession


class Definitions(AsyncIOMotorCollection[DocumentT]):
    """Indexes, drop, rename and aggregations with ``$out`` or ``$merge``."""

    _overload: OverloadRetries

    def create_index(  # type: ignore[override]
        self, keys: Hint, session: Session | None = None, comment: Any = None, **kwargs: Any
    ) -> asyncio.Future[str]:
        """Create an index.

        Args:
            keys: Its keys, by name or as pairs.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            **kwargs: Options of the index, or of the command.

        Returns:
            A future that ends with the index's name.
        """
        call: Any = partial(super().create_index, keys, session, comment, **kwargs)
        return self._overload.start(call, session)

    def create_indexes(  # type: ignore[override]
        self,
        indexes: Sequence[IndexModel],
        session: Session | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[list[str]]:
        """Create indexes.

        Args:
            indexes: The indexes.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            **kwargs: Options of the command.

        Returns:
            A future that ends with their names.
        """
        call: Any = partial(super().create_indexes, indexes, session, comment, **kwargs)
        return self._overload.start(call, session)

    def drop_index(  # type: ignore[override]
        self,
        index_or_name: Hint,
        session: Session | None = None,
        comment: Any = None,
        **kwargs: Any,
    ) -> asyncio.Future[None]:
        """Drop an index.

        Args:
            index_or_name: The index, by name or by keys.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            **kwargs: Options of the command.

        Returns:
            A future that ends when it is dropped.
        """
        call: Any = partial(super().drop_index, index_or_name, session, comment, **kwargs)
        return self._overload.start(call, session)

    def drop_indexes(  # type: ignore[override]
        self, session: Session | None = None, comment: Any = None, **kwargs: Any
    ) -> asyncio.Future[None]:
        """Drop every index, but for that of ``_id``.

        Args:
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            **kwargs: Options of the command.

        Returns:
            A future that ends when they are dropped.
        """
        call: Any = partial(super().drop_indexes, session, comment, **kwargs)
        return self._overload.start(call, session)

    def drop(  # type: ignore[override]
        self,
        session: Session | None = None,
        comment: Any = None,
        encrypted_fields: Mapping[str, Any] | None = None,
    ) -> asyncio.Future[None]:
        """Drop the collection; fine if there is none.

        Args:
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            encrypted_fields: Which fields are encrypted, for queryable encryption.

        Returns:
            A future that ends when it is dropped.
        """
        call: Any = partial(super().drop, session, comment, encrypted_fields)
        return self._overload.start(call, session)

    def rename(  # type: ignore[override]
        self, new_name: str, session: Session | None = None, comment: Any = None, **kwargs: Any
    ) -> asyncio.Future[MutableMapping[str, Any]]:
        """Rename the collection.

        Args:
            new_name: The new name, without the database's.
            session: A session of this client.
            comment: Any BSON value, for the server's logs.
            **kwargs: Options of the command, such as ``dropTarget``.

        Returns:
            A future that ends with the server's reply.
        """
        call: Any = partial(super().rename, new_name, session, comment, **kwargs)
        return self._overload.start(call, session)

    def _async_aggregate(
        self, pipeline: Any, session: Any = None, *args: Any, **kwargs: Any
    ) -> asyncio.Future[Any]:
        # What Motor's aggregate() calls once its cursor is iterated; its stubs don't know it.
        motors = super()._async_aggregate  # type: ignore[misc]
        call: Any = partial(motors, pipeline, session, *args, **kwargs)
        return self._overload.start(call, session) if writes(pipeline) else call()
