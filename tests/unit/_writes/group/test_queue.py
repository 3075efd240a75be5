"""Inserts that travel together, over a driver that does what it is told: no server, no waiting."""

import asyncio
import contextvars
import gc
import time
import weakref
from collections.abc import Mapping

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.errors import InvalidDocument
from pymongo.errors import (
    AutoReconnect,
    DocumentTooLarge,
    DuplicateKeyError,
    InvalidOperation,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteConcernError,
    WriteError,
)
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    attempts_of,
    deadline,
    outcome_of,
    resolve,
)
from aioretry._commands.command import CommandLimits
from aioretry._commands.replies import alone
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import Failed, Policy, Replied, ServerKind, ServerView, TopologyView
from aioretry._retry.loop import Coordinator
from aioretry._retry.sessions import SessionLease
from aioretry._writes.group.command import latest
from aioretry._writes.group.kinds import INSERTS
from aioretry._writes.group.queue import Coalescing, GroupQueue
from aioretry.deadlines import Deadline, current_deadline, surrounding_end

ADDRESS = ("a", 1)
LIMITS = CommandLimits(2**20, 48_000_000, 100_000)
APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
CALLER = contextvars.ContextVar("CALLER", default=None)
DUPLICATE = {"index": 1, "code": 11000, "errmsg": "E11000", "keyPattern": {"_id": 1}}
TIME_IS_OVER = {"code": 50, "errmsg": "time is over"}


class Inserts(GroupQueue):
    """The queue of ``insert_one`` calls."""

    def insert(self, document, deadline):
        return self.add(Insert(document), deadline)


class Session:
    """A server session that tells how it ended."""

    def __init__(self):
        self.number = 0
        self.ended = []

    def next_number(self):
        self.number += 1
        return self.number

    def latest_number(self):
        return self.number

    def close(self, *, discard):
        self.ended.append("discarded" if discard else "pooled")


class Lazy(Mapping):
    """A part of a document that calls something when it is encoded."""

    def __init__(self, call):
        self.call = call

    def __getitem__(self, key):
        raise KeyError(key)

    def __iter__(self):
        self.call()
        return iter(())

    def __len__(self):
        return 0


class Flying:
    """An attempt that does what the test tells it to."""

    def __init__(self, driver, call, deliver):
        self.driver, self.call, self._deliver = driver, call, deliver
        self.context = contextvars.copy_context()
        self.number = None

    def prepare(self):
        """Choose the documents, and send."""
        call = self.call
        if call.command.prepare is not None:
            call.command.prepare(LIMITS, None)
        call.server = self.driver.server
        session = call.lease.carry()
        if call.has_transaction_id:
            self.number = call.number.take(session)
        call.token.begin_sending()
        return self

    @property
    def ids(self):
        """The ids of the documents, in their order."""
        (part,) = self.call.command.body["documents"]
        documents = [part] if isinstance(part, bson.raw_bson.RawBSONDocument) else part.documents()
        return [document["_id"] for document in documents]

    def reply(self, **reply):
        """Answer."""
        self._land(Replied({"ok": 1, "n": len(self.ids)} | reply))

    def fail(self, error):
        """Fail after sending."""
        self.driver.renew()
        self._land(Failed(error, sent=True))

    def refuse(self):
        """Fail before sending."""
        self.driver.renew()
        self._deliver(Failed(AutoReconnect("refused"), sent=False))

    def _land(self, result):
        self.call.lease.drop()
        self._deliver(result)


class Driver:
    """Attempts that wait for what the test tells them."""

    def __init__(self):
        self.session = Session()
        self.flying = []
        self.commands = 0
        self.kind = ServerKind.PRIMARY
        self.wire_version = 17
        self.renew()

    def renew(self):
        """Hear from the server again."""
        kind, version = self.kind, self.wire_version
        self.server = ServerView(
            ADDRESS, kind, version, True, None, 0.0, LIMITS, lambda: 0, object()
        )
        self.topology = TopologyView({ADDRESS: self.server}, 0.015, object())

    def lose(self):
        """Know no server."""
        self.topology = TopologyView({}, 0.015, object())

    def view(self):
        return self.topology

    def attempt(self, loop, call, receiver):
        self.flying.append(Flying(self, call, receiver.land))
        return True

    def abandon(self, call):
        return True

    def start_probing(self):
        pass

    def stop_probing(self):
        pass

    def add_label(self, error, label):
        error._add_error_label(label)


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def make(driver):
    """Make a queue over the driver."""

    def make(max_documents=1000, max_bytes=10_000, patience=0.05, **policy):
        coordinator = Coordinator(
            driver,
            asyncio.get_running_loop(),
            Policy(**policy),
            server_selection_timeout=patience,
            hooks=(),
        )
        target = Target.of("db", "c", CodecOptions(), WriteConcern())

        def lease():
            driver.commands += 1
            return SessionLease(lambda: driver.session)

        return Inserts(coordinator, INSERTS, target, lease, Coalescing(max_documents, max_bytes))

    return make


