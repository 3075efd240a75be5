"""The prose tests of the client-backpressure specification; number 2 was removed from the README.

The README measures how long a write takes. Here the waits are counted that are announced to hooks,
with the jitter held fast; that each of them has passed is a floor, which no busy machine breaks.
"""

import random

import pytest
from pymongo.errors import OperationFailure

from aioretry import RetryClient
from tests.spec.prose import OVERLOADED, Commands, skip_without_labels

MAX_RETRIES = 2


@pytest.fixture
def jitter(monkeypatch):
    """Set what random.random() returns."""

    def always(number):
        monkeypatch.setattr(random, "random", lambda: number)

    return always


@pytest.fixture
def commands():
    """What happens to the commands of the test's client."""
    return Commands("insert", "find")


@pytest.fixture
def announced():
    """The retries that the client has announced."""
    return []


@pytest.fixture
async def client(replica_set, commands, announced):
    """A client that is listened to."""
    async with RetryClient(
        replica_set.uri, event_listeners=[commands], hooks=[announced.append]
    ) as client:
        yield client


@pytest.fixture
def overload(replica_set):
    """Make the fail point that refuses a command every time."""

    def make(name, code=462):
        return replica_set.fail_command(
            name, mode="alwaysOn", error_code=code, error_labels=OVERLOADED
        )

    return make


@pytest.fixture
def refused(collection, commands, announced):
    """Insert in vain; give the error and the waits before the retries."""

    async def refused():
        commands.events.clear()
        announced.clear()
        with pytest.raises(OperationFailure) as caught:
            await collection.insert_one({"a": 1})
        waits = [event.wait for event in announced]
        retries = zip(commands.of("failed"), commands.of("started")[1:], waits, strict=False)
        assert all(again.seconds - failed.seconds >= wait for failed, again, wait in retries)
        assert MAX_RETRIES + 1 == len(commands.of("started")) == len(waits) + 1
        return caught.value, waits

    return refused


async def test_1(replica_set, refused, overload, jitter):
    """Test 1: operation retry uses exponential backoff, of 0.2 + 0.4 s for a jitter of 1."""
    await skip_without_labels(replica_set)
    async with overload("insert", 2):
        jitter(0.0)
        error, without = await refused()
        jitter(1.0)
        _, with_backoff = await refused()
    assert 2 == error.code
    assert ([0, 0], [0.2, 0.4]) == (without, with_backoff)


CALLS = {
    "find": lambda c: c.find_one({}),
    "insert": lambda c: c.insert_one({"a": 1}),
}
calls = pytest.mark.parametrize("name", ["find", "insert"])


@calls
async def test_3(name, replica_set, collection, commands, overload, jitter):
    """Test 3: overload errors are retried a maximum of MAX_RETRIES times.

    A find is PyMongo's own, an insert is ours.
    """
    await skip_without_labels(replica_set)
    jitter(0.0)
    async with overload(name):
        with pytest.raises(OperationFailure) as caught:
            await CALLS[name](collection)
    assert all(map(caught.value.has_error_label, OVERLOADED))
    assert MAX_RETRIES + 1 == len(commands.of("started"))


@calls
async def test_4(name, replica_set, collection, overload, jitter):
    """Test 4: overload errors are retried a maximum of maxAdaptiveRetries times when configured."""
    await skip_without_labels(replica_set)
    jitter(0.0)
    commands = Commands(name)
    async with (
        RetryClient(replica_set.uri, maxAdaptiveRetries=1, event_listeners=[commands]) as client,
        overload(name),
    ):
        with pytest.raises(OperationFailure) as caught:
            await CALLS[name](client[collection.database.name][collection.name])
    assert all(map(caught.value.has_error_label, OVERLOADED))
    assert 2 == len(commands.of("started"))


async def test_5(replica_set, collection, refused, overload, jitter):
    """Test 5: baseBackoffMS of an overload error overrides the base of the backoff.

    Servers from 9.0 on give it; here the proxy before a real server does.
    """
    await skip_without_labels(replica_set)
    jitter(1.0)
    async with overload("insert"):
        _, usual = await refused()
    async with replica_set.faults.error(
        462, "insert", labels=OVERLOADED, extra={"baseBackoffMS": 50}, times=None
    ):
        error, overridden = await refused()
    assert 50 == error.details["baseBackoffMS"]
    assert ([0.2, 0.4], [0.1, 0.2]) == (usual, overridden)
