"""Work that is done once, cut off at each of its commands, and repeated in vain or not."""

import pytest

from aioretry.idempotent import Keys
from tests.idempotent.keyed import (
    NAMESPACE,
    SECRET,
    keyed_collection,
    require_one_taken,
    take_the_last,
)
from tests.idempotent.points import APP_NAME, at_each_kill, at_each_lost_reply

# The work's two, the record's, and the commit.
COMMANDS = 4


@pytest.fixture
def stock(collection, plain):
    """Make a collection with one piece of stock, for a run; its name."""

    def make(number):
        name = f"{collection.name}.{number}"
        plain.aioretry_tests[name].insert_one({"_id": "stock", "left": 1})
        return name

    return make


async def test_every_lost_reply(replica_set, stock, plain, client_class):
    """Whichever reply is lost, of the work, its record, or what its repetition asks."""

    async def run(number):
        name = stock(number)
        async with client_class(replica_set.uri, appName=APP_NAME) as client:
            collection, keys = keyed_collection(client, name), Keys(SECRET, NAMESPACE)
            first = await take_the_last(collection, keys)
            assert first == await take_the_last(collection, keys)
        require_one_taken(plain.aioretry_tests[name], first)

    # The first piece is the index; a repetition finds none left, aborts, and looks for its record.
    assert await at_each_lost_reply(replica_set, run) >= 1 + COMMANDS + 3


@pytest.mark.usefixtures("short_transactions")
async def test_every_kill(replica_set, collection, stock, plain, client_class):
    """Wherever a process dies, the next one with the same key gets its answer, or does the work."""

    def arguments(number):
        return {"collection": stock(number)}

    async def recover(number):
        name = f"{collection.name}.{number}"
        async with client_class(replica_set.uri) as client:
            answer = await take_the_last(keyed_collection(client, name), Keys(SECRET, NAMESPACE))
        require_one_taken(plain.aioretry_tests[name], answer)

    killed = await at_each_kill(
        replica_set, "tests.idempotent.keyed:take_in_a_process", arguments, recover
    )
    assert killed >= 2 * (1 + COMMANDS)
