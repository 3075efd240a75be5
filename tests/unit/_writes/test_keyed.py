"""What is made of the answers to writes with keys; no driver is asked."""

from datetime import UTC, datetime

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo.write_concern import WriteConcern

from aioretry import Attempt
from aioretry._commands.command import CommandLimits
from aioretry._commands.single import FindAndModify, Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import ServerKind, ServerView
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.sessions import NO_LEASE
from aioretry._writes.keyed import KeyedWrites, _decode, _was_replayed

AWARE = Target.of("db", "c", CodecOptions(tz_aware=True), WriteConcern())
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
THEN = datetime(2026, 1, 2, tzinfo=UTC)


def server(kind=ServerKind.PRIMARY, wire_version=17):
    return ServerView(("a", 1), kind, wire_version, True, None, 0.0, LIMITS, lambda: 0, object())


def execution(*replies, of=None):
    """A command whose attempts were answered so, None meaning not at all."""
    command = Insert({"_id": 7}).command(AWARE)
    attempts = [Attempt(("a", 1), 0.0, 0.1, True, None, reply) for reply in replies]
    done = Execution(command, NO_LEASE, None, Numbering.REQUIRED, attempts=attempts)
    done.server = server() if of is None else of
    return done


@pytest.mark.parametrize("memory", [{"retriedStmtIds": [0]}, {"retriedStmtId": 0}])
class TestAnsweredFromMemory:
    def test_by_another_call(self, memory):
        """This call has sent it once, so that it was not this call's."""
        assert _was_replayed(execution({"n": 1, **memory})) is True

    def test_perhaps_by_this_call(self, memory):
        """An earlier attempt of its own may have been executed: nobody can tell."""
        assert _was_replayed(execution(None, {"n": 1, **memory})) is None


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (server(), False),
        (server(wire_version=16), None),  # before MongoDB 6.0
        (server(ServerKind.MONGOS), None),
        (server(ServerKind.LOAD_BALANCER), None),
    ],
)
def test_executed_now(of, expected):
    """Some servers say nothing where they have answered from memory."""
    assert expected is _was_replayed(execution({"n": 1, "retriedStmtIds": []}, of=of))


class TestStoredReplies:
    def test_of_the_drivers_fields(self):
        """The user's decoders and classes are not for them."""
        command = Insert({"_id": 7}).command(AWARE)
        assert {"n": 1, "ok": 1.0} == _decode(command, bson.encode({"n": 1, "ok": 1.0}))

    @pytest.mark.parametrize("value", [{"at": THEN}, None])
    def test_of_the_users_fields(self, value):
        """A document that was found is decoded as the user wants documents."""
        command = FindAndModify("find_one_and_delete", {}).command(AWARE)
        reply = _decode(command, bson.encode({"value": value, "ok": 1.0}))
        assert value == reply["value"]
        assert 1.0 == reply["ok"]


class Source:
    """Knows ids."""

    def new_id(self, index):
        return f"id {index}"


@pytest.mark.parametrize(
    ("document", "expected"),
    [({}, "id 0"), ({"_id": None}, None), ({"_id": 3}, 3)],
)
def test_a_document_gets_the_id_that_it_has_whenever_this_is_repeated(document, expected):
    """Unless it has one."""
    KeyedWrites(None, Source())._identify(document)
    assert {"_id": expected} == document


def test_an_encoded_document_is_sent_as_it_is():
    """It can't be given an id."""
    document = RawBSONDocument(bson.encode({"n": 1}))
    KeyedWrites(None, Source())._identify(document)
    assert {"n": 1} == dict(document)
