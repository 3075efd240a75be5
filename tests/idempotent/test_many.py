"""Updating and deleting many: each answer lost, each process killed, and what is refused."""

import asyncio

import pytest
from pymongo import DESCENDING
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    DuplicateKeyError,
    OperationFailure,
)
from pymongo.write_concern import WriteConcern

from aioretry import DeadlineExceeded, Outcome, outcome_of
from aioretry.idempotent import NotIdempotentError, delete_many, update_many
from tests.idempotent.drivers import collection_of
from tests.idempotent.points import APP_NAME, at_each_kill, at_each_lost_reply
from tests.idempotent.updates import NOT_REPEATABLE, REPEATABLE, UPSERTS

TIMEOUT = 30.0
NUMBER = 30


def put(seen, run, **fields):
    """Documents of one run, every third of which is old."""
    seen.insert_many(
        {"run": run, "key": key, "state": "new" if key % 3 else "old", "n": key, **fields}
        for key in range(NUMBER)
    )


def states(seen, run):
    """What became of them."""
    found = seen.find({"run": run}, sort=[("key", 1)])
    return [(document["key"], document["state"], document["n"]) for document in found]


UPDATED = [(key, "done", max(key, 5)) for key in range(NUMBER)]
LEFT = [(key, "new", key) for key in range(NUMBER) if key % 3]


class TestCutOff:
    async def test_each_reply_of_an_update_lost(self, servers, things, seen):
        """Whichever answer is lost, all documents are updated."""

        async def run(number):
            put(seen, number)
            update = {"$set": {"state": "done"}, "$max": {"n": 5}}
            result = await update_many(things, {"run": number}, update, timeout=TIMEOUT)
            assert UPDATED == states(seen, number)
            assert result.acknowledged
            assert NUMBER == result.matched_count
            if not result.was_repeated:
                assert NUMBER == result.modified_count

        assert 1 == await at_each_lost_reply(servers, run)

    async def test_each_reply_of_a_marked_update_lost(self, servers, things, seen):
        """Beside a mark even counters are added to once."""

        async def run(number):
            put(seen, number)
            left_out = {"run": number, "jobs": {"$ne": "bonus"}}
            update = {"$inc": {"n": 100}, "$addToSet": {"jobs": "bonus"}}
            await update_many(things, left_out, update, timeout=TIMEOUT)
            assert [100 + n for n in range(NUMBER)] == [n for _, _, n in states(seen, number)]

        assert 1 == await at_each_lost_reply(servers, run)

    async def test_each_reply_of_a_deletion_lost(self, servers, things, seen):
        """Whichever answer is lost, what matches is deleted, and nothing else."""

        async def run(number):
            put(seen, number)
            result = await delete_many(things, {"run": number, "state": "old"}, timeout=TIMEOUT)
            assert LEFT == states(seen, number)
            assert result.deleted_count == (0 if result.was_repeated else 10)

        assert 1 == await at_each_lost_reply(servers, run)

    async def test_each_kill_of_an_update(self, servers, driver, name, things, seen):
        """The next process finishes what a killed one has begun."""

        def arguments(number):
            put(seen, number)
            return {"driver": driver, "name": name, "run": number}

        async def recover(number):
            update = {"$set": {"state": "done"}, "$max": {"n": 5}}
            await update_many(things, {"run": number}, update, timeout=TIMEOUT)
            assert UPDATED == states(seen, number)

        target = "tests.idempotent.once_children:update"
        assert 2 == await at_each_kill(servers, target, arguments, recover)

    async def test_each_kill_of_a_deletion(self, servers, driver, name, things, seen):
        """So it does for a deletion."""

        def arguments(number):
            put(seen, number)
            return {"driver": driver, "name": name, "run": number}

        async def recover(number):
            await delete_many(things, {"run": number, "state": "old"}, timeout=TIMEOUT)
            assert LEFT == states(seen, number)

        target = "tests.idempotent.once_children:delete"
        assert 2 == await at_each_kill(servers, target, arguments, recover)

    async def test_several_losses(self, servers, things, seen):
        """Under a deadline it is run as often as it takes."""
        put(seen, 1)
        with servers.faults.drop_request("update", "delete", app_name=APP_NAME, times=2):
            with servers.faults.drop_reply("update", "delete", app_name=APP_NAME, times=2):
                update = {"$set": {"state": "done"}, "$max": {"n": 5}}
                updated = await update_many(things, {"run": 1}, update, timeout=TIMEOUT)
        assert UPDATED == states(seen, 1)
        with servers.faults.drop_reply("delete", app_name=APP_NAME, times=3):
            deleted = await delete_many(things, {"run": 1}, timeout=TIMEOUT)
        assert [] == states(seen, 1)
        assert (True, True) == (updated.was_repeated, deleted.was_repeated)
        assert (NUMBER, 0, 0) == (
            updated.matched_count,
            updated.modified_count,
            deleted.deleted_count,
        )

    async def test_upsert(self, servers, things, seen):
        """A document that a lost run has inserted is found by the next one."""

        async def run(number):
            result = await update_many(
                things,
                {"_id": number, "kind": "x"},
                {"$setOnInsert": {"first": 1}, "$addToSet": {"tags": "a"}},
                upsert=True,
                timeout=TIMEOUT,
            )
            assert result.upserted_id == (None if result.was_repeated else number)
            assert [{"_id": number, "kind": "x", "first": 1, "tags": ["a"]}] == list(
                seen.find({"_id": number})
            )

        assert 1 == await at_each_lost_reply(servers, run)

    async def test_upserts_at_once(self, things, seen):
        """One of them inserts, and the others find its document; none fails with a duplicate."""
        for number in range(20):
            await asyncio.gather(
                *(
                    update_many(things, {"_id": number}, {"$set": {"a": 1}}, upsert=True)
                    for _ in range(8)
                )
            )
        assert [{"_id": n, "a": 1} for n in range(20)] == list(seen.find(sort=[("_id", 1)]))

    async def test_upsert_that_meets_another_document(self, things, seen):
        """If a document with its key stays in the way, that is the error."""
        seen.insert_one({"_id": 1, "kind": "y"})
        with pytest.raises(DuplicateKeyError):
            await update_many(
                things, {"_id": 1, "kind": "x"}, {"$set": {"a": 1}}, upsert=True, timeout=TIMEOUT
            )
        assert [{"_id": 1, "kind": "y"}] == list(seen.find())