async def launched(driver, count=1):
    """The latest attempt, once there are so many."""
    while len(driver.flying) < count:
        await asyncio.sleep(0)
    return driver.flying[count - 1]


async def both(driver):
    """The attempts after the first one, once there are two."""
    await launched(driver, 3)
    return driver.flying[1:]


async def all_of(inserts):
    """What each ends with."""
    ended = []
    for insert in inserts:
        try:
            ended.append(await insert)
        except BaseException as exc:  # noqa: BLE001 - cancellations too
            ended.append(exc)
    return ended


class TestQueue:
    async def test_order(self, driver, make):
        """Documents are sent in the order of the calls, one command at a time."""
        queue = make(max_documents=3)
        inserts = [queue.insert({"_id": n}, None) for n in range(7)]
        for count, ids in enumerate([[0, 1, 2], [3, 4, 5], [6]], start=1):
            flying = (await launched(driver, count)).prepare()
            assert (ids, count) == (flying.ids, len(driver.flying))
            flying.reply()
        assert list(range(7)) == [each.inserted_id for each in await all_of(inserts)]

    async def test_those_who_come_back_travel_with_those_who_wait(self, driver, make):
        """Whoever inserts again as soon as it has its result is in the next command."""
        queue = make()

        async def twice(number):
            await queue.insert({"_id": number}, None)
            await queue.insert({"_id": -number}, None)

        tasks = [asyncio.create_task(twice(number)) for number in (1, 2)]
        first = (await launched(driver)).prepare()
        late = queue.insert({"_id": 3}, None)
        first.reply()
        second = (await launched(driver, 2)).prepare()
        assert [3, -1, -2] == second.ids
        second.reply()
        await asyncio.gather(late, *tasks)

    async def test_a_full_queue_keeps_what_comes_as_it_is(self, driver, make, monkeypatch):
        """Two commands' bytes are encoded ahead, and the next ones when there is room."""
        encoded = []
        encode = bson.encode

        def counting(document, **options):
            encoded.append(document["_id"])
            return encode(document, **options)

        monkeypatch.setattr(bson, "encode", counting)
        queue = make(max_bytes=1000)
        inserts = [queue.insert({"_id": n, "x": "x" * 478}, None) for n in range(10)]
        assert [0, 1, 2, 3] == encoded  # of 500 bytes each
        for count in range(1, 6):
            flying = (await launched(driver, count)).prepare()
            assert [2 * count - 2, 2 * count - 1] == flying.ids
            assert min(10, 2 * count + 4) == len(encoded)
            flying.reply()
        await asyncio.gather(*inserts)

    async def test_whoever_leaves_a_full_queue(self, driver, make):
        """It is taken out wherever it waits, and its room is another's."""
        queue = make(max_bytes=1000)
        inserts = [queue.insert({"_id": n, "x": "x" * 478}, None) for n in range(8)]
        for number in (0, 3, 5):
            inserts[number].cancel()
        ids = []
        for count in range(1, 4):
            flying = (await launched(driver, count)).prepare()
            ids.append(flying.ids)
            flying.reply()
        assert [[1, 2], [4, 6], [7]] == ids
        ended = await all_of(inserts)
        assert {NOT_APPLIED} == {outcome_of(ended[number]) for number in (0, 3, 5)}

    async def test_who_leaves_lets_nobody_jump_the_queue(self, driver, make):
        """The place of one that is encoded is not for who comes last, if others wait."""
        queue = make(max_bytes=1000)
        full = [queue.insert({"_id": n, "x": "x" * 1000}, None) for n in range(2)]
        waiting = queue.insert({"_id": 2}, None)
        full[1].cancel()
        last = queue.insert({"_id": 3}, None)
        count = 0
        while not (waiting.done() and last.done()):
            count += 1
            (await launched(driver, count)).prepare().reply()
            await asyncio.sleep(0)
        assert [0, 2, 3] == [number for each in driver.flying for number in each.ids]
        await all_of([full[0], waiting, last])

    async def test_what_can_not_be_encoded_later(self, driver, make):
        """It fails alone, also if that shows when its turn comes."""
        queue = make(max_bytes=1000)
        documents = [{"_id": n, "x": "x" * 1000} for n in range(2)]
        inserts = [queue.insert(document, None) for document in documents]
        bad = queue.insert({"x": object()}, None)
        good = queue.insert({"_id": 2}, None)
        assert not bad.done()
        for count in range(1, 4):
            (await launched(driver, count)).prepare().reply()
        *results, error, last = await all_of([*inserts, bad, good])
        assert [0, 1, 2] == [each.inserted_id for each in [*results, last]]
        assert isinstance(error, InvalidDocument)
        assert NOT_APPLIED is outcome_of(error)

    @pytest.mark.parametrize(
        "error", [ValueError("no"), StopIteration(1), asyncio.CancelledError(), GeneratorExit()]
    )
    async def test_what_can_not_be_encoded_is_nobody_elses_mistake(self, error, driver, make):
        """Those around it in a full queue are sent, each once, as if it were not there."""

        def fail():
            raise error

        queue = make(max_bytes=1000)
        full = [queue.insert({"_id": n, "x": "x" * 1000}, None) for n in range(2)]
        waiting = [queue.insert({"_id": n}, None) for n in (2, 3)]
        bad = queue.insert({"_id": "bad", "x": Lazy(fail)}, None)
        behind = queue.insert({"_id": 4}, None)
        for count in range(1, 4):
            (await launched(driver, count)).prepare().reply()
        *ended, failed = await all_of([*full, *waiting, behind, bad])
        assert list(range(5)) == [each.inserted_id for each in ended]
        assert NOT_APPLIED is outcome_of(failed)
        assert error in (failed, failed.__cause__)
        assert [[0], [1], [2, 3, 4]] == [each.ids for each in driver.flying]

    async def test_that_are_all_refused_hold_up_nobody(self, driver, make):
        """Those in front have left, and the next one can't be encoded: the others are sent."""
        queue = make(max_bytes=1000)
        gone = [queue.insert({"_id": n, "x": "x" * 1000}, None) for n in range(3)]
        bad = queue.insert({"_id": "bad", "x": object()}, None)
        good = [queue.insert({"_id": n}, None) for n in range(3)]
        for each in gone:
            each.cancel()
        assert isinstance((await all_of([bad]))[0], InvalidDocument)
        (await launched(driver)).prepare().reply()
        assert [0, 1, 2] == [each.inserted_id for each in await all_of(good)]

    async def test_whoever_leaves_while_it_is_encoded(self, driver, make):
        """The user's own code runs then, and may cancel it: it is not sent."""
        inserts = []

        def leave():
            inserts[0].cancel()

        queue = make(max_bytes=1000)
        full = [queue.insert({"_id": n, "x": "x" * 1000}, None) for n in range(2)]
        inserts.append(queue.insert({"_id": 2, "x": Lazy(leave)}, None))
        for count in (1, 2):
            (await launched(driver, count)).prepare().reply()
        await all_of(full)
        assert NOT_APPLIED is outcome_of((await all_of(inserts))[0])
        last = queue.insert({"_id": 3}, None)
        (await launched(driver, 3)).prepare().reply()
        await last
        assert [[0], [1], [3]] == [each.ids for each in driver.flying]

    async def test_with_and_without_a_deadline(self, driver, make):
        """They never travel together, and take turns."""
        queue = make(max_documents=2)
        deadline = Deadline.after(60)
        inserts = [queue.insert({"_id": n}, deadline if n % 2 else None) for n in range(8)]
        ids = []
        for count in range(1, 5):
            flying = (await launched(driver, count)).prepare()
            assert flying.call.deadline is (deadline if flying.ids[0] % 2 else None)
            ids.append(flying.ids)
            flying.reply()
        await asyncio.gather(*inserts)
        assert [[0, 2], [1, 3], [4, 6], [5, 7]] == ids

    async def test_the_latest_deadline_is_that_of_the_command(self, driver, make):
        """Also if it is none at all."""
        near, far, never = (Deadline.after(seconds) for seconds in (60, 90, float("inf")))
        assert far is latest([near, far, near])
        assert never is latest([near, never])
        assert latest([None]) is None

    async def test_whose_context(self, driver, make):
        """Listeners of the command find the span of the first; its deadline is its own."""
        CALLER.set("first")
        async with deadline(60):
            insert = make().insert({}, None)
        flying = await launched(driver)
        assert "first" == flying.context[CALLER]
        assert flying.context.run(current_deadline) is None
        assert flying.context.run(surrounding_end) is None
        flying.prepare().reply()
        await insert

    async def test_a_deadline_that_is_over(self, driver, make):
        """Nothing is sent, and others are not kept waiting."""
        queue = make()
        over, other = Deadline.after(0), Deadline.after(60)
        inserts = [queue.insert({"_id": n}, each) for n, each in enumerate([over, other])]
        flying = (await launched(driver)).prepare()
        assert [1] == flying.ids
        flying.reply()
        late, result = await all_of(inserts)
        assert (DeadlineExceeded, NOT_APPLIED) == (type(late), outcome_of(late))
        assert "nothing was sent" in str(late)
        assert 1 == result.inserted_id

    async def test_looking_at_deadlines_costs_those_that_are_over(self, driver, make):
        """However many wait, each look is at the ones that come next."""
        looks = []

        class Noting(Deadline):
            @property
            def is_over(self):
                looks.append(self.at)
                return super().is_over

        queue = make(max_documents=10)
        first = queue.insert({"_id": -1}, None)
        (await launched(driver)).prepare()
        patient = [queue.insert({"_id": n}, Noting.after(60)) for n in range(2000)]
        hasty = [queue.insert({"_id": -2 - n}, Noting.after(n / 40)) for n in range(10)]
        errors = await all_of(hasty)
        assert {DeadlineExceeded} == set(map(type, errors))
        assert len(looks) < 100
        assert not any(each.done() for each in [first, *patient])

    async def test_deadlines_that_were_met_are_forgotten(self, driver, make):
        """What has ended well before its deadline is not remembered until then."""
        queue = make()
        for count in range(1, 41):
            inserts = [queue.insert({"_id": n}, Deadline.after(60)) for n in range(100)]
            (await launched(driver, count)).prepare().reply()
            await all_of(inserts)
        assert len(queue._ends) < 2000

    @pytest.mark.parametrize("way", ["answered", "all leave"])
    async def test_an_empty_queue_is_kept_by_no_timer(self, way, driver, make):
        """Once nothing waits, there is no deadline to look at."""
        queue = make()
        insert = queue.insert({"_id": 1}, Deadline.after(7200))
        kept = weakref.ref(queue)
        if way == "answered":
            (await launched(driver)).prepare().reply()
        else:
            insert.cancel()
        await all_of([insert])
        await asyncio.sleep(0)
        del insert, queue
        driver.flying.clear()
        gc.collect()
        assert kept() is None

    async def test_nothing_is_kept(self, driver, make):
        """What has ended holds neither its document nor the command."""

        class Document(dict):
            pass

        document = Document(_id=1)
        kept = weakref.ref(document)
        insert = make().insert(document, None)
        del document
        assert kept() is None  # it is encoded at once
        flying = await launched(driver)
        command = weakref.ref(insert.holder)
        flying.prepare().reply()
        await insert
        del flying
        driver.flying.clear()
        gc.collect()
        assert command() is None


