"""What hooks are told of the writes of a real replica set, and what they are not."""

import asyncio
import contextvars
import gc
import weakref

import pytest
from pymongo import InsertOne, UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure
from pymongo.write_concern import WriteConcern

from aioretry import (
    AttemptBegan,
    AttemptEnded,
    DeadlineExceeded,
    OperationBegan,
    OperationEnded,
    Outcome,
    RetryScheduled,
    deadline,
    every_event,
    resolve,
)
from aioretry.idempotent import Keys
from aioretry.testing import FakeMongoses

SET = {"$set": {"n": 1}}
WRITES = {
    "insert_one": lambda c: c.insert_one({}),
    "update_one": lambda c: c.update_one({}, SET),
    "replace_one": lambda c: c.replace_one({}, {"n": 1}),
    "delete_one": lambda c: c.delete_one({}),
    "insert_many": lambda c: c.insert_many([{}, {}]),
    "bulk_write": lambda c: c.bulk_write([UpdateOne({}, SET), UpdateMany({}, SET)]),
    "update_many": lambda c: c.update_many({}, SET),
    "delete_many": lambda c: c.delete_many({}),
    "find_one_and_delete": lambda c: c.find_one_and_delete({}),
    "find_one_and_replace": lambda c: c.find_one_and_replace({}, {"n": 1}),
    "find_one_and_update": lambda c: c.find_one_and_update({}, SET),
}
CALLER = contextvars.ContextVar("CALLER", default="nobody")


def kinds(events):
    """The classes of events."""
    return [type(event).__name__ for event in events]


def require_whole(events):
    """Each operation begins once, ends once and last, and its attempts are counted.

    The stories are without the beginnings of attempts.
    """
    stories = {}
    begun = [id(event.attempt_notes) for event in events if isinstance(event, AttemptBegan)]
    for event in events:
        if isinstance(event, AttemptEnded) and event.sent:
            assert id(event.attempt_notes) in begun
        if not isinstance(event, AttemptBegan):
            stories.setdefault(id(event.notes), []).append(event)
    for story in stories.values():
        assert isinstance(story[0], OperationBegan)
        assert isinstance(story[-1], OperationEnded)
        middle = story[1:-1]
        assert all(isinstance(event, AttemptEnded | RetryScheduled) for event in middle)
        assert story[-1].attempts == len([e for e in middle if isinstance(e, AttemptEnded)])
        assert 1 == len({(event.operation, event.namespace) for event in story})
    return list(stories.values())