class TestServersGone:
    @pytest.mark.sample(3)
    async def test_killed_in_the_middle(self, standalone, driver, name):
        """A server that is killed during an update, and restarted, ends with all of it."""
        async with collection_of(driver, standalone.uri, name) as things:
            await things.insert_many([{"_id": n, "state": "new"} for n in range(20_000)])
            with standalone.faults.watch("update", app_name=APP_NAME) as sent:
                update = asyncio.create_task(
                    update_many(things, {}, {"$set": {"state": "done"}}, timeout=60.0)
                )
                await sent.wait_until_fired()
                await standalone.kill(standalone.member)
                await standalone.restart(standalone.member)
                await update
            assert 20_000 == await things.count_documents({"state": "done"})

    @pytest.mark.usefixtures("three_members")
    async def test_failover(self, replica_set, driver, name, plain):
        """Deletions and updates outlive a step-down."""
        async with collection_of(driver, replica_set.uri, name) as things:
            await things.insert_many([{"_id": n, "group": n % 10} for n in range(1000)])
            with replica_set.faults.hang("delete", "update", app_name=APP_NAME) as fault:
                calls = [
                    asyncio.create_task(call)
                    for group in range(0, 10, 2)
                    for call in (
                        delete_many(things, {"group": group}, timeout=60.0),
                        update_many(things, {"group": group + 1}, {"$set": {"n": 1}}, timeout=60.0),
                    )
                ]
                await fault.wait_until_fired()
                await replica_set.step_down()
            await asyncio.gather(*calls)
        stored = plain[things.database.name][name]
        assert 500 == stored.count_documents({}) == stored.count_documents({"n": 1})


