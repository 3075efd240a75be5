"""What a reply to several inserts says of each."""

from dataclasses import replace

import bson
import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure, WriteConcernError
from pymongo.write_concern import WriteConcern

from aioretry import Attempt, Outcome, attempts_of, outcome_of
from aioretry._commands.command import CommandLimits
from aioretry._commands.encoded import EncodedDocuments
from aioretry._commands.target import Target
from aioretry._drivers.port import ServerKind, ServerView
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.sessions import NO_LEASE
from aioretry._writes.group.kinds import INSERTS
from aioretry._writes.group.shares import Shares
from aioretry.errors import report_of

A = ("a", 1)
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
SERVER = ServerView(A, ServerKind.PRIMARY, 17, True, None, 0.0, LIMITS, lambda: 0, object())
OLD = replace(SERVER, max_wire_version=9)
DOCUMENTS = [bson.encode(each) for each in ({}, {"$x": 1}, {})]  # the second has no number there
DUPLICATE = {"index": 1, "code": 11000, "errmsg": "E11000", "keyPattern": {"_id": 1}}
CONCERN = {"code": 64, "errmsg": "waiting for replication timed out"}


class Driver:
    def add_label(self, error, label):
        error._add_error_label(label)


class Coordinator:
    driver = Driver()


def shares(*attempts, server=SERVER, is_over=True, pending=None):
    """Three inserts in a command that was tried so."""
    documents = EncodedDocuments(b"".join(DOCUMENTS), 3, max(map(len, DOCUMENTS)))
    body = {"insert": "c", "ordered": False, "documents": [documents]}
    target = Target.of("db", "c", CodecOptions(), WriteConcern())
    command = target.write("insert_one", "insert", body, lambda reply: reply)
    command.statement_count = 3
    execution = Execution(command, NO_LEASE, None, Numbering.REQUIRED, attempts=list(attempts))
    execution.server, execution.pending = server, pending
    return Shares(Coordinator(), INSERTS, execution, {}, lambda: is_over)


def answered(reply):
    return Attempt(A, 0.0, 0.1, True, None, reply)


REPLY = {"ok": 1, "n": 2, "writeErrors": [DUPLICATE], "errorLabels": ["Told"]}


class TestAnswers:
    def test_who_is_acknowledged(self):
        """There is no error for those that the reply does not name."""
        each = shares(answered(REPLY))
        assert [None, None] == [each.error_in(REPLY, index, index) for index in (0, 2)]

    def test_who_is_refused(self):
        """It gets what it would have been told alone, with the labels of the whole."""
        each = shares(answered(REPLY))
        error = each.error_in(REPLY, 1, 1)
        assert isinstance(error, DuplicateKeyError)
        assert error.has_error_label("Told")
        assert 0 == error.details["index"]
        assert Outcome.NOT_APPLIED is outcome_of(error)
        assert [error] == [attempt.error for attempt in attempts_of(error)]

    def test_a_write_concern_error_is_everybodys(self):
        """Each is unknown; and the one that is refused knows of it, too."""
        reply = {**REPLY, "writeConcernError": CONCERN}
        each = shares(answered(reply))
        error = each.error_in(reply, 0, 0)
        assert isinstance(error, WriteConcernError)
        assert isinstance(each.error_in(reply, 1, 1), DuplicateKeyError)

    def test_what_all_are_told_is_looked_up_once(self):
        """Whoever has gone is acknowledged by what came after."""
        each = shares(Attempt(A, 0.0, 0.1, True, AutoReconnect("lost")), answered(REPLY))
        assert {**REPLY, "n": 1, "writeErrors": []} == each.acknowledgement(0)
        assert each.acknowledgement(1) is None
        assert REPLY is each.denial(1)
        assert each.denial(0) is None


class TestNoAnswer:
    def test_it_is_unknown_and_can_be_asked_for(self):
        """Of each by itself."""
        each, error = shares(Attempt(A, 0.0, 0.1, True, AutoReconnect("lost"))), KeyError()
        each.explain(error, 2, "two")
        assert Outcome.UNKNOWN is outcome_of(error)
        assert report_of(error).doubt is not None

    def test_nothing_was_sent(self):
        """There is nothing to ask for."""
        each, error = shares(Attempt(A, 0.0, 0.1, False, AutoReconnect("refused"))), KeyError()
        each.explain(error, 2, "two")
        assert (Outcome.NOT_APPLIED, None) == (outcome_of(error), report_of(error).doubt)


UNSENT = Attempt(A, 0.0, 0.1, False, AutoReconnect("refused"))
LOST = Attempt(A, 0.0, 0.1, True, AutoReconnect("lost"))
TOO_DEEP, DAMAGED = (Attempt(A, 0.0, 0.1, True, OperationFailure("no", code)) for code in (15, 22))


class TestUnread:
    """The server has refused the command as a whole, because of something in it."""

    @pytest.mark.parametrize("server", [SERVER, OLD], ids=["5.0", "4.4"])
    @pytest.mark.parametrize(
        ("tried", "outcome"),
        [
            ([TOO_DEEP], Outcome.NOT_APPLIED),
            ([UNSENT, DAMAGED], Outcome.NOT_APPLIED),
            ([LOST, TOO_DEEP], Outcome.UNKNOWN),
        ],
        ids=["at once", "after nothing", "after a loss"],
    )
    def test_what_it_says(self, tried, outcome, server):
        """Of that sending nothing was executed; of one before it this says nothing."""
        each, error = shares(*tried, server=server), KeyError()
        each.explain(error, 2, "two")
        assert outcome is outcome_of(error)
        # Nobody has got a number then, so that each can have that of its place.
        is_free = outcome is Outcome.NOT_APPLIED
        assert (is_free or server is SERVER) is each.has_known_number(2)
        assert each.has_known_number(1)

    @pytest.mark.parametrize(
        "more", [{"is_over": False}, {"pending": object()}], ids=["to come", "in the air"]
    )
    def test_what_may_be_read_still(self, more):
        """Another sending may give the numbers to others."""
        assert shares(UNSENT, server=OLD).has_known_number(2)
        assert not shares(UNSENT, server=OLD, **more).has_known_number(2)

    def test_by_a_router(self):
        """It sends again by itself, and damage may be what it was told only at last."""
        router = replace(OLD, kind=ServerKind.MONGOS)
        for attempt, is_known in [(TOO_DEEP, True), (DAMAGED, False)]:
            each, error = shares(attempt, server=router), KeyError()
            each.explain(error, 2, "two")
            assert is_known is (outcome_of(error) is Outcome.NOT_APPLIED)
            assert is_known is each.has_known_number(2)


@pytest.mark.parametrize(("n", "is_silent"), [(3, False), (2, True), (0, True)])
def test_a_reply_that_leaves_some_out(n, is_silent):
    """Neither done nor refused: it says nothing of them."""
    reply = {"ok": 1, "n": n}
    each = shares(answered(reply))
    assert is_silent is (each.silence_in(reply) is not None)