class TestEveryWrite:
    @pytest.mark.parametrize("name", WRITES)
    async def test_of_a_collection(self, name, watched, events):
        """A write begins, is attempted and ends, in this order."""
        await WRITES[name](watched)
        [[began, *attempts, ended]] = require_whole(events)
        assert (name, watched.full_name) == (began.operation, began.namespace)
        assert attempts
        assert all(attempt.error_class is None for attempt in attempts)
        assert all(attempt.address is not None and attempt.sent for attempt in attempts)
        assert (Outcome.APPLIED, None) == (ended.outcome, ended.error_class)
        assert ended.duration >= attempts[-1].duration

    @pytest.mark.parametrize("name", WRITES)
    async def test_of_an_operation(self, name, watched, events):
        """So does one of an operation() block."""
        async with watched.operation() as op:
            await WRITES[name](op)
        [[began, *attempts, ended]] = require_whole(events)
        assert (name, Outcome.APPLIED) == (began.operation, ended.outcome)
        assert attempts

    async def test_several_of_one_operation(self, watched, events):
        """Each write of a block is told by itself."""
        async with watched.operation() as op:
            await op.insert_one({"_id": 1})
            await op.update_one({"_id": 1}, SET)
        stories = require_whole(events)
        assert ["insert_one", "update_one"] == [story[0].operation for story in stories]

    async def test_with_a_key(self, watched, events):
        """A write with a key is told, and so is its repetition."""
        async with Keys(b"sixteen bytes or so, and more", "tests") as keys:
            for _ in range(2):
                async with watched.operation(timeout=60, key=keys("k")) as op:
                    await op.insert_one({"n": 1})
        stories = [s for s in require_whole(events) if s[0].namespace == watched.full_name]
        assert ["insert_one"] * 2 == [story[0].operation for story in stories]
        assert {Outcome.APPLIED} == {story[-1].outcome for story in stories}

    async def test_coalesced(self, watched, events):
        """Each insert that travels with others is told, with the attempts that carried it."""
        view = watched.coalesced()
        await asyncio.gather(*(view.insert_one({"_id": n}) for n in range(5)))
        stories = require_whole(events)
        assert 5 == len(stories)
        for began, attempt, ended in stories:
            assert "insert_one" == began.operation
            assert (1, True) == (attempt.attempt, attempt.sent)
            assert (Outcome.APPLIED, 1) == (ended.outcome, ended.attempts)

    async def test_coalesced_duplicates(self, watched, events):
        """One that is refused ends with its own error."""
        view = watched.coalesced()
        ids = [1, 2, 2, 3]
        await asyncio.gather(*(view.insert_one({"_id": n}) for n in ids), return_exceptions=True)
        ends = [story[-1] for story in require_whole(events)]
        assert [None, None, 11000, None] == [end.error_code for end in ends]
        assert Outcome.NOT_APPLIED is ends[2].outcome

    async def test_resolving(self, replica_set, watched, events):
        """Resolving is an operation of its own."""
        with replica_set.faults.drop_reply("insert", times=2, namespace=watched.full_name):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                await watched.insert_one({"_id": 1})
        await resolve(caught.value)
        first, second = require_whole(events)
        assert (Outcome.UNKNOWN, 2, "AutoReconnect") == (
            first[-1].outcome,
            first[-1].attempts,
            first[-1].error_class,
        )
        assert ("resolve", Outcome.APPLIED) == (second[0].operation, second[-1].outcome)
        assert 3 == second[1].attempt  # of the same command

    async def test_motors_own_are_not_told(self, watched, events):
        """What is left to Motor has no events."""
        await watched.with_options(write_concern=WriteConcern(w=0)).insert_one({})
        await watched.find({}).to_list(None)
        assert [] == events

    @pytest.mark.parametrize(
        "read",
        [
            lambda c: c.find_one({}),
            lambda c: c.count_documents({}),
            lambda c: c.estimated_document_count(),
            lambda c: c.distinct("n"),
        ],
    )
    async def test_a_read_is_told(self, watched, events, read):
        """As a write is; one that fails has applied nothing."""
        await read(watched)
        [story] = require_whole(events)
        assert ["OperationBegan", "AttemptEnded", "OperationEnded"] == kinds(story)
        assert Outcome.APPLIED is story[-1].outcome

    async def test_a_read_that_fails(self, watched, events):
        with pytest.raises(OperationFailure):
            await watched.find_one({"$n": 1})
        [story] = require_whole(events)
        assert Outcome.NOT_APPLIED is story[-1].outcome


