"""Keys cut off at each of their commands, and used by many processes through a failover."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE

import pytest

from aioretry.idempotent import Keys
from tests.idempotent.keyed import (
    NAMESPACE,
    SECRET,
    keyed_collection,
    order,
    require_one_order,
)
from tests.idempotent.points import APP_NAME, at_each_kill, at_each_lost_reply

KINDS = pytest.mark.parametrize("durable", [False, True], ids=["native", "durable"])
PROCESSES = 10


@pytest.fixture
async def prepared(replica_set, collection, client_class):
    """The collections exist, as they do once a service has run for a while."""
    async with client_class(replica_set.uri) as client, Keys(SECRET, NAMESPACE) as keys:
        for durable in (False, True):
            mine = keyed_collection(client, f"{collection.name}.{durable}")
            await order(mine, keys("prepared", durable=durable))
    return collection.name


@KINDS
async def test_every_lost_reply(replica_set, prepared, plain, durable, client_class):
    """Whichever reply is lost, the writes are applied once, and a repetition is answered so."""

    async def run(number):
        name = f"{prepared}.{number}"
        await plain_create(plain, name)
        async with (
            client_class(replica_set.uri, appName=APP_NAME) as client,
            Keys(SECRET, NAMESPACE) as keys,
        ):
            key = keys(name, durable=durable)
            collection = keyed_collection(client, name)
            first = await order(collection, key)
            assert first == await order(collection, key)
        require_one_order(plain.aioretry_tests[name])

    assert await at_each_lost_reply(replica_set, run) >= 7


@pytest.mark.sample(2)
@KINDS
async def test_every_kill(replica_set, short_transactions, prepared, plain, durable, client_class):
    """Wherever a process dies, the next one with the same key brings the writes to their end."""

    def arguments(number):
        name = f"{prepared}.{number}"
        plain.aioretry_tests.create_collection(name)
        return {"collection": name, "key": name, "durable": durable}

    async def recover(number):
        name = f"{prepared}.{number}"
        async with client_class(replica_set.uri) as client, Keys(SECRET, NAMESPACE) as keys:
            await order(keyed_collection(client, name), keys(name, durable=durable))
        require_one_order(plain.aioretry_tests[name])

    killed = await at_each_kill(
        replica_set, "tests.idempotent.keyed:order_once", arguments, recover
    )
    assert killed >= 12


@pytest.mark.slow
@pytest.mark.usefixtures("three_members")
@KINDS
async def test_ten_processes_through_a_failover(replica_set, prepared, plain, durable):
    """The primary is killed while ten processes use one key: applied once, ten equal answers."""
    name = f"{prepared}.ten"
    await plain_create(plain, name)
    arguments = json.dumps({"collection": name, "key": name, "durable": durable})
    primary = await replica_set.primary()
    # The first writes are applied, but nobody is told: all of them are asking when it dies.
    async with replica_set.faults.hang(
        namespace=f"aioretry_tests.{name}", applied=True, times=None, member=primary
    ) as hang:
        processes = [await start(replica_set.uri, arguments) for _ in range(PROCESSES)]
        ends = [asyncio.ensure_future(process.communicate()) for process in processes]
        await hang.wait_until_fired(timeout=60)
        await replica_set.kill(primary)
    answers = []
    for process, end in zip(processes, ends, strict=True):
        output, complaints = await end
        assert 0 == process.returncode, complaints.decode()
        answers.append(json.loads(output))
    assert [answers[0]] * PROCESSES == answers
    require_one_order(plain.aioretry_tests[name])


async def plain_create(plain, name):
    """Make a collection: MongoDB 4.2 can't do so in a transaction."""
    await asyncio.to_thread(plain.aioretry_tests.create_collection, name)


async def start(uri, arguments):
    """Start a process that writes under a key."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.idempotent.child",
        "tests.idempotent.keyed:order_once",
        uri,
        arguments,
        stdout=PIPE,
        stderr=PIPE,
    )
