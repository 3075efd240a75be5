import asyncio
import itertools
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from bson import ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from hypothesis import given
from hypothesis import strategies as st
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient
from pymongo.errors import AutoReconnect, DuplicateKeyError, OperationFailure
from pymongo.monitoring import CommandListener
from pymongo.write_concern import WriteConcern

from aioretry import Outcome, RetryClient, outcome_of
from aioretry.pymongo import AsyncRetryClient
from aioretry.testing import Ledger, LedgerError, ReplicaSet, Standalone

MAJORITY = WriteConcern(w="majority", j=True)
APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
CLIENTS = [RetryClient, AsyncRetryClient, AsyncIOMotorClient, AsyncMongoClient]


def recorded(*writes: tuple[object, Outcome]) -> Ledger:
    """A ledger of writes whose outcomes are known."""
    ledger = Ledger()
    for key, outcome in writes:
        ledger.record(key, outcome)
    return ledger


def judge(exc: BaseException) -> Outcome | None:
    """A judge of our own: a ValueError is a refusal."""
    return NOT_APPLIED if isinstance(exc, ValueError) else None


async def returning(value: object = None) -> object:
    """A write that is acknowledged."""
    await asyncio.sleep(0)
    return value


async def raising(exc: BaseException) -> None:
    """A write that fails."""
    await asyncio.sleep(0)
    raise exc


def message_of(ledger: Ledger, found: dict[object, float]) -> str:
    """What a check that must fail says."""
    with pytest.raises(LedgerError) as caught:
        ledger.check(found)
    return re.sub(r"\d\.\d{3} s", "? s", str(caught.value))


def outcomes(ledger: Ledger) -> list[Outcome]:
    """How the writes ended."""
    return [entry.outcome for entry in ledger.entries]