class TestFailures:
    async def test_a_lost_reply(self, replica_set, watched, events):
        """The attempt that failed, the retry and the attempt that went well."""
        with replica_set.faults.drop_reply("update", namespace=watched.full_name):
            await watched.update_one({"_id": 1}, SET, upsert=True)
        [story] = require_whole(events)
        names = ["OperationBegan", "AttemptEnded", "RetryScheduled", "AttemptEnded"]
        assert [*names, "OperationEnded"] == kinds(story)
        _, first, retry, second, ended = story
        assert ("AutoReconnect", None) == (first.error_class, second.error_class)
        assert (1, 1, 2, 2) == (first.attempt, retry.attempt, second.attempt, ended.attempts)
        assert ended.server_wait >= second.server_wait

    async def test_a_refused_write(self, watched, events):
        """An error of the server is told by its class and code."""
        await watched.insert_one({"_id": 1})
        events.clear()
        with pytest.raises(DuplicateKeyError):
            await watched.insert_one({"_id": 1})
        [[_, attempt, ended]] = require_whole(events)
        told = ("DuplicateKeyError", 11000)
        assert told == (attempt.error_class, attempt.error_code)
        assert (*told, Outcome.NOT_APPLIED) == (
            ended.error_class,
            ended.error_code,
            ended.outcome,
        )

    async def test_a_bulk_operation_that_differs(self, watched, events):
        """Its end says how many statements ended in which way."""
        with pytest.raises(BulkWriteError):
            await watched.bulk_write([InsertOne({"_id": 1}), InsertOne({"_id": 1}), InsertOne({})])
        [story] = require_whole(events)
        assert {Outcome.APPLIED: 1, Outcome.NOT_APPLIED: 2} == story[-1].statements
        assert ("BulkWriteError", 11000) == (story[-1].error_class, story[-1].error_code)

    async def test_a_bulk_operation_with_several_errors(self, watched, events):
        """Where their codes differ there is no one code."""
        await watched.insert_one({"_id": 1, "n": "text"})
        events.clear()
        writes = [InsertOne({"_id": 1}), UpdateOne({"_id": 1}, {"$inc": {"n": 1}})]
        with pytest.raises(BulkWriteError) as caught:
            await watched.bulk_write(writes, ordered=False)
        assert 2 == len({error["code"] for error in caught.value.details["writeErrors"]})
        [story] = require_whole(events)
        assert ("BulkWriteError", None) == (story[-1].error_class, story[-1].error_code)

    async def test_bad_arguments(self, watched, events):
        """A write that is refused before it is sent has begun and ended."""
        with pytest.raises(ValueError, match="update"):
            await watched.update_one({}, {"n": 1})
        [[_, ended]] = require_whole(events)
        assert (Outcome.NOT_APPLIED, "ValueError") == (ended.outcome, ended.error_class)

    @pytest.mark.parametrize("name", ["insert_one", "insert_many", "coalesced"])
    async def test_arguments_that_stop_it(self, name, watched, events):
        """So has one whose arguments raise what is no Exception."""

        class Stopping(dict):
            def __contains__(self, key):
                raise GeneratorExit

            setdefault = __contains__

        calls = {
            "insert_one": watched.insert_one,
            "insert_many": lambda document: watched.insert_many([document]),
            "coalesced": watched.coalesced().insert_one,
        }
        with pytest.raises(GeneratorExit):
            await calls[name](Stopping())
        [[_, ended]] = require_whole(events)
        assert (Outcome.NOT_APPLIED, "GeneratorExit") == (ended.outcome, ended.error_class)

    @pytest.mark.parametrize("name", ["update_one", "insert_many"])
    async def test_cancelled(self, name, replica_set, watched, events):
        """A write that is cancelled ends, with the attempt that was given up before it."""
        with replica_set.faults.hang("update", "insert", namespace=watched.full_name) as fault:
            write = WRITES[name](watched)
            await fault.wait_until_fired(timeout=60)
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
        [[_, attempt, ended]] = require_whole(events)
        assert (True, "CancelledError") == (attempt.sent, attempt.error_class)
        assert (Outcome.UNKNOWN, "CancelledError") == (ended.outcome, ended.error_class)

    async def test_cancelled_in_a_queue(self, replica_set, watched, events):
        """So does an insert that waits to travel with others."""
        view = watched.coalesced()
        await view.insert_one({})
        events.clear()
        with replica_set.faults.hang("insert", namespace=watched.full_name) as fault:
            first = view.insert_one({})
            await fault.wait_until_fired(timeout=60)
            second = view.insert_one({})
            second.cancel()
            first.cancel()
            ended = await asyncio.gather(first, second, return_exceptions=True)
        assert [asyncio.CancelledError] * 2 == [type(each) for each in ended]
        stories = require_whole(events)
        assert [Outcome.UNKNOWN, Outcome.NOT_APPLIED] == [s[-1].outcome for s in stories]
        assert [1, 0] == [s[-1].attempts for s in stories]

    async def test_no_server(self, free_port, events, client_class):
        """A write that finds no server tells how long it has waited."""
        hook = every_event(events.append)
        async with client_class("127.0.0.1", free_port, hooks=[hook]) as client:
            async with deadline(0.2):
                with pytest.raises(DeadlineExceeded):
                    await client.db.c.insert_one({})
        [[_, ended]] = require_whole(events)
        assert (Outcome.NOT_APPLIED, 0) == (ended.outcome, ended.attempts)
        assert 0 < ended.server_wait <= ended.duration

    async def test_by_a_router(self, replica_set, collection, events, client_class):
        """The address is that of the router that was asked."""
        hook = every_event(events.append)
        async with (
            FakeMongoses(replica_set) as cluster,
            client_class(cluster.uri, hooks=[hook]) as client,
        ):
            await client.admin.command("ping")  # the driver begins to look
            async with asyncio.timeout(30):
                while len(client._driver.view().writable) < 2:
                    await asyncio.sleep(0.01)
            with cluster.faults.drop_reply("insert"):
                await client[collection.database.name][collection.name].insert_one({})
        [[_, first, _, second, _]] = require_whole(events)
        assert first.address != second.address


