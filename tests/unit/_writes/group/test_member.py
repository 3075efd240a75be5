"""One caller's insert of several in a command, from its document to its end."""

import asyncio
from types import SimpleNamespace

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.errors import InvalidDocument
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument

from aioretry import Attempt, DeadlineExceeded, Outcome, attempts_of, outcome_of
from aioretry._commands.single import Insert
from aioretry._writes.group.member import CoalescedWrite
from aioretry.errors import attach

TRIED = (Attempt(("a", 1), 0.0, 0.1, True),)


class Holder:
    """Has inserts, and lets them go."""

    attempts = TRIED

    def __init__(self):
        self.gone = []

    def let_go(self, insert, exc):
        self.gone.append((insert, exc))
        attach(exc, Outcome.UNKNOWN, self.attempts)

    def too_late(self, insert):
        return DeadlineExceeded("late")


@pytest.fixture
async def holder():
    return Holder()


def member(holder, document):
    """An insert that somebody has."""
    made = CoalescedWrite(
        SimpleNamespace(loop=asyncio.get_running_loop(), running=set()), holder, None
    )
    made.take(Insert(document))
    return made


class TestDocuments:
    async def test_one_without_an_id_gets_one(self, holder):
        """It is the caller's document that does, as with any insert."""
        document = {"n": 1}
        insert = member(holder, document)
        assert isinstance(document["_id"], ObjectId)
        assert document["_id"] is insert.result_of({}).inserted_id

    async def test_one_with_an_id_keeps_it(self, holder):
        """Even None is one."""
        insert = member(holder, {"_id": None})
        assert insert.result_of({}).inserted_id is None

    async def test_an_encoded_one_is_not_looked_into(self, holder):
        """It is sent as it is."""
        raw = bson.encode({"n": 1})
        insert = member(holder, RawBSONDocument(raw))
        assert (len(raw), raw) == (insert.encode(CodecOptions()), insert.raw)
        assert insert.result_of({}).inserted_id is None

    @pytest.mark.parametrize("document", [None, 7, [("n", 1)], "text"])
    async def test_what_is_none(self, holder, document):
        """It is refused at once."""
        with pytest.raises(TypeError, match="document must be"):
            member(holder, document)

    async def test_one_that_can_not_be_encoded(self, holder):
        """The error is the encoder's."""
        with pytest.raises(InvalidDocument):
            member(holder, {"_id": 1, "x": object()}).encode(CodecOptions())


class TestEnds:
    async def test_well(self, holder):
        """Once: what is told after it changes nothing."""
        insert = member(holder, {"_id": 7})
        insert.succeed(insert.result_of({}), TRIED)
        insert.fail(ValueError(), ())
        insert.refuse(ValueError())
        insert.expire()
        assert (7, TRIED) == ((await insert).inserted_id, insert.attempts())
        assert [] == holder.gone

    async def test_with_an_error_that_says_how(self, holder):
        """Nobody asks its holder."""
        error, insert = ValueError(), member(holder, {})
        attach(error, Outcome.NOT_APPLIED, TRIED)
        insert.fail(error, TRIED)
        insert.succeed(None, ())
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the very one
            await insert
        assert (error, Outcome.NOT_APPLIED) == (caught.value, outcome_of(caught.value))
        assert [] == holder.gone

    async def test_cancelled_with_the_others(self, holder):
        """It is cancelled, too, by the same cancellation."""
        reason, insert = asyncio.CancelledError(), member(holder, {})
        insert.fail(reason, TRIED)
        assert insert.cancelled()
        with pytest.raises(asyncio.CancelledError) as caught:
            insert.result()
        assert reason is caught.value

    async def test_cancelled_by_its_caller(self, holder):
        """Its holder lets it go, and says how it ends."""
        insert = member(holder, {})
        assert insert.cancel()
        ((gone, exc),) = holder.gone
        assert insert is gone
        assert (Outcome.UNKNOWN, TRIED) == (outcome_of(exc), attempts_of(exc))
        assert not insert.cancel()

    async def test_refused_while_nobody_has_it(self):
        """Nothing was sent."""
        insert = member(None, {})
        insert.refuse(ValueError())
        assert Outcome.NOT_APPLIED is outcome_of(insert.exception())

    async def test_its_deadline_is_over(self, holder):
        """The error is its holder's, who knows what was tried."""
        insert = member(holder, {})
        insert.expire()
        with pytest.raises(DeadlineExceeded, match="late"):
            await insert
        assert [insert] == [one for one, _ in holder.gone]
