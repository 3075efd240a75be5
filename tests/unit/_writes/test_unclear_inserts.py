"""What servers before 5.0 answer to an insert that is sent again, and what is made of it."""

import itertools
from dataclasses import replace

import bson
import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.write_concern import WriteConcern

from aioretry import Attempt
from aioretry._commands.bulk_arguments import InsertMany
from aioretry._commands.command import CommandLimits
from aioretry._commands.encoded import EncodedDocuments, section
from aioretry._commands.replies import tells_each
from aioretry._commands.target import Target
from aioretry._drivers.port import ServerKind, ServerView
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.sessions import SessionLease
from aioretry._writes.unclear_inserts import Inquiry, doubt_vague_replies, unknown_from, vagueness

TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
OLD = ServerView(("a", 1), ServerKind.PRIMARY, 9, True, None, 0.0, LIMITS, lambda: 0, object())
NEW, REFUSED, INVALID = "new", "refused", "invalid"
DUPLICATE, BAD_VALUE = 11000, 2
ERROR = {"index": 0, "code": DUPLICATE}


class Session:
    """A server session."""

    def next_number(self):
        return 1


class OldServer:
    """Executes unordered inserts in the order in which MongoDB 4.2 and 4.4 do."""

    def __init__(self, batch_size=64):
        self.memory = set()
        self.batch_size = batch_size
        self.asked = 0

    def insert(self, documents, numbers=None):
        """Return the reply to a command."""
        results, waiting, taken = [], [], 0
        for position, document in enumerate(documents):
            if document["is"] == INVALID:
                results += self.flushed(waiting)
                results.append(BAD_VALUE)
                continue
            number = taken if numbers is None else numbers[taken]
            taken += 1
            if number in self.memory:
                results.append(None)
                continue
            waiting.append((number, document))
            if len(waiting) == self.batch_size or position == len(documents) - 1:
                results += self.flushed(waiting)
        errors = [{"index": index, "code": code} for index, code in enumerate(results) if code]
        return {"n": results.count(None), "writeErrors": errors}

    def flushed(self, waiting):
        """What the documents that wait end with; none waits any more."""
        ends = []
        for number, document in waiting:
            if document["is"] == NEW:
                self.memory.add(number)
            ends.append(DUPLICATE if document["is"] == REFUSED else None)
        waiting.clear()
        return ends

    async def send(self, execution):
        """Execute a command, as a coordinator does."""
        body = execution.command.body
        documents = [bson.decode(one.raw) for p in body["documents"] for one in p.documents()]
        self.asked += 1
        reply = self.insert(documents, body.get("stmtIds"))
        execution.attempts.append(Attempt(("a", 1), 0.0, 0.0, True, None, reply))
        return reply


def encode(documents, _):
    """Encode documents, as the driver does."""
    raws = [bson.encode(document) for document in documents]
    return EncodedDocuments(b"".join(raws), len(raws), max(map(len, raws)))


def sent(kinds, server=OLD, *, ordered=False, times=1):
    """An insert of documents of some kinds, which was sent so often without an answer."""
    plan = InsertMany([{"is": kind} for kind in kinds], ordered, None, None).plan(TARGET)
    try:
        while True:
            next(plan)
    except StopIteration as stop:
        command, _ = stop.value.next_command()
    command.prepare(LIMITS, encode)
    session = Session()
    lease = SessionLease(lambda: session, None)
    execution = Execution(command, lease, None, Numbering.REQUIRED, server=server)
    execution.number.take(session)
    lost = Attempt(("a", 1), 0.0, 0.0, True, AutoReconnect("lost"), None)
    execution.attempts += [lost] * times
    return execution


def answered(execution, reply):
    """Note an answer."""
    execution.attempts.append(Attempt(("a", 1), 0.0, 0.0, True, None, reply))


def mixes(*kinds, upto=6):
    """All lists of some kinds."""
    return itertools.chain(*(itertools.product(kinds, repeat=size) for size in range(2, upto + 1)))