class TestRefused:
    async def test_nothing_is_sent(self, servers, things, seen):
        """What can't be repeated is refused at once, and named."""
        seen.insert_one({"_id": 1, "n": 1})
        with servers.faults.watch(app_name=APP_NAME, must_fire=False) as sent:
            with pytest.raises(NotIdempotentError, match=r"\$inc.*\$push") as caught:
                await update_many(things, {}, {"$inc": {"n": 1}, "$push": {"a": 1}})
            with pytest.raises(NotIdempotentError, match="upsert"):
                await update_many(things, {"k": 1}, {"$set": {"n": 2}}, upsert=True)
            with pytest.raises(NotIdempotentError, match=r"\$sampleRate"):
                await delete_many(things, {"$sampleRate": 0.5})
            assert 0 == sent.fired
        assert ("$inc", "$push") == caught.value.operators
        assert [{"_id": 1, "n": 1}] == list(seen.find())

    @pytest.mark.parametrize("update", [{}, {"a": 1}, []], ids=repr)
    async def test_no_update(self, things, update):
        """A replacement is refused as by the driver."""
        with pytest.raises(ValueError, match=r"update"):
            await update_many(things, {}, update)

    async def test_no_filter(self, things):
        """So is a filter that is none."""
        with pytest.raises(TypeError, match="filter"):
            await update_many(things, [], {"$set": {"a": 1}})
        with pytest.raises(TypeError, match="filter"):
            await delete_many(things, 5)

    @pytest.mark.parametrize(
        "options",
        [
            {"array_filters": {"e": 1}},
            {"array_filters": [5]},
            {"unique_key": "ab"},
            {"unique_key": 5},
            {"unique_key": [5]},
        ],
        ids=str,
    )
    async def test_wrong_options(self, things, options):
        """Options of another type are refused, by name."""
        with pytest.raises(TypeError, match=next(iter(options))):
            await update_many(things, {"_id": 1}, {"$set": {"a": 1}}, upsert=True, **options)

    async def test_unacknowledged(self, servers, driver, name):
        """With w: 0 nobody would know."""
        async with collection_of(
            driver, servers.uri, name, write_concern=WriteConcern(w=0)
        ) as things:
            with pytest.raises(ConfigurationError, match=r"update_many.* w: 0"):
                await update_many(things, {}, {"$set": {"a": 1}})
            with pytest.raises(ConfigurationError, match=r"delete_many.* w: 0"):
                await delete_many(things, {})


class TestErrors:
    async def test_of_the_server(self, things, seen):
        """An error that is not worth another run is raised as it is."""
        seen.create_index("k", unique=True)
        seen.insert_many([{"_id": 1, "k": 1}, {"_id": 2, "k": 2}])
        with pytest.raises(DuplicateKeyError):
            await update_many(things, {}, {"$set": {"k": 5}}, timeout=TIMEOUT)

    async def test_after_a_duplicate(self, servers, name, seen):
        """What an upsert had changed before a duplicate is not denied by the sending after it."""
        seen.create_index("k", unique=True)
        seen.insert_many([{"_id": 1, "g": 1, "k": 1}, {"_id": 2, "g": 1, "k": 2}])
        change = {"$set": {"k": 5}}
        async with collection_of("aioretry", servers.uri, name) as things:
            with servers.faults.error(13, "update", nth=2, app_name=APP_NAME):
                with pytest.raises(OperationFailure, match="injected") as caught:
                    await update_many(things, {"g": 1}, change, upsert=True, unique_key=["g"])
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        assert [5, 2] == [document["k"] for document in seen.find().sort("_id")]

    async def test_time_is_over(self, servers, things, seen):
        """The error says so; some documents may be changed."""
        put(seen, 1)
        with servers.faults.drop_reply("delete", app_name=APP_NAME, times=None):
            with pytest.raises(DeadlineExceeded) as caught:
                await delete_many(things, {"run": 1}, timeout=2.0)
        assert outcome_of(caught.value) in {Outcome.UNKNOWN, None}
        with pytest.raises(DeadlineExceeded):
            await update_many(things, {}, {"$set": {"a": 1}}, timeout=0.0)

    async def test_without_a_deadline(self, servers, things, seen):
        """It is run twice at most."""
        put(seen, 1)
        with servers.faults.drop_request("delete", app_name=APP_NAME, times=2):
            with pytest.raises(AutoReconnect) as caught:
                await delete_many(things, {"run": 1})
        assert "aioretry: delete_many was run 2 times" in caught.value.__notes__
        assert NUMBER == len(states(seen, 1))
        with servers.faults.drop_reply("delete", app_name=APP_NAME):
            assert (await delete_many(things, {"run": 1})).was_repeated
        assert [] == states(seen, 1)