class TestRecording:
    async def test_acknowledged(self):
        """A write that returns is APPLIED, and its result goes through."""
        ledger = Ledger()
        result = object()
        assert result is await ledger.write("a", returning(result))

        [entry] = ledger.entries
        assert (1, "a", APPLIED, None) == (entry.number, entry.key, entry.outcome, entry.error)
        assert entry.duration is not None
        assert 0 <= entry.duration < 1
        assert not entry.running

    async def test_raising(self):
        """What a write raises goes through as it is, and is judged by the callable."""
        ledger = Ledger(judge)
        for error in (ValueError("refused"), KeyError("who knows")):
            with pytest.raises(type(error)) as caught:
                await ledger.write("a", raising(error))
            assert caught.value is error
            assert ledger.entries[-1].error is error
        assert [NOT_APPLIED, UNKNOWN] == outcomes(ledger)

    async def test_other_exceptions_are_unknown(self):
        """By default an exception that no write of aioretry raised leaves the write UNKNOWN."""
        ledger = Ledger()
        with pytest.raises(OperationFailure):
            await ledger.write("a", raising(OperationFailure("not authorized", 13)))
        assert [UNKNOWN] == outcomes(ledger)

    async def test_unacknowledged_result(self):
        """A result that says that it is not acknowledged leaves the write UNKNOWN."""
        ledger = Ledger()

        class Result:
            acknowledged = False

        await ledger.write("a", returning(Result()))
        assert [UNKNOWN] == outcomes(ledger)
        ledger.check({})

    async def test_futures(self):
        """Anything awaitable can be written: a future and a task are."""
        ledger = Ledger()
        future = asyncio.get_running_loop().create_future()
        future.set_result(1)
        assert 1 == await ledger.write("a", future)
        assert 2 == await ledger.write("b", asyncio.create_task(returning(2)))
        assert [APPLIED, APPLIED] == outcomes(ledger)

    async def test_cancelled(self):
        """A cancellation is recorded, and goes through."""
        ledger = Ledger()
        task = asyncio.create_task(ledger.write("a", asyncio.Event().wait()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [entry] = ledger.entries
        assert UNKNOWN is entry.outcome
        assert isinstance(entry.error, asyncio.CancelledError)

    async def test_cancelled_before_its_first_step(self):
        """A write that a driver has begun is recorded even if nobody got to await it."""
        ledger = Ledger()
        begun = asyncio.create_task(returning())
        task = asyncio.create_task(ledger.write("a", begun))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await begun
        assert [UNKNOWN] == outcomes(ledger)
        ledger.check({"a": 1})

    async def test_running(self):
        """A write that is still running may be there or not, and is shown as such."""
        ledger = Ledger()
        task = asyncio.create_task(ledger.write("a", returning()))
        ledger.check({})
        ledger.check({"a": 1})
        assert ledger.entries[0].running
        assert "<Ledger 1 write, 1 unknown (1 still running), 0 unchecked>" == repr(ledger)
        assert "#1 unknown, still running" in message_of(ledger, {"a": 2})
        await task
        assert not ledger.entries[0].running

    async def test_thousands_at_once(self):
        """Each of thousands of concurrent writes keeps its own outcome, in the order of calls."""
        ledger = Ledger(judge)
        writes = [
            ledger.write(n, returning() if n % 2 else raising(ValueError())) for n in range(5000)
        ]
        await asyncio.gather(*reversed(writes), return_exceptions=True)
        assert list(range(5000)) == [entry.key for entry in ledger.entries]
        assert [NOT_APPLIED, APPLIED] * 2500 == outcomes(ledger)
        ledger.check({n: 1 for n in range(5000) if n % 2})

    def test_unhashable_key(self):
        """A key that can't be counted is refused at once."""
        with pytest.raises(TypeError, match="unhashable"):
            recorded(({}, APPLIED))

    def test_repr(self):
        """The ledger shows its counts."""
        ledger = recorded(("a", APPLIED), ("b", NOT_APPLIED), ("c", UNKNOWN), ("d", UNKNOWN))
        shown = "<Ledger 4 writes, 1 applied, 1 not applied, 2 unknown, 4 unchecked>"
        assert shown == repr(ledger)
        assert "<Ledger 0 writes, 0 unchecked>" == repr(Ledger())


class TestMisuse:
    def test_no_outcome(self) -> None:
        """What is no outcome is refused, and not recorded."""
        ledger = Ledger()
        with pytest.raises(TypeError, match="outcome is 'applied': an Outcome"):
            ledger.record("a", "applied")
        assert () == ledger.entries

    def test_nothing_awaitable(self) -> None:
        """What can't be awaited is refused at the call, and not recorded."""
        ledger = Ledger()
        with pytest.raises(TypeError, match="awaitable is 7"):
            ledger.write("a", 7)
        assert () == ledger.entries

    @pytest.mark.parametrize("judgement", ["applied", KeyError("judge")])
    async def test_a_judge_that_fails(self, judgement) -> None:
        """The write is unknown then, and has ended."""

        def judge(_exc: BaseException) -> Outcome:
            if isinstance(judgement, Exception):
                raise judgement
            return judgement

        ledger = Ledger(outcome=judge)
        with pytest.raises((TypeError, KeyError)):
            await ledger.write("a", raising(ValueError()))
        [entry] = ledger.entries
        assert (Outcome.UNKNOWN, False) == (entry.outcome, entry.running)


class TestUnchecked:
    def test_until_checked(self):
        """Writes are unchecked until a check, and those that come later again."""
        ledger = recorded(("a", APPLIED))
        assert ledger.entries == ledger.unchecked
        ledger.check({"a": 1})
        assert () == ledger.unchecked
        ledger.record("b", APPLIED)
        assert ["b"] == [entry.key for entry in ledger.unchecked]

    def test_failed_check(self):
        """A check that fails has checked too."""
        ledger = recorded(("a", APPLIED))
        message_of(ledger, {})
        assert () == ledger.unchecked

    @pytest.mark.parametrize(
        ("write", "unchecked"),
        [(returning(), 1), (raising(ValueError()), 1), (raising(KeyError()), 0)],
        ids=["applied", "not applied", "unknown"],
    )
    async def test_running_while_checked(self, write, unchecked):
        """A write that was checked as running is unchecked once more is known of it."""
        ledger = Ledger(judge)
        task = asyncio.create_task(ledger.write("a", write))
        ledger.check({})
        assert () == ledger.unchecked
        await asyncio.gather(task, return_exceptions=True)
        assert unchecked == len(ledger.unchecked)


class TestCheck:
    def test_agreement(self):
        """Each APPLIED once, NOT_APPLIED never, and UNKNOWN once or never is as it must be."""
        ledger = recorded(("a", APPLIED), ("b", NOT_APPLIED), ("c", UNKNOWN), ("d", UNKNOWN))
        report = ledger.check({"a": 1, "c": 1})
        assert report.ok
        assert "4 writes, 1 applied, 1 not applied, 2 unknown" == str(report)

    async def test_lost(self):
        """An acknowledged write that is not there is named."""
        ledger = recorded(("here", APPLIED))
        await ledger.write("gone", returning())
        assert message_of(ledger, {"here": 1}) == (
            "the database is not as the ledger says\n"
            "2 writes, 2 applied\n"
            "lost, acknowledged and yet not there (keys: 1):\n"
            "  'gone': expected 1, found 0: #2 applied after ? s"
        )

    async def test_doubled(self):
        """A write that is there twice is named, with what it raised."""
        ledger = recorded(("a", APPLIED))
        with pytest.raises(AutoReconnect):
            await ledger.write("b", raising(AutoReconnect("secret")))
        assert message_of(ledger, {"a": 2, "b": 2}) == (
            "the database is not as the ledger says\n"
            "2 writes, 1 applied, 1 unknown\n"
            "doubled, there more often than it can be (keys: 2):\n"
            "  'a': expected 1, found 2: #1 applied\n"
            "  'b': expected 0 to 1, found 2: #2 unknown after ? s, AutoReconnect"
        )

    async def test_misreported(self):
        """A write that is there in spite of NOT_APPLIED is named."""
        ledger = Ledger(judge)
        with pytest.raises(ValueError, match="secret"):
            await ledger.write("a", raising(ValueError("secret")))
        assert message_of(ledger, {"a": 1}) == (
            "the database is not as the ledger says\n"
            "1 write, 1 not applied\n"
            "misreported, NOT_APPLIED and yet there (keys: 1):\n"
            "  'a': expected 0, found 1: #1 not applied after ? s, ValueError"
        )

    def test_shared_key(self):
        """Writes of one key are counted together, each UNKNOWN widening the range by one."""
        ledger = recorded(*[("n", APPLIED)] * 3, *[("n", UNKNOWN)] * 2)
        for found in (3, 4, 5, 5.0):
            assert ledger.check({"n": found}).ok
        assert "'n': expected 3 to 5, found 2: #1 applied; #2 applied; #3" in message_of(
            ledger, {"n": 2}
        )
        assert "'n': expected 3 to 5, found 6: #4 unknown; #5 unknown; #1" in message_of(
            ledger, {"n": 6}
        )
        ledger.record("n", NOT_APPLIED)
        message = message_of(ledger, {"n": 6})
        assert "misreported" in message
        assert "doubled" not in message
        assert "'n': expected 3 to 5, found 6: #6 not applied" in message

    def test_unrecorded(self):
        """What no write was recorded for is no error, and is listed."""
        ledger = recorded(("a", APPLIED))
        report = ledger.check({"a": 1, "seed": 2, "none": 0})
        assert {"seed": 2} == report.unrecorded
        assert "1 write, 1 applied\nthere, and not recorded (keys: 1):\n  'seed': found 2" == str(
            report
        )

    def test_not_durable(self):
        """Below w: majority and j: true, acknowledged writes may be missing, and nothing else."""
        ledger = recorded(("a", APPLIED), ("b", APPLIED))
        report = ledger.check({"b": 1}, durable=False)
        assert ["a"] == [count.key for count in report.may_be_rolled_back]
        assert str(report) == (
            "2 writes, 2 applied\n"
            "below w: majority and j: true, an acknowledged write may be rolled back\n"
            "may be rolled back, acknowledged and not there (keys: 1):\n"
            "  'a': expected 1, found 0: #1 applied"
        )
        ledger.record("c", NOT_APPLIED)
        for wrong in ({"a": 2}, {"c": 1}):
            with pytest.raises(LedgerError, match="expected"):
                ledger.check(wrong, durable=False)

    def test_long_lists_are_cut(self):
        """A message names twenty keys and five writes of each, and counts the rest."""
        ledger = recorded(*[("n", APPLIED)] * 7, *[(n, APPLIED) for n in range(29)])
        lines = message_of(ledger, {f"s{n}": 1 for n in range(25)}).splitlines()
        assert "lost, acknowledged and yet not there (keys: 30):" == lines[2]
        assert lines[3].endswith("#5 applied; and 2 more writes")
        assert "  18: expected 1, found 0: #26 applied" == lines[22]
        assert "  and 10 more keys" == lines[23]
        assert "there, and not recorded (keys: 25):" == lines[24]
        assert "  and 5 more keys" == lines[45]
        assert 46 == len(lines)

    def test_long_keys_are_cut(self):
        """A long key is shown in part."""
        message = message_of(recorded(("k" * 1000, APPLIED)), {})
        assert f"  '{'k' * 99}...: expected" in message

    def test_report_of_the_error(self):
        """The error carries the report, and is an assertion."""
        with pytest.raises(AssertionError) as caught:
            recorded(("a", APPLIED)).check({})
        assert isinstance(caught.value, LedgerError)
        assert ["a"] == [count.key for count in caught.value.report.lost]

    @given(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(Outcome)), max_size=6),
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)),
        st.booleans(),
    )
    def test_as_brute_force_says(self, writes, found, durable):
        """A check passes exactly if some fate of each write explains what was found."""
        may = {APPLIED: (1,) if durable else (0, 1), NOT_APPLIED: (0,), UNKNOWN: (0, 1)}
        keys = {key for key, _ in writes}
        seen = Counter({key: n for key, n in found.items() if key in keys and n})
        explained = any(
            Counter(key for (key, _), n in zip(writes, choice, strict=True) if n) == seen
            for choice in itertools.product(*(may[outcome] for _, outcome in writes))
        )
        ledger = recorded(*writes)
        if explained:
            report = ledger.check(found, durable=durable)
            assert durable <= (not report.may_be_rolled_back)
            assert {k: n for k, n in found.items() if n and k not in keys} == report.unrecorded
        else:
            with pytest.raises(LedgerError) as caught:
                ledger.check(found, durable=durable)
            report = caught.value.report
            named = [count.key for count in (*report.lost, *report.doubled, *report.misreported)]
            assert named
            assert len(named) == len(set(named))
            assert all(f"  {key!r}: expected" in str(caught.value) for key in named)


