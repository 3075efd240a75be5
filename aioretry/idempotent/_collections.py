"""What the recipes need of a collection, whoever's it is."""

from typing import Any, Protocol

from bson.codec_options import CodecOptions
from pymongo.write_concern import WriteConcern


class Collection(Protocol):
    """A collection of aioretry, of Motor, or of PyMongo's asyncio."""

    @property
    def write_concern(self) -> WriteConcern:
        """How its writes are acknowledged."""
        ...

    @property
    def codec_options(self) -> CodecOptions[Any]:
        """How documents are encoded."""
        ...

    @property
    def insert_one(self) -> Any:
        """Inserts a document."""
        ...

    @property
    def update_many(self) -> Any:
        """Updates documents."""
        ...

    @property
    def delete_many(self) -> Any:
        """Deletes documents."""
        ...

    def with_options(
        self,
        codec_options: Any = None,
        read_preference: Any = None,
        write_concern: Any = None,
        read_concern: Any = None,
    ) -> Any:
        """Give the same collection with other options."""
        ...
