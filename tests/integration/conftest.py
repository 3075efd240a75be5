"""Fixtures of several integration tests: what a client sends, sessions, and Motor beside ours."""

import os
import subprocess
import sys
import warnings

import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import monitoring

from tests.clients import for_both
from tests.integration.relaying import Relay

# What both clients are tested with in the short form, too.
FOR_BOTH = {
    "test_breaks",
    "test_cancelling",
    "test_caution",
    "test_coalesced_updates",
    "test_commit_outcomes",
    "test_connection_options",
    "test_deposed",
    "test_failing_fast",
    "test_garbage",
    "test_lifecycle",
    "test_minorities",
    "test_private_names",
    "test_resolved_anew",
    "test_retries",
    "test_reads",
    "test_seeded_faults",
    "test_sessions",
    "test_silent",
    "test_statements",
    "test_tls",
    "test_transaction_ends",
    "test_transaction_runs",
    "test_what_is_needed_for_it_fails",
}


def pytest_generate_tests(metafunc):
    """Test with both clients what is not about one of them."""
    for_both(metafunc, FOR_BOTH)


class Commands(monitoring.CommandListener):
    """Remembers the commands that a client sent."""

    def __init__(self):
        self.sent = []

    def started(self, event):
        if event.command_name not in {"endSessions", "ping"}:
            self.sent.append(event.command)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass

    @property
    def names(self):
        """The name of each command."""
        return [next(iter(command)) for command in self.sent]

    @property
    def numbers(self):
        """The transaction number of each command; None where there is none."""
        return [command.get("txnNumber") for command in self.sent]

    @property
    def sessions(self):
        """The session ids of the commands."""
        return {bytes(command["lsid"]["id"]) for command in self.sent}


class Increment:
    """A callback that counts its own runs and increments a counter."""

    def __init__(self, collection):
        self.collection = collection
        self.runs = 0

    async def __call__(self, session):
        self.runs += 1
        await self.collection.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
        return self.runs


@pytest.fixture
def commands():
    """What the watched client of the test sends."""
    return Commands()


@pytest.fixture
async def watched_client(replica_set, commands, client_class):
    """A client whose commands are remembered."""
    async with client_class(replica_set.uri, event_listeners=[commands]) as client:
        yield client


@pytest.fixture
async def relay(replica_set):
    """A relay of connections to the primary."""
    primary = await replica_set.primary()
    async with Relay(primary.host, primary.port) as relay:
        yield relay


@pytest.fixture
async def seeded(collection, commands):
    """The collection with one document; what was sent for it is forgotten."""
    await collection.insert_one({"_id": 1, "n": 0})
    commands.sent.clear()
    return collection


@pytest.fixture
async def session(client):
    """A session of the client."""
    async with await client.start_session() as session:
        yield session


@pytest.fixture
def increment(seeded):
    """A callback that increments the counter of the document."""
    return Increment(seeded)


@pytest.fixture
async def motor(replica_set):
    """Motor's own client of the same set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        client = AsyncIOMotorClient(replica_set.uri)
    yield client
    client.close()


@pytest.fixture
def run_script():
    """Run a script in a process of its own, where every warning is an error; give its output.

    It must end by itself, well, and without a word of complaint.
    """

    def run(script, *arguments, ignoring=()):
        options = [f"-Wignore:{text}" for text in ignoring]
        ended = subprocess.run(
            [sys.executable, "-Werror", *options, "-c", script, *arguments],
            env={**os.environ, "PYTHONASYNCIODEBUG": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        complaints = ("Warning", "Traceback", "ignored in", "never retrieved", "destroyed", "Fatal")
        assert 0 == ended.returncode, ended.stderr
        assert not any(word in ended.stderr for word in complaints), ended.stderr
        return ended.stdout

    return run