@pytest.fixture
def name() -> str:
    """The name of a collection of the test's own."""
    return f"c{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def ours(servers: ReplicaSet, name: str, client_class) -> AsyncIterator:
    """The collection through aioretry."""
    async with client_class(servers.uri) as client:
        yield client.ledger.get_collection(name, write_concern=MAJORITY)


@pytest.fixture
async def plain(servers: ReplicaSet, name: str) -> AsyncIterator:
    """The collection through Motor, which does not retry."""
    client = AsyncIOMotorClient(servers.uri, retryWrites=False)
    yield client.ledger.get_collection(name, write_concern=MAJORITY)
    client.close()


class TestCollections:
    @pytest.mark.parametrize("make", CLIENTS)
    async def test_agreement(self, servers: ReplicaSet, name: str, make):
        """Marks as _id, marks in arrays and counters are counted through all drivers."""
        client = make(servers.uri, w="majority", journal=True)
        things = client.ledger[name]
        marks, pushes, counters = Ledger(), Ledger(), Ledger()
        for n in range(5):
            await marks.write(n, things.insert_one({"_id": n}))
            await pushes.write(
                f"m{n}", things.update_one({"_id": n % 2}, {"$push": {"in.marks": f"m{n}"}})
            )
            await counters.write(n % 3, things.update_one({"_id": n % 3}, {"$inc": {"n": 1}}))

        reports = [
            await marks.check_marks(things),
            await pushes.check_marks(things, "in.marks"),
            await counters.check_counters(things, "n"),
        ]

        assert [True] * 3 == [report.durable for report in reports]
        assert [{}] * 3 == [report.unrecorded for report in reports]
        await things.update_one({"_id": 0}, {"$push": {"in.marks": "m1"}, "$inc": {"n": 1}})
        with pytest.raises(LedgerError, match="'m1': expected 1, found 2"):
            await pushes.check_marks(things, "in.marks")
        with pytest.raises(LedgerError, match="0: expected 2, found 3"):
            await counters.check_counters(things, "n")
        closing = client.close()
        if closing is not None:
            await closing

    async def test_blind_retry_is_caught(self, servers: ReplicaSet, plain):
        """A write that is repeated after its reply was lost is there twice, and is named."""
        marks, counter = Ledger(), Ledger()

        async def blindly(update: dict[str, object]) -> None:
            try:
                await plain.update_one({"_id": "x"}, update, upsert=True)
            except AutoReconnect:
                await plain.update_one({"_id": "x"}, update, upsert=True)

        await marks.write("first", blindly({"$push": {"marks": "first"}}))
        await counter.write("x", blindly({"$inc": {"n": 1}}))
        with servers.faults.drop_reply("update", times=1):
            await marks.write("second", blindly({"$push": {"marks": "second"}}))
        with servers.faults.drop_reply("update", times=1):
            await counter.write("x", blindly({"$inc": {"n": 1}}))

        with pytest.raises(LedgerError, match=r"doubled.*\n  'second': expected 1, found 2: #2 "):
            await marks.check_marks(plain, "marks")
        with pytest.raises(LedgerError, match=r"doubled.*\n  'x': expected 2, found 3: "):
            await counter.check_counters(plain, "n")

    async def test_lost_messages_are_unknown(self, servers: ReplicaSet, plain):
        """A lost request and a lost reply are both UNKNOWN, and both fine."""
        ledger = Ledger()
        with servers.faults.drop_request("insert"), pytest.raises(AutoReconnect):
            await ledger.write("request", plain.insert_one({"_id": "request"}))
        with servers.faults.drop_reply("insert"), pytest.raises(AutoReconnect):
            await ledger.write("reply", plain.insert_one({"_id": "reply"}))
        report = await ledger.check_marks(plain)
        assert [UNKNOWN, UNKNOWN] == outcomes(ledger)
        assert "2 writes, 2 unknown" == str(report)

    async def test_retries_are_exact(self, servers: ReplicaSet, ours):
        """What aioretry retries is there once; what it can't get through is UNKNOWN."""
        ledger = Ledger()
        with servers.faults.drop_reply("insert"):
            await ledger.write("once", ours.insert_one({"_id": "once"}))
        with servers.faults.drop_reply("insert", times=2), pytest.raises(AutoReconnect):
            await ledger.write("twice", ours.insert_one({"_id": "twice"}))
        with servers.faults.drop_request("insert", times=2), pytest.raises(AutoReconnect):
            await ledger.write("never", ours.insert_one({"_id": "never"}))
        await ledger.check_marks(ours)
        assert [APPLIED, UNKNOWN, UNKNOWN] == outcomes(ledger)

    async def test_refused(self, ours):
        """A refusal that aioretry knows of is NOT_APPLIED, and caught if it is not true."""
        ledger = Ledger()
        await ledger.write("a", ours.insert_one({"_id": "a"}))
        with pytest.raises(DuplicateKeyError):
            await ledger.write("a", ours.insert_one({"_id": "a"}))
        await ledger.check_marks(ours)
        assert [APPLIED, NOT_APPLIED] == outcomes(ledger)

        await ours.insert_one({"_id": "b"})
        ledger.record("b", NOT_APPLIED)
        with pytest.raises(LedgerError, match=r"misreported.*\n  'b': expected 0, found 1: #3 not"):
            await ledger.check_marks(ours)

    async def test_lost(self, ours):
        """An acknowledged write that is gone is named."""
        ledger = Ledger()
        for key in "ab":
            await ledger.write(key, ours.insert_one({"_id": key}))
        await ours.delete_one({"_id": "a"})
        with pytest.raises(LedgerError, match=r"lost.*\n  'a': expected 1, found 0: #1 applied"):
            await ledger.check_marks(ours)

    async def test_cancelled(self, servers: ReplicaSet, ours):
        """A write that is cancelled is judged by aioretry, through the driver's own task."""
        ledger = Ledger()
        task = asyncio.create_task(ledger.write("a", ours.insert_one({"_id": "a"})))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert [outcome_of(caught.value)] == outcomes(ledger)
        await ledger.check_marks(ours)

    @pytest.mark.parametrize(
        "concern",
        [
            WriteConcern(),
            WriteConcern(w=1),
            WriteConcern(w="majority"),
            WriteConcern(w="majority", j=False),
            WriteConcern(w=2, j=True),
        ],
        ids=lambda concern: str(concern.document),
    )
    async def test_weaker_concerns(self, ours, concern: WriteConcern):
        """Below w: majority and j: true the report says what may be rolled back."""
        ledger = Ledger()
        weak = ours.with_options(write_concern=concern)
        await ledger.write("a", weak.insert_one({"_id": "a"}))
        await weak.delete_one({"_id": "a"})
        for report in (await ledger.check_marks(weak), await ledger.check_counters(weak, "n")):
            assert not report.durable
            assert "may be rolled back, acknowledged and not there (keys: 1):\n  'a'" in str(report)
        with pytest.raises(LedgerError, match="lost"):
            await ledger.check_marks(weak, durable=True)
        with pytest.raises(LedgerError, match="lost"):
            await ledger.check_counters(weak, "n", durable=True)

    async def test_unacknowledged(self, ours):
        """A write at w: 0 is UNKNOWN."""
        ledger = Ledger()
        unsure = ours.with_options(write_concern=WriteConcern(w=0))
        await ledger.write("a", unsure.insert_one({"_id": "a"}))
        assert [UNKNOWN] == outcomes(ledger)

    async def test_kinds_of_keys(self, ours):
        """Numbers, ids and pairs in arrays are found again, and other marks are passed over."""
        options = CodecOptions(uuid_representation=UuidRepresentation.STANDARD)
        things = ours.with_options(codec_options=options)
        ledger = Ledger()
        for key in (7, ObjectId(), uuid.uuid4(), "text", ("writer", 1), ("writer", ("nested", 2))):
            await ledger.write(
                key, things.update_one({"_id": 0}, {"$push": {"m": key}}, upsert=True)
            )
        await things.update_one({"_id": 0}, {"$push": {"m": {"a": 1}}})
        await things.insert_many([{"m": {"a": 1}}, {"m": "other"}, {}])
        report = await ledger.check_marks(things, "m")
        assert {} == report.unrecorded

    async def test_collation(self, ours):
        """Keys are told apart even in a collection that does not."""
        await ours.database.create_collection(ours.name, collation={"locale": "en", "strength": 1})
        ledger = Ledger()
        for key in ("a", "A"):
            await ledger.write(key, ours.insert_one({"m": key}))
        assert {} == (await ledger.check_marks(ours, "m")).unrecorded

    async def test_many_keys(self, ours):
        """More keys than one read asks for are all counted."""
        ledger = recorded(*[(n, APPLIED) for n in range(4500)])
        await ours.insert_many([{"_id": n, "n": 1} for n in range(4500)])
        await ledger.check_marks(ours)
        await ledger.check_counters(ours, "n")
        await ours.delete_one({"_id": 4444})
        with pytest.raises(LedgerError, match=r"\(keys: 1\):\n  4444: expected 1, found 0"):
            await ledger.check_marks(ours)

    async def test_what_is_no_number_counts_nothing(self, ours):
        """A counter that is missing or holds a text is 0."""
        ledger = recorded(("missing", APPLIED), ("text", APPLIED))
        await ours.insert_many([{"_id": "missing"}, {"_id": "text", "n": "1"}])
        with pytest.raises(LedgerError, match=r"lost.*\(keys: 2\)"):
            await ledger.check_counters(ours, "n")

    async def test_writes_during_a_check(self, ours):
        """What begins while a check reads may be seen or not, and stays unchecked."""
        ledger = Ledger()
        await ledger.write("n", ours.update_one({"_id": "n"}, {"$inc": {"n": 1}}, upsert=True))
        for _ in range(5):
            check = asyncio.create_task(ledger.check_counters(ours, "n"))
            await asyncio.sleep(0)
            await ledger.write("n", ours.update_one({"_id": "n"}, {"$inc": {"n": 1}}))
            await check
            assert [ledger.entries[-1]] == list(ledger.unchecked)
        await ledger.check_counters(ours, "n")

    async def test_how_it_reads(self, servers: ReplicaSet, name: str, client_class):
        """It asks the primary, for no more than the recorded keys, and not for ever."""
        seen = []

        class Listener(CommandListener):
            def started(self, event):
                if event.command_name == "aggregate":
                    seen.append(event.command)

            def succeeded(self, event):
                pass

            def failed(self, event):
                pass

        uri = f"{servers.uri}&readPreference=secondary&readConcernLevel=local"
        async with client_class(uri, event_listeners=[Listener()]) as client:
            ledger = recorded(("a", UNKNOWN))
            await ledger.check_marks(client.ledger[name])
        [command] = seen
        assert "linearizable" == command["readConcern"]["level"]
        assert "$readPreference" not in command or "primary" == command["$readPreference"]["mode"]
        assert 30_000 == command["maxTimeMS"]
        assert {"$match": {"_id": {"$in": ["a"]}}} == command["pipeline"][0]

    async def test_other_errors_go_through(self, ours):
        """A check that can't read says so, and has checked nothing."""
        ledger = recorded((1, APPLIED))
        with pytest.raises(OperationFailure):
            await ledger.check_marks(ours, "$no")
        assert ledger.entries == ledger.unchecked

    async def test_standalone(self, client_class):
        """A server that is no member of a set can be checked too."""
        ledger = Ledger()
        async with Standalone() as server, client_class(server.uri) as client:
            things = client.ledger.get_collection("c", write_concern=MAJORITY)
            await ledger.write("a", things.insert_one({"_id": "a"}))
            await ledger.check_marks(things)
            await things.delete_one({"_id": "a"})
            with pytest.raises(LedgerError, match="lost"):
                await ledger.check_marks(things)
