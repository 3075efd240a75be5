"""Calls with keys that gave up take no turns, and callers don't starve each other."""

import asyncio
import contextlib

import pytest

from aioretry import Outcome, deadline, outcome_of
from aioretry._web.keys import KeyOfRequest
from aioretry._web.problems import problem_of
from aioretry.idempotent import Keys, NoTurnError
from tests.idempotent.keyed import NAMESPACE, SECRET

_PER_SECOND = 20


@pytest.fixture
def keys():
    """Few turns a second, so that there is a queue."""
    return Keys(SECRET, NAMESPACE, per_second=_PER_SECOND)


async def insert(collection, keys, caller, number, seconds=None):
    """Insert a document under a caller's key."""
    key = KeyOfRequest(keys, collection.database, caller, f"{collection.name} {number}", b"")
    async with deadline(seconds), collection.operation(key=key) as op:
        await op.insert_one({"caller": caller})


async def give_up(collection, keys, caller, number):
    """Do so, but not for long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await insert(collection, keys, caller, number)


async def test_calls_that_were_cancelled(collection, keys):
    """After three hundred of one caller's, which would take 15 s, another one is served at once."""
    await insert(collection, keys, "b", 1)
    await asyncio.gather(*(give_up(collection, keys, "a", n) for n in range(300)))
    await insert(collection, keys, "b", 2, seconds=3.0)
    assert 2 == await collection.count_documents({"caller": "b"})
    await keys.close()


async def test_calls_that_wait(collection, keys):
    """While as many wait, another one has every second turn."""
    await insert(collection, keys, "b", 0)
    waiting = [asyncio.create_task(insert(collection, keys, "a", number)) for number in range(300)]
    async with asyncio.timeout(30.0):
        while await collection.count_documents({"caller": "a"}) < _PER_SECOND:
            await asyncio.sleep(0.05)
    for number in range(1, 6):
        await insert(collection, keys, "b", number, seconds=3.0)
    assert 6 == await collection.count_documents({"caller": "b"})
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await keys.close()


async def test_its_reason(collection):
    """One whose turn comes too late is told so, and not that there is no server."""
    keys = Keys(SECRET, NAMESPACE, per_second=0.1)
    await insert(collection, keys, "a", 1)
    with pytest.raises(NoTurnError, match="before it is this write's turn") as caught:
        await insert(collection, keys, "a", 2, seconds=5.0)
    assert Outcome.NOT_APPLIED is outcome_of(caught.value)
    problem = problem_of(caught.value, "POST", is_over=False)
    assert (503, "no_turn", Outcome.NOT_APPLIED) == (
        problem.status,
        problem.reason,
        problem.outcome,
    )
    await keys.close()