class TestEnds:
    async def test_one_number_for_all_attempts(self, driver, make):
        """A retry sends the same documents with the same transaction number."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(3)]
        first = (await launched(driver)).prepare()
        inserts[1].cancel()  # too late to be taken out
        first.fail(AutoReconnect("lost"))
        second = (await launched(driver, 2)).prepare()
        assert (first.ids, first.number) == (second.ids, second.number) == ([0, 1, 2], 1)
        assert second.call.has_transaction_id
        second.reply()
        ended = await all_of(inserts)
        assert [0, 2] == [ended[0].inserted_id, ended[2].inserted_id]
        assert APPLIED is outcome_of(ended[1])
        assert ["pooled"] == driver.session.ended

    async def test_each_has_the_error_that_it_would_have_had_alone(self, driver, make):
        """Of a reply with both kinds of errors, and a document that left before."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(4)]
        flying = (await launched(driver)).prepare()
        for number in (1, 2):
            inserts[number].cancel()
        concern = {"code": 64, "errmsg": "slow", "errInfo": {"wtimeout": True}}
        denied = {**DUPLICATE, "index": 3}
        flying.reply(n=2, writeErrors=[DUPLICATE, denied], writeConcernError=concern)
        ended = await all_of(inserts)
        assert [UNKNOWN, NOT_APPLIED, UNKNOWN, NOT_APPLIED] == list(map(outcome_of, ended))
        assert isinstance(ended[0], WriteConcernError)
        assert (DuplicateKeyError, {**DUPLICATE, "index": 0}) == (type(ended[3]), ended[3].details)
        assert [attempts_of(each)[-1].error for each in (ended[0], ended[3])] == [
            ended[0],
            ended[3],
        ]

    async def test_an_answer_and_then_silence(self, driver, make):
        """Whom the first answer has refused is told so; the others are in doubt."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        concern = {"code": 91, "errmsg": "shutting down"}
        labels = ["RetryableWriteError"]
        (await launched(driver)).prepare().reply(
            n=1, writeErrors=[DUPLICATE], writeConcernError=concern, errorLabels=labels
        )
        driver.renew()
        (await launched(driver, 2)).prepare().fail(AutoReconnect("lost"))
        written, refused = await all_of(inserts)
        assert (AutoReconnect, UNKNOWN) == (type(written), outcome_of(written))
        assert (DuplicateKeyError, UNKNOWN) == (type(refused), outcome_of(refused))

    async def test_errors_are_not_shared(self, driver, make):
        """Each caller has an exception of its own, with what is known of it."""
        queue = make(retry_writes=False)
        inserts = [queue.insert({"_id": n}, None) for n in range(3)]
        (await launched(driver)).prepare().fail(AutoReconnect("lost"))
        errors = await all_of(inserts)
        assert 3 == len(set(map(id, errors)))
        for error in errors:
            assert (AutoReconnect, "lost") == (type(error), str(error))
            assert UNKNOWN is outcome_of(error)
            assert 1 == len(error.__notes__)

    @pytest.mark.parametrize("where", ["writeErrors", "writeConcernError"])
    async def test_the_server_says_that_time_is_over(self, where, driver, make):
        """That is the deadline's error, for whom it is meant."""
        queue = make()
        deadline = Deadline.after(60)
        inserts = [queue.insert({"_id": n}, deadline) for n in range(2)]
        flying = (await launched(driver)).prepare()
        if where == "writeErrors":
            flying.reply(n=1, writeErrors=[{"index": 1, **TIME_IS_OVER}])
        else:
            flying.reply(writeConcernError=TIME_IS_OVER)
        first, second = await all_of(inserts)
        assert isinstance(second, DeadlineExceeded)
        assert isinstance(second.__cause__, WriteError | WriteConcernError)
        assert isinstance(first, DeadlineExceeded) is (where == "writeConcernError")

    async def test_a_server_that_forgets_some(self, driver, make):
        """If an answer leaves out some and does not say whom, each is asked for by its number."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(4)]
        whole = (await launched(driver)).prepare()
        whole.reply(n=2, writeErrors=[DUPLICATE])
        await launched(driver, 4)
        inserts[3].cancel()
        asked = [each.prepare() for each in driver.flying[1:]]
        assert [([0], [0]), ([2], [2]), ([3], [3])] == [
            (each.ids, each.call.command.body["stmtIds"]) for each in asked
        ]
        assert {whole.number} == {each.number for each in asked}
        asked[0].reply()
        asked[1].reply(n=0, writeErrors=[{**DUPLICATE, "index": 0}])
        first, second, third, fourth = await all_of(inserts)
        assert UNKNOWN is outcome_of(fourth)
        asked[2].reply()
        assert 0 == first.inserted_id
        for error in second, third:
            assert (DuplicateKeyError, NOT_APPLIED) == (type(error), outcome_of(error))
        await asyncio.sleep(0.01)
        assert APPLIED is outcome_of(fourth)
        assert ["discarded"] == driver.session.ended[:1]

    async def test_a_server_that_forgets_some_and_can_not_be_asked(self, driver, make):
        """Without a transaction id nothing is sent again, and nobody is told to be applied."""
        queue = make(retry_writes=False)
        inserts = [queue.insert({"_id": n}, None) for n in range(3)]
        (await launched(driver)).prepare().reply(n=1, writeErrors=[DUPLICATE])
        first, second, third = await all_of(inserts)
        assert isinstance(second, DuplicateKeyError)
        for error in first, third:
            assert (OperationFailure, UNKNOWN) == (type(error), outcome_of(error))
            assert "acknowledged 1 of 3" in str(error)

    async def test_a_router_that_may_have_sent_it_twice(self, driver, make):
        """Already its first answer may name others before 5.0, so that each is asked for."""
        driver.kind, driver.wire_version = ServerKind.MONGOS, 9
        driver.renew()
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        denied = {"n": 0, "writeErrors": [{**DUPLICATE, "index": 0}]}
        (await launched(driver)).prepare().reply(**denied | {"n": 1})
        async with asyncio.timeout(30):
            while len(driver.flying) < 3:
                await asyncio.sleep(0.001)
        assert [False] * 2 == [each.done() for each in inserts]
        for asked, reply in zip(driver.flying[1:], ({}, denied), strict=True):
            asked.prepare().reply(**reply)
        first, second = await all_of(inserts)
        assert 0 == first.inserted_id
        assert (DuplicateKeyError, NOT_APPLIED) == (type(second), outcome_of(second))

    async def test_numbers_that_an_old_server_gives(self, driver, make):
        """Before 5.0 one that is refused at once has none, so that the next one gets that."""
        driver.wire_version = 9
        driver.renew()
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(3)]
        (await launched(driver)).prepare().fail(AutoReconnect("lost"))
        refused = {"index": 0, "code": 52, "errmsg": "a field begins with $"}
        (await launched(driver, 2)).prepare().reply(n=2, writeErrors=[refused])
        await launched(driver, 4)
        asked = {each.ids[0]: each for each in (one.prepare() for one in driver.flying[2:])}
        assert {1: [0], 2: [1]} == {n: asked[n].call.command.body["stmtIds"] for n in (1, 2)}
        asked[1].reply()
        asked[2].reply(n=0, writeErrors=[{**DUPLICATE, "index": 0}])
        first, second, third = await all_of(inserts)
        assert (52, 1) == (first.code, second.inserted_id)
        assert isinstance(third, DuplicateKeyError)

    @pytest.mark.parametrize("is_asked_in_vain", [False, True], ids=["answered", "in vain"])
    async def test_one_was_resolved_before_all_were_executed(self, driver, make, is_asked_in_vain):
        """An old server then has the errors of the others in wrong places: each is asked for."""
        driver.wire_version = 9
        driver.renew()
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(3)]
        whole = (await launched(driver)).prepare()
        inserts[1].cancel()
        (gone,) = await all_of(inserts[1:2])
        resolving = asyncio.create_task(resolve(gone))
        (await launched(driver, 2)).prepare().reply()
        assert 1 == (await resolving).inserted_id
        # It speaks of the one that it knows first, and of the one that it refuses after that.
        denied = {"n": 0, "writeErrors": [{**DUPLICATE, "index": 0}]}
        whole.reply(n=2, writeErrors=[DUPLICATE])
        await asyncio.sleep(0.01)
        assert [False, False] == [insert.done() for insert in inserts[::2]]
        if is_asked_in_vain:
            for count in range(3, 9):
                (await launched(driver, count)).refuse()
            ended = [gone, *await all_of(inserts[::2])]
            assert [UNKNOWN] * 3 == list(map(outcome_of, ended))
            for error in ended:
                assert [True, False, False] == [each.sent for each in attempts_of(error)]
            return
        await launched(driver, 5)
        for asked, reply in zip(driver.flying[2:], (denied, {}, {}), strict=True):
            asked.prepare().reply(**reply)
        first, third = await all_of(inserts[::2])
        assert (DuplicateKeyError, 2) == (type(first), third.inserted_id)
        assert APPLIED is outcome_of(gone)

    async def test_resolved_alone(self, driver, make):
        """Whoever resolves its insert leaves those of the others alone."""
        queue = make(retry_writes=True)
        inserts = [queue.insert({"_id": n}, None) for n in range(3)]
        for count in (1, 2):
            (await launched(driver, count)).prepare().fail(AutoReconnect("lost"))
        errors = await all_of(inserts)
        resolving = asyncio.create_task(resolve(errors[1]))
        asked = (await launched(driver, 3)).prepare()
        assert ([1], [1], 1) == (asked.ids, asked.call.command.body["stmtIds"], asked.number)
        asked.fail(AutoReconnect("lost again"))
        again = (await launched(driver, 4)).prepare()
        again.fail(AutoReconnect("and again"))
        (error,) = await all_of([resolving])
        assert (UNKNOWN, 4) == (outcome_of(error), len(attempts_of(error)))
        resolving = asyncio.create_task(resolve(error))
        (await launched(driver, 5)).prepare().reply()
        assert 1 == (await resolving).inserted_id
        assert [UNKNOWN] * 3 == list(map(outcome_of, errors))

    async def test_an_answer_that_makes_no_sense(self, driver, make):
        """It is nobody's result, and nobody waits for ever."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        (await launched(driver)).prepare().reply(writeErrors=[{"code": 1}])
        errors = await all_of(inserts)
        assert [(KeyError, UNKNOWN)] * 2 == [(type(each), outcome_of(each)) for each in errors]
        assert errors[0] is not errors[1]

    async def test_an_error_that_can_not_be_copied(self, driver, make):
        """It is shared then."""

        class PickyError(AutoReconnect):
            def __new__(cls, *, needed):
                return super().__new__(cls)

            def __init__(self, *, needed):
                super().__init__(needed)

        queue = make(retry_writes=False)
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        (await launched(driver)).prepare().fail(PickyError(needed="lost"))
        errors = await all_of(inserts)
        assert [(PickyError, UNKNOWN)] * 2 == [(type(each), outcome_of(each)) for each in errors]

    async def test_what_is_too_large_for_this_server(self, driver, make):
        """It is refused alone when the command is prepared."""
        queue = make(max_bytes=10_000_000)
        inserts = [queue.insert({"_id": n, "x": "x" * n}, None) for n in (1, 2**20 + 2**15, 2)]
        flying = (await launched(driver)).prepare()
        assert [1, 2] == flying.ids
        flying.reply()
        one, large, two = await all_of(inserts)
        assert [1, 2] == [one.inserted_id, two.inserted_id]
        assert (DocumentTooLarge, NOT_APPLIED) == (type(large), outcome_of(large))

    async def test_all_leave_before_anything_is_sent(self, driver, make):
        """Nothing is sent, and the session was never taken."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        flying = await launched(driver)
        for each in inserts:
            each.cancel()
        assert [NOT_APPLIED] * 2 == list(map(outcome_of, await all_of(inserts)))
        assert flying.call.token.is_revoked
        assert [] == driver.session.ended

    async def test_all_leave_after_it_was_sent(self, driver, make):
        """No retry is made, and a late answer still tells when it is asked for."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        flying = (await launched(driver)).prepare()
        for each in inserts:
            each.cancel()
        one, two = await all_of(inserts)
        assert [UNKNOWN] * 2 == list(map(outcome_of, (one, two)))
        await asyncio.sleep(0.01)  # the queue learns that the command has ended
        assert [UNKNOWN] * 2 == list(map(outcome_of, (one, two)))
        flying.reply(n=1, writeErrors=[DUPLICATE])
        assert 0 == (await resolve(one)).inserted_id
        assert (1, ["discarded"]) == (len(driver.flying), driver.session.ended)
        resolving = asyncio.create_task(resolve(two))
        (await launched(driver, 2)).prepare().reply(n=0, writeErrors=[{**DUPLICATE, "index": 0}])
        (error,) = await all_of([resolving])
        assert isinstance(error, DuplicateKeyError)

    async def test_cancelled_alone_after_it_was_chosen(self, driver, make):
        """As long as it is not sent nothing was written, and that is known at once."""
        insert = make().insert({"_id": 1}, None)
        flying = await launched(driver)
        flying.call.command.prepare(LIMITS, None)
        insert.cancel()
        (error,) = await all_of([insert])
        assert NOT_APPLIED is outcome_of(error)

    async def test_no_server(self, driver, make):
        """All are told so, and the next ones are not held up."""
        driver.lose()
        queue = make()
        errors = await all_of([queue.insert({"_id": n}, None) for n in range(2)])
        assert [NOT_APPLIED] * 2 == list(map(outcome_of, errors))
        driver.renew()
        insert = queue.insert({"_id": 3}, None)
        (await launched(driver)).prepare().reply()
        assert 3 == (await insert).inserted_id

    async def test_no_server_for_long(self, driver, make):
        """Nobody waits until two commands have found none, however many are before it."""
        driver.lose()
        queue = make(max_documents=1)
        inserts = [queue.insert({"_id": n}, None) for n in range(100)]
        errors = await all_of(inserts)
        assert 2 == driver.commands
        assert {(ServerSelectionTimeoutError, NOT_APPLIED)} == {
            (type(each), outcome_of(each)) for each in errors
        }
        assert 100 == len(set(map(id, errors)))

    async def test_no_server_until_a_deadline(self, driver, make):
        """It ends those whose deadline it is; who has more time has it, and a turn."""
        driver.lose()
        queue = make(max_documents=1)
        # Timers are early by this clock.
        deadlines = [Deadline.after(n / 100, lambda: 0.1 * time.monotonic()) for n in (1, 2)]
        hasty = [queue.insert({"_id": n}, each) for n, each in enumerate(deadlines)]
        patient = queue.insert({"_id": 3}, Deadline.after(60))
        assert [DeadlineExceeded] * 2 == list(map(type, await all_of(hasty)))
        driver.renew()
        (await launched(driver)).prepare().reply()
        assert 3 == (await patient).inserted_id

    async def test_a_deadline_among_the_failures(self, driver, make):
        """Whoever leaves after an attempt failed is told of its error."""
        queue = make()
        near, far = Deadline.after(0.5), Deadline.after(60)
        inserts = [queue.insert({"_id": n}, each) for n, each in enumerate([near, far])]
        (await launched(driver)).prepare().fail(AutoReconnect("lost"))
        second = (await launched(driver, 2)).prepare()
        with pytest.raises(DeadlineExceeded, match="lost") as caught:
            await inserts[0]
        assert isinstance(caught.value.__cause__, AutoReconnect)
        assert UNKNOWN is outcome_of(caught.value)
        second.reply()
        await inserts[1]
        assert APPLIED is outcome_of(caught.value)

    async def test_the_client_is_closed(self, driver, make):
        """What waits is told so when its turn comes."""

        def closed():
            raise InvalidOperation("closed")

        queue = make()
        first = queue.insert({"_id": 1}, None)
        flying = (await launched(driver)).prepare()
        second = queue.insert({"_id": 2}, None)
        driver.view = closed
        flying.reply()
        assert 1 == (await first).inserted_id
        with pytest.raises(InvalidOperation) as caught:
            await second
        assert NOT_APPLIED is outcome_of(caught.value)