class TestReplies:
    @pytest.mark.parametrize("batch_size", [2, 64])
    def test_what_tells_each_is_true(self, batch_size):
        """Of what an old server says again, nothing wrong is believed."""
        believed = 0
        for kinds in mixes(NEW, REFUSED):
            server = OldServer(batch_size)
            documents = [{"is": kind} for kind in kinds]
            truth = server.insert(documents)
            again = server.insert(documents)
            if tells_each(again, len(kinds)):
                believed += 1
                assert truth == again
        assert believed

    @pytest.mark.parametrize(
        "harmless",
        [
            {"times": 0},
            {"ordered": True},
            {"server": replace(OLD, max_wire_version=13)},
        ],
        ids=["first", "ordered", "5.0"],
    )
    def test_which_are_exact(self, harmless):
        """First answers, answers to ordered commands, and those of newer servers are believed."""
        reply = {"n": 2, "writeErrors": [{"index": 0, "code": DUPLICATE}]}
        execution = sent([REFUSED, NEW, NEW])
        answered(execution, reply)
        assert vagueness(execution, reply) is not None
        execution = sent([REFUSED, NEW, NEW], **harmless)
        answered(execution, reply)
        assert vagueness(execution, reply) is None

    @pytest.mark.parametrize("reply", [{"n": 2}, {"n": 2, "writeErrors": [ERROR]}])
    def test_a_routers_first_answer(self, reply):
        """It may be that to a second sending of its own."""
        execution = sent([REFUSED, NEW, NEW], replace(OLD, kind=ServerKind.MONGOS), times=0)
        answered(execution, reply)
        assert vagueness(execution, reply) is not None

    def test_no_answer(self):
        """An answer that says too little is none; the others stay."""
        vague, clear = {"n": 2}, {"n": 3}
        execution = sent([REFUSED, NEW, NEW])
        answered(execution, vague)
        answered(execution, clear)
        doubt_vague_replies(execution)
        assert [None, None, clear] == [attempt.reply for attempt in execution.attempts]
        assert "acknowledged 2 of 3 statements and refused 0" in str(execution.attempts[1].error)


class TestInquiry:
    @pytest.mark.parametrize("batch_size", [2, 64])
    async def test_any_documents(self, batch_size):
        """Whatever is new, refused or invalid, the truth is found out, and nothing done twice."""
        for kinds in mixes(NEW, REFUSED, INVALID):
            server, execution, asked = OldServer(batch_size), sent(kinds), []
            truth = server.insert([{"is": kind} for kind in kinds])
            memory = set(server.memory)
            reply = await server.send(execution)
            assert truth == await Inquiry(server, execution, asked).complete(reply)
            assert memory == server.memory
            assert server.asked - 1 == len(asked) <= 2 * len(kinds)

    async def test_few_of_many(self):
        """A refused one among many costs few commands."""
        kinds = [NEW] * 1000
        kinds[400] = REFUSED
        server, execution = OldServer(), sent(kinds)
        server.insert([{"is": kind} for kind in kinds])
        completed = await Inquiry(server, execution, []).complete(await server.send(execution))
        assert [400] == [error["index"] for error in completed["writeErrors"]]
        assert 999 == completed["n"]
        assert server.asked <= 22

    async def test_a_concern_error(self):
        """That of any answer is in the whole."""
        server, execution = OldServer(), sent([REFUSED, NEW])
        server.insert([{"is": REFUSED}, {"is": NEW}])
        concern = {"code": 64, "errmsg": "slow"}
        reply = await server.send(execution)
        reply["writeConcernError"] = concern
        completed = await Inquiry(server, execution, []).complete(reply)
        assert (1, concern) == (completed["n"], completed["writeConcernError"])

    async def test_through_a_router(self):
        """Where each shard numbers its own, invalid documents leave the others in doubt."""
        kinds = [REFUSED, INVALID, REFUSED, NEW]
        server, execution = OldServer(), sent(kinds)
        server.insert([{"is": kind} for kind in kinds])
        execution.server = replace(OLD, kind=ServerKind.MONGOS)
        with pytest.raises(OperationFailure, match="acknowledged 1 of 4"):
            await Inquiry(server, execution, []).complete(await server.send(execution))


class TestNumbers:
    ERRORS = ({"index": 1, "code": BAD_VALUE}, {"index": 2, "code": DUPLICATE})

    @pytest.mark.parametrize(
        ("server", "expected"),
        [
            (OLD, 4),
            (replace(OLD, kind=ServerKind.MONGOS), 2),
            (replace(OLD, kind=ServerKind.MONGOS, max_wire_version=13), 4),
        ],
        ids=["a member", "a router", "5.0"],
    )
    def test_of_an_answer(self, server, expected):
        """An answer tells of all, but for a router of which each shard has its own."""
        execution = sent([NEW, INVALID, REFUSED, NEW], server)
        assert expected == unknown_from(execution, {"n": 2, "writeErrors": self.ERRORS})
        assert 4 == unknown_from(execution, {"n": 4})

    def test_of_harmless_documents(self):
        """Without an answer, documents that can only be numbered are."""
        assert 3 == unknown_from(sent([NEW] * 3), None)
        assert 1 == unknown_from(sent([NEW]), None)

    def test_of_a_large_document(self):
        """Without an answer, a server may have refused one at once that is larger than it takes."""
        small = replace(OLD, limits=replace(LIMITS, max_document_size=35))
        assert 2 == unknown_from(sent([NEW, "x" * 10, NEW], small), None)


class TestSection:
    def test_of_several_parts(self):
        """Some documents of some parts, in one."""
        parts = [encode([{"n": n} for n in range(start, start + 3)], None) for start in (0, 3, 6)]
        for size in (1, 2, 4):
            for wanted in itertools.combinations(range(9), size):
                (part,) = section(parts, wanted)
                assert list(wanted) == [one["n"] for one in part.documents()]
                assert (size, part.largest) == (part.count, len(part.raw) // size)
