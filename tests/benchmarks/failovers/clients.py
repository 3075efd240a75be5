"""The clients that are compared, behind one face."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pymongo
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient

from aioretry import Outcome, RetryClient, deadline, outcome_of
from aioretry.pymongo import AsyncRetryClient

MAJORITY: dict[str, Any] = {"w": "majority", "journal": True}
DATABASE = "failovers"


@dataclass(frozen=True)
class Kind:
    """One of the clients."""

    key: str
    title: str
    make: Callable[..., Any]
    limit: Callable[[float], AbstractContextManager[object]]
    """A block that limits the time of what is awaited in it, in seconds."""

    session_class: str
    """The name of the class of its driver's session objects."""

    @property
    def is_ours(self) -> bool:
        """Whether it is the library's own."""
        return self.limit is deadline

    def open(self, uri: str, **options: Any) -> Any:
        """Make a client whose writes wait for the majority's journals."""
        return self.make(uri, **MAJORITY, **options)

    def outcome_of(self, exc: BaseException) -> Outcome:
        """How a write ended, as far as the client tells; of the others' errors nobody can."""
        return outcome_of(exc) or Outcome.UNKNOWN


KINDS = {
    kind.key: kind
    for kind in (
        Kind("aioretry", "aioretry", RetryClient, deadline, "ClientSession"),
        Kind("asyncio", "aioretry, asyncio", AsyncRetryClient, deadline, "AsyncClientSession"),
        Kind("motor", "Motor", AsyncIOMotorClient, pymongo.timeout, "ClientSession"),
        Kind(
            "pymongo", "AsyncMongoClient", AsyncMongoClient, pymongo.timeout, "AsyncClientSession"
        ),
    )
}
