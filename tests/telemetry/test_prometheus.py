"""Metrics as Prometheus reads them, of writes on a real replica set."""

import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError, WaitQueueTimeoutError

from aioretry import connection_counts, deadline, run_transaction
from aioretry.events import name_of
from aioretry.telemetry.prometheus import PrometheusHook

SECRET = "hush-hush"


@pytest.fixture
def registry():
    """The test's own registry."""
    return CollectorRegistry()


@pytest.fixture
def hook(registry):
    """The hook that is tested."""
    return PrometheusHook(registry)


@pytest.fixture
async def measured(replica_set, collection, hook, client_class):
    """The test's collection, of a client with the hook."""
    async with client_class(replica_set.uri, hooks=[hook]) as client:
        hook.observe(client)
        yield client[collection.database.name][collection.name]


def samples(registry):
    """What a scrape reads: the value of each sample, by its name and labels."""
    text = generate_latest(registry).decode()
    assert SECRET not in text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name, **labels):
    """What a sample is found by."""
    return name, frozenset(labels.items())


async def test_operations_and_retries(replica_set, measured, registry):
    """Writes by outcome, their durations, and retries by reason."""
    with replica_set.faults.drop_reply("insert", namespace=measured.full_name):
        await measured.insert_one({"_id": SECRET})
    with pytest.raises(DuplicateKeyError):
        await measured.insert_one({"_id": SECRET})
    read = samples(registry)
    where = {"namespace": measured.full_name, "operation": "insert_one"}
    good, bad = where | {"outcome": "applied"}, where | {"outcome": "not_applied"}
    assert 1 == read[key("aioretry_operations_total", **good, error="")]
    assert 1 == read[key("aioretry_operations_total", **bad, error="11000")]
    assert 1 == read[key("aioretry_operation_duration_seconds_count", **good)]
    assert 1 == read[key("aioretry_operation_duration_seconds_bucket", **bad, le="+Inf")]
    assert 1 == read[key("aioretry_retries_total", **where, reason="AutoReconnect")]


async def test_reruns_of_a_transaction(replica_set, measured, registry, caplog):
    """Each of three is counted, and has a line in the log, at DEBUG."""
    await measured.insert_one({})
    caplog.set_level(logging.DEBUG, "aioretry")

    async def insert(session):
        await measured.insert_one({"_id": SECRET}, session=session)

    fault = replica_set.fail_point(
        "failCommand",
        {"times": 3},
        {
            "failCommands": ["insert"],
            "errorCode": 251,
            "errorLabels": ["TransientTransactionError"],
        },
    )
    async with fault:
        await run_transaction(measured.database.client, insert)
    where = {"namespace": "admin", "operation": "with_transaction"}
    assert 3 == samples(registry)[key("aioretry_retries_total", **where, reason="251")]
    lines = [record.getMessage() for record in caplog.records if "DEBUG" == record.levelname]
    assert [1, 2, 3] == [
        int(line.partition("attempt ")[2].split()[0])
        for line in lines
        if line.startswith("retrying with_transaction on admin: attempt ")
    ]
    assert not [line for line in lines if SECRET in line]


@pytest.mark.usefixtures("three_members")
async def test_waiting_for_a_server(replica_set, measured, registry):
    """The time that a write waits for the next primary is measured."""
    where = {"namespace": measured.full_name, "operation": "insert_one"}
    count = key("aioretry_server_wait_seconds_count", **where)
    await measured.insert_one({})  # which may wait for the first one
    before = samples(registry).get(count, 0)
    await replica_set.kill(await replica_set.primary())
    async with deadline(60):
        await measured.insert_one({})
    read = samples(registry)
    assert before + 1 == read[count]
    assert 0 < read[key("aioretry_server_wait_seconds_sum", **where)] < 120


async def test_connections_and_threads(measured, registry):
    """What carries the writes is counted when it is asked for."""
    assert {} == {k: v for k, v in samples(registry).items() if v and "_created" not in k[0]}
    await measured.insert_one({})
    read = samples(registry)
    assert sum(v for (name, _), v in read.items() if name == "aioretry_connections") > 0
    states = {"busy", "idle", "abandoned"}
    assert all(key("aioretry_threads", state=state) in read for state in states)
    assert 0 == read[key("aioretry_queued_attempts")]
    most = {value for (name, _), value in read.items() if name == "aioretry_connections_max"}
    waited = [
        v for (name, _), v in read.items() if name == "aioretry_connection_wait_seconds_count"
    ]
    assert ({100}, [1]) == (most, waited)


async def test_no_connection_in_time(replica_set, collection, registry, hook, client_class):
    """An attempt for which none was free is counted, and has not waited with success."""
    options = {"maxPoolSize": 1, "waitQueueTimeoutMS": 50, "retryWrites": False}
    async with client_class(replica_set.uri, hooks=[hook], **options) as client:
        mine = client[collection.database.name][collection.name]
        async with replica_set.faults.hang("insert", namespace=mine.full_name) as hang:
            first = mine.insert_one({})
            await hang.wait_until_fired()
            with pytest.raises(WaitQueueTimeoutError):
                await mine.insert_one({})
            assert 1 == samples(registry)[key("aioretry_connection_timeouts_total")]
        await first


async def test_two_clients_of_one_deployment(
    replica_set, measured, collection, hook, registry, client_class
):
    """They are equal, and yet both are looked at."""
    await measured.insert_one({})
    async with client_class(replica_set.uri) as second:
        await second[collection.database.name][collection.name].insert_one({})
        assert second == measured.database.client
        clients = [measured.database.client, second]
        each = [sum(c.used + c.idle for c in connection_counts(one).values()) for one in clients]
        assert all(each)
        hook.observe(second)
        read = samples(registry)
        told = sum(value for (name, _), value in read.items() if name == "aioretry_connections")
        assert sum(each) == told


def test_addresses():
    """They are told as connection strings have them."""
    assert "db1:27017" == name_of(("db1", 27017))
    assert "[::1]:27017" == name_of(("::1", 27017))
    assert "/tmp/db.sock" == name_of(("/tmp/db.sock", None))


async def test_labels_of_ones_own(replica_set, collection, client_class):
    """Where names of collections have no end, the service says what stands for them."""
    registry = CollectorRegistry()
    hook = PrometheusHook(registry, namespace=lambda name: name.partition(".")[0])
    async with client_class(replica_set.uri, hooks=[hook]) as client:
        mine = client[collection.database.name][collection.name]
        with replica_set.faults.drop_reply("insert", namespace=mine.full_name):
            await mine.insert_one({})
    namespaces = {dict(labels).get("namespace") for _, labels in samples(registry)} - {None}
    assert {collection.database.name} == namespaces


async def test_one_hook_for_several_clients(replica_set, collection, hook, registry, client_class):
    """Their figures are added."""
    for _ in range(2):
        async with client_class(replica_set.uri, hooks=[hook]) as client:
            await client[collection.database.name][collection.name].insert_one({})
    where = {"namespace": collection.full_name, "operation": "insert_one"}
    assert (
        2
        == samples(registry)[key("aioretry_operations_total", **where, outcome="applied", error="")]
    )


def test_a_registry_takes_one(hook, registry):
    """A second one is refused by Prometheus's library."""
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusHook(registry)


def test_a_client_of_another_class(hook, registry):
    """It is refused at once: the metrics of all others can still be read."""
    with pytest.raises(TypeError, match="client must be a RetryClient"):
        hook.observe(MongoClient(connect=False))
    assert b"aioretry_threads" in generate_latest(registry)