class TestAskedInTheAir:
    """Somebody leaves, and asks at once how it ended, while the command is under way."""

    async def asked(self, driver, make):
        """A command in the air, what asks about the insert that was left, and its attempt."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        flying = (await launched(driver)).prepare()
        inserts[1].cancel()
        (gone,) = await all_of([inserts[1]])
        resolving = asyncio.create_task(resolve(gone))
        return inserts[0], gone, flying, resolving, (await launched(driver, 2)).prepare()

    async def test_the_session_is_nobody_elses(self, driver, make):
        """However well the command ends, no other write takes a number before the answer."""
        patient, _, flying, resolving, asked = await self.asked(driver, make)
        flying.reply()
        await patient
        assert "pooled" not in driver.session.ended
        asked.reply(n=1)
        assert 1 == (await resolving).inserted_id
        assert "pooled" not in driver.session.ended

    async def test_the_answer_to_all_counts(self, driver, make):
        """It is the answer if what asks comes to nothing."""
        patient, _, flying, resolving, asked = await self.asked(driver, make)
        flying.reply()
        await patient
        asked.fail(OperationFailure("too old", 225))
        assert 1 == (await resolving).inserted_id

    @pytest.mark.parametrize("code", [13, 217, 225])
    async def test_a_refusal_denies_nothing(self, code, driver, make):
        """What is in the air may still be executed."""
        _, gone, flying, resolving, asked = await self.asked(driver, make)
        asked.fail(OperationFailure("no", code))
        (error,) = await all_of([resolving])
        assert [UNKNOWN] * 2 == [outcome_of(error), outcome_of(gone)]
        assert [True, True] == [attempt.sent for attempt in attempts_of(error)]
        flying.reply()

    @pytest.mark.parametrize("sends_again", [False, True])
    async def test_the_command_is_sent_again(self, sends_again, driver, make):
        """Who hears that nothing was written knows nothing of what the others still wait for."""
        queue = make(patience=60)
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        error = OperationFailure("shutting down", 91)
        for label in ("RetryableWriteError", "NoWritesPerformed"):
            error._add_error_label(label)
        flying = (await launched(driver)).prepare()
        driver.lose()
        flying._land(Failed(error, sent=True))
        inserts[1].cancel()
        (gone,) = await all_of(inserts[1:])
        resolving = asyncio.create_task(resolve(gone, 0.5))
        await asyncio.sleep(0.01)
        if sends_again:
            driver.renew()
            again = next(each for each in await both(driver) if len(each.ids) == 2).prepare()
            inserts[0].cancel()
        (error,) = await all_of([resolving])
        assert isinstance(error, DeadlineExceeded)
        assert UNKNOWN is outcome_of(error)
        if not sends_again:
            driver.renew()
            again = (await launched(driver, 2)).prepare()
        again.reply()
        await all_of(inserts[:1])
        count = len(driver.flying)
        assert (1, count) == ((await resolve(error)).inserted_id, len(driver.flying))

    async def test_after_the_answer(self, driver, make):
        """It is kept: nothing is sent, and nobody is told that there is nothing to resolve."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        flying = (await launched(driver)).prepare()
        inserts[1].cancel()
        (gone,) = await all_of([inserts[1]])
        flying.reply()
        await inserts[0]
        assert (APPLIED, ["pooled"]) == (outcome_of(gone), driver.session.ended)
        assert 1 == (await resolve(gone)).inserted_id
        assert 1 == len(driver.flying)

    async def test_a_concern_that_was_not_met(self, driver, make):
        """Each of them may ask once more, so that the session is nobody else's."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        flying = (await launched(driver)).prepare()
        flying.reply(writeConcernError={"code": 64, "errmsg": "slow"})
        errors = await all_of(inserts)
        assert ([UNKNOWN] * 2, ["discarded"]) == ([*map(outcome_of, errors)], driver.session.ended)
        resolving = asyncio.create_task(resolve(errors[1]))
        (await launched(driver, 2)).prepare().reply(n=1)
        assert 1 == (await resolving).inserted_id

    async def test_a_refusal_after_a_sending_that_was_lost(self, driver, make):
        """That one may still be executed: it is in doubt, and the session is nobody else's."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        (await launched(driver)).prepare().fail(AutoReconnect("lost"))
        (await launched(driver, 2)).prepare().reply(n=1, writeErrors=[DUPLICATE])
        good, error = await all_of(inserts)
        assert (0, UNKNOWN) == (good.inserted_id, outcome_of(error))
        assert ["discarded"] == driver.session.ended
        resolving = asyncio.create_task(resolve(error))
        (await launched(driver, 3)).prepare().reply(n=1)
        assert 1 == (await resolving).inserted_id