class TestOptions:
    async def test_of_updates(self, things, seen):
        """All options arrive."""
        seen.insert_many({"_id": n, "name": "ÄA"[n % 2], "a": [1, 5]} for n in range(4))
        seen.create_index([("name", DESCENDING)])
        result = await update_many(
            things,
            {"$expr": {"$gte": ["$_id", "$$least"]}, "name": "a"},
            {"$set": {"a.$[e]": 0}},
            array_filters=[{"e": {"$gte": 3}}],
            bypass_document_validation=True,
            collation={"locale": "de", "strength": 1},
            hint=[("name", DESCENDING)],
            let={"least": 2},
            comment="why",
        )
        assert (2, 2, None) == (result.matched_count, result.modified_count, result.upserted_id)
        assert [1, 5] == seen.find_one({"_id": 1})["a"]
        assert [[1, 0], [1, 0]] == [each["a"] for each in seen.find({"_id": {"$gte": 2}})]

    async def test_of_deletions(self, things, seen):
        """All options arrive."""
        seen.insert_many({"_id": n, "name": "Aa"[n % 2]} for n in range(4))
        seen.create_index("name", name="by_name")
        result = await delete_many(
            things,
            {"$expr": {"$gte": ["$_id", "$$least"]}, "name": "A"},
            collation={"locale": "de", "strength": 1},
            hint="by_name",
            let={"least": 1},
            comment="why",
        )
        assert 3 == result.deleted_count
        assert [0] == [each["_id"] for each in seen.find()]

    async def test_pipeline_with_variables(self, things, seen):
        """A pipeline is taken too."""
        seen.insert_one({"_id": 1, "b": 2})
        update = [{"$set": {"a": {"$add": ["$b", "$$more"]}}}]
        await update_many(things, {}, update, let={"more": 5})
        assert [{"_id": 1, "b": 2, "a": 7}] == list(seen.find())


def run_twice(seen, case):
    """Update a document twice; give what there was before, between and after."""
    seen.insert_one({"_id": 1, **case.document})
    found = [seen.find_one({})]
    for _ in range(2):
        wait_for_the_clock(seen)
        seen.update_many(case.filter, case.update, array_filters=case.array_filters, let=case.let)
        found.append(seen.find_one({}))
    return found


def wait_for_the_clock(seen):
    """Let a server's time go on, which it tells in milliseconds."""
    admin = seen.database.client.admin
    began = admin.command("hello")["localTime"]
    while admin.command("hello")["localTime"] == began:
        pass


class TestClassification:
    """What a server makes of the updates of the table."""

    @pytest.mark.parametrize("case", REPEATABLE, ids=str)
    def test_repeatable(self, own_collection, case):
        """The second run of what is accepted changes nothing, to the last byte."""
        _, between, after = run_twice(own_collection, case)
        assert list(between.items()) == list(after.items())

    @pytest.mark.parametrize("case", [each for each in NOT_REPEATABLE if each.again], ids=str)
    def test_not_repeatable(self, own_collection, case):
        """That of what is refused changes the document once more."""
        _, between, after = run_twice(own_collection, case)
        assert between != after

    @pytest.mark.parametrize("case", UPSERTS, ids=str)
    def test_upserts(self, own_collection, case):
        """The second upsert finds what the first one has inserted."""
        for _ in range(2):
            own_collection.update_many(case.filter, case.update, upsert=True)
            (document,) = own_collection.find()
            assert {"_id"} < set(document)
