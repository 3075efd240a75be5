"""A Motor database whose collections retry their writes."""

from typing import Any

from aioretry._driver import DocumentT
from aioretry._motor import AsyncIOMotorDatabase, Collection, Database
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

    def wrap(self, obj: Any) -> Any:
        """Wrap what PyMongo returned; its databases and collections become ours."""
        if isinstance(obj, Collection):
            return RetryMotorCollection(self, obj.name, _delegate=obj)
        if isinstance(obj, Database):
            return type(self)(self._client, obj.name, _delegate=obj)
        return super().wrap(obj)