class TestHooks:
    async def test_the_beginning_is_told_in_the_callers_context(
        self, replica_set, collection, client_class
    ):
        """Whatever the caller has set is seen there, for each of many callers."""
        seen = []

        def note(event):
            if isinstance(event, OperationBegan):
                seen.append(CALLER.get())

        async def call(me, view):
            CALLER.set(me)
            await view.insert_one({})

        async with client_class(replica_set.uri, hooks=[every_event(note)]) as client:
            mine = client[collection.database.name][collection.name]
            views = [mine, mine.coalesced()]
            await asyncio.gather(*(call(n, views[n % 2]) for n in range(20)))
        assert list(range(20)) == sorted(seen)

    async def test_a_failing_hook_fails_no_write(
        self, replica_set, collection, events, caplog, client_class
    ):
        """What a hook raises at any event is logged; the write and the other hooks go on."""

        def bad(event):
            raise asyncio.CancelledError if isinstance(event, AttemptEnded) else ZeroDivisionError

        hooks = [every_event(bad), every_event(events.append)]
        async with client_class(replica_set.uri, hooks=hooks) as client:
            mine = client[collection.database.name][collection.name]
            with replica_set.faults.drop_reply("insert", namespace=mine.full_name):
                await mine.insert_one({"_id": 1})
            await mine.coalesced().insert_one({"_id": 2})
            await mine.insert_many([{"_id": 3}])
        assert 3 == len(require_whole(events))
        failures = [r for r in caplog.records if "a hook failed" in r.getMessage()]
        assert len(events) == len(failures)
        assert 3 == await collection.count_documents({})

    async def test_a_hook_may_cancel_the_write(self, replica_set, collection, events, client_class):
        """It ends once, as any that is cancelled."""
        writes = []

        def cancel(event):
            if isinstance(event, AttemptEnded):
                writes[-1].cancel()

        hooks = [every_event(cancel), every_event(events.append)]
        async with client_class(replica_set.uri, hooks=hooks) as client:
            mine = client[collection.database.name][collection.name]
            writes.append(mine.insert_one({}))
            with pytest.raises(asyncio.CancelledError):
                await writes[0]
        [story] = require_whole(events)
        assert "CancelledError" == story[-1].error_class

    async def test_a_plain_callable_is_told_of_retries_only(
        self, replica_set, collection, events, client_class
    ):
        """As it always was; beside one that wants more, too."""
        retries = []
        hooks = [retries.append, every_event(events.append)]
        async with client_class(replica_set.uri, hooks=hooks) as client:
            mine = client[collection.database.name][collection.name]
            with replica_set.faults.drop_reply("insert", namespace=mine.full_name):
                await mine.insert_one({})
        assert ["RetryScheduled"] == kinds(retries)
        assert 7 == len(events)

    async def test_notes_end_with_the_operation(self, replica_set, collection, client_class):
        """What a hook keeps about an operation lives no longer than that."""

        class Kept:
            """Something of a hook's."""

        kept = []

        def keep(event):
            if isinstance(event, OperationBegan):
                thing = event.notes["me"] = Kept()
                kept.append(weakref.ref(thing))

        async with client_class(replica_set.uri, hooks=[every_event(keep)]) as client:
            mine = client[collection.database.name][collection.name]
            await mine.insert_one({})
            await mine.insert_many([{}])
            await mine.coalesced().insert_one({})
            await mine.insert_one({})  # the latest may be known to a connection
            gc.collect()
            assert [None] * 3 == [reference() for reference in kept[:3]]

    async def test_events_hold_no_documents(self, replica_set, watched, events):
        """Nothing of what is written or looked for is in any event."""
        with replica_set.faults.drop_reply("update", namespace=watched.full_name):
            await watched.update_one({"_id": "hush"}, {"$set": {"n": "hush"}}, upsert=True)
        with pytest.raises(DuplicateKeyError):
            await watched.insert_one({"_id": "hush"})
        assert "hush" not in repr(events)
