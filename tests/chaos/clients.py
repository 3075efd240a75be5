"""The clients that are compared: how each is opened, given a deadline, and asked for outcomes."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import pymongo
from motor.motor_asyncio import AsyncIOMotorClient

from aioretry import (
    Outcome,
    PartialResult,
    deadline,
    outcome_of,
    partial_result_of,
    resolve,
    run_transaction,
)
from tests.clients import OURS as CLIENTS


@dataclass(frozen=True, slots=True)
class Side:
    """One of the clients."""

    name: str
    open: Callable[..., Any]
    limit: Callable[[float], AbstractContextManager[object]]
    """Gives a block that sets the deadline of a write, in seconds."""

    outcome_of: Callable[[BaseException], Outcome | None]
    partial_result_of: Callable[[BaseException], PartialResult | None]
    resolve: Callable[..., Awaitable[Any]] | None
    """Finds out what became of a write; None where that can't be done."""

    coalesced: Callable[[Any], Any]
    """Gives the view of a collection whose inserts travel together, if there is one."""

    transact: Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[Any]]
    """Runs a callback in a transaction."""

    tells: bool
    """Whether each driver error has to say what became of the write."""

    def connect(self, uri: str, timeout: float) -> Any:
        """Open a client whose acknowledged writes are safe from elections.

        Args:
            uri: Of the set.
            timeout: The deadline of the writes, in seconds.
        """
        return self.open(
            uri,
            w="majority",
            journal=True,
            appName="chaos",
            serverSelectionTimeoutMS=int(max(30.0, timeout) * 1000),
        )


def _nothing(_exc: BaseException) -> None:
    return None


async def _with_transaction(client: Any, callback: Callable[[Any], Awaitable[Any]]) -> Any:
    async with await client.start_session() as session:
        return await session.with_transaction(callback)


OURS = Side(
    "aioretry",
    CLIENTS["motor"],
    deadline,
    outcome_of,
    partial_result_of,
    resolve,
    lambda collection: collection.coalesced(),
    run_transaction,
    tells=True,
)
ASYNCIO = replace(OURS, name="asyncio", open=CLIENTS["asyncio"])
MOTOR = Side(
    "Motor",
    AsyncIOMotorClient,
    pymongo.timeout,
    _nothing,
    _nothing,
    None,
    lambda collection: collection,
    _with_transaction,
    tells=False,
)