class TestLateAnswers:
    async def test_that_acknowledge_give_the_session_back(self, driver, make):
        """All have left; the answer ends the question, and is kept for each."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        flying = (await launched(driver)).prepare()
        for each in inserts:
            each.cancel()
        errors = await all_of(inserts)
        flying.reply()
        assert "pooled" == driver.session.ended[-1]
        driver.session.next_number()  # somebody else's
        assert [0, 1] == [(await resolve(error)).inserted_id for error in errors]
        assert 1 == len(driver.flying)

    async def test_when_the_last_one_leaves(self, driver, make):
        """One that comes before all are told of their leaving is kept for each, too."""
        queue = make()
        inserts = [queue.insert({"_id": n}, None) for n in range(2)]
        flying = (await launched(driver)).prepare()
        inserts[0].cancel()
        (first,) = await all_of(inserts[:1])
        inserts[1].cancel()
        flying.reply()
        (last,) = await all_of(inserts[1:])
        await asyncio.sleep(0)
        assert [APPLIED] * 2 == [outcome_of(first), outcome_of(last)]
        assert [0, 1] == [(await resolve(error)).inserted_id for error in (first, last)]
        assert 1 == len(driver.flying)

    async def test_to_what_is_asked_keep_it(self, driver, make):
        """A session over which somebody asks is not given back under it."""
        queue = make()
        insert = queue.insert({"_id": 0}, None)
        flying = (await launched(driver)).prepare()
        insert.cancel()
        (error,) = await all_of([insert])
        resolving = asyncio.create_task(resolve(error))
        asked = (await launched(driver, 2)).prepare()
        flying.reply()
        assert "pooled" not in driver.session.ended
        asked.reply()
        assert 0 == (await resolving).inserted_id
        assert "pooled" not in driver.session.ended


def test_the_part_of_a_reply_that_is_one_insert_s():
    """It is what the server would have answered to that insert alone."""
    reply = {"ok": 1, "n": 5, "writeErrors": [DUPLICATE], "writeConcernError": {"code": 64}}
    assert {**reply, "n": 1, "writeErrors": []} == alone(reply, None)
    own = {**reply, "n": 0, "writeErrors": [{**DUPLICATE, "index": 0}]}
    assert own == alone(reply, DUPLICATE)
