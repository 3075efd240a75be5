"""Writes of unknown outcome, for the tests that resolve them."""

import pytest
from pymongo.errors import AutoReconnect

from aioretry import Outcome, outcome_of

INCREMENT = {"$inc": {"n": 1}}


def increment(collection, **options):
    """A write that can't be done twice unseen."""
    return collection.update_one({"_id": 1}, INCREMENT, **options)


async def doubt(fault, write, error=AutoReconnect):
    """What a write of unknown outcome ends with."""
    async with fault:
        with pytest.raises(error) as caught:
            await write()
    assert Outcome.UNKNOWN is outcome_of(caught.value)
    return caught.value


async def lost_increment(replica_set, collection, **options):
    """What an increment ends with that is applied, and whose answers are lost."""
    fault = replica_set.faults.drop_reply("update", times=2, namespace=collection.full_name)
    return await doubt(fault, lambda: increment(collection, **options))
