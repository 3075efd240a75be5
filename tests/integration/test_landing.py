"""Attempts whose landing meets an exception: no slot is lost, and nobody waits for ever."""

import asyncio
import contextlib
import contextvars
import pkgutil

import pytest
from pymongo.errors import ConfigurationError

from aioretry import Outcome, deadline, outcome_of
from tests.integration.looping import Silent, none_under_way

CALLER = contextvars.ContextVar("CALLER", default=None)
INCREMENT = {"$inc": {"n": 1}}


class FactoryError(Exception):
    """What a factory of tasks raises."""


@contextlib.contextmanager
def making_tasks(factory):
    """Set what makes the event loop's tasks; the test's own ones need contexts."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        yield
    finally:
        loop.set_task_factory(None)


def old_style(loop, coro):
    """A factory as it was before Python 3.11, and as some instrumentations still have it."""
    return asyncio.Task(coro, loop=loop)


def failing(loop, coro, **options):
    """A factory that makes no task."""
    raise FactoryError


@pytest.fixture(params=["on the loop", "on a thread"])
async def narrow(request, replica_set, collection, commands, client_class):
    """The collection, of a client that makes one attempt at a time; so or so."""
    await collection.insert_one({"_id": 1, "n": 0})
    listeners = [commands, Silent()] if request.param == "on a thread" else []
    async with client_class(
        replica_set.uri, event_listeners=listeners, max_concurrent_attempts=1, maxPoolSize=1
    ) as client:
        things = client[collection.database.name].get_collection(
            collection.name, write_concern=collection.write_concern
        )
        await things.update_one({"_id": 1}, {"$set": {"m": 0}})
        yield things


async def ending(write):
    """What a write ends with, soon."""
    async with asyncio.timeout(30):
        try:
            return await write
        except Exception as exc:  # noqa: BLE001 - whatever it is
            return exc


async def is_free(things):
    """Tell whether the only slot can be used by others."""
    async with asyncio.timeout(30):
        await ending(things.update_one({"_id": 1}, INCREMENT))  # the trouble may come only now
        for _ in range(3):
            await things.update_one({"_id": 1}, INCREMENT)
        await none_under_way(things.database.client)
    return True


class TestTaskFactories:
    @pytest.mark.parametrize("seconds", [None, 30])
    async def test_without_contexts(self, seconds, replica_set, narrow, stored):
        """A write that is retried ends well, and its task runs in its caller's context."""
        seen = []
        CALLER.set("me")

        def note(loop, coro):
            seen.append(CALLER.get())
            return old_style(loop, coro)

        async with replica_set.faults.drop_reply("update"):
            with making_tasks(note):
                async with deadline(seconds):
                    write = narrow.update_one({"_id": 1}, INCREMENT)
                assert 1 == (await ending(write)).modified_count
        assert "me" in seen
        assert await is_free(narrow)
        assert 5 == stored.find_one()["n"]

    async def test_without_contexts_of_a_group(self, replica_set, narrow, stored):
        """So does one that several calls share."""
        view = narrow.coalesced()
        async with replica_set.faults.drop_reply("insert"):
            with making_tasks(old_style):
                writes = [view.insert_one({"_id": number}) for number in range(2, 5)]
                assert [2, 3, 4] == [(await ending(write)).inserted_id for write in writes]
        assert await is_free(narrow)
        assert 4 == stored.count_documents({})

    @pytest.mark.motor  # without tasks, PyMongo's own asynchronous pool opens nothing
    async def test_that_fail(self, replica_set, narrow):
        """The write ends with what it raises, and says what is known; the slot is free."""
        async with replica_set.faults.drop_reply("update"):
            write = narrow.update_one({"_id": 1}, INCREMENT)
            with making_tasks(failing):
                error = await ending(write)
        assert (FactoryError, Outcome.UNKNOWN) == (type(error), outcome_of(error))
        assert await is_free(narrow)


class TestExceptions:
    @pytest.mark.parametrize(
        "name",
        [
            "_retry.sessions.SessionLease.drop",
            "_retry.sessions.SessionLease.finish",
            "_drivers.engine.sessions.ImplicitSession.close",
            "_drivers.engine.connections.Connections.put",
            "_drivers.engine.steps.Steps.learn_of",
            "_retry.command_execution.Execution.settle",
        ],
    )
    @pytest.mark.parametrize("case", ["answered", "cancelled", "broken"])
    async def test_once(self, name, case, replica_set, narrow, monkeypatch, unhandled):
        """Whatever raises once while an attempt lands, the write ends and its slot is free."""
        path, _, attribute = name.rpartition(".")
        owner = pkgutil.resolve_name(f"aioretry.{path}")
        raised = []

        def fail_once(*args, **options):
            if not raised:
                raised.append(True)
                raise FactoryError
            return whole(*args, **options)

        whole = getattr(owner, attribute)
        monkeypatch.setattr(owner, attribute, fail_once)
        async with asyncio.timeout(60):
            if case == "broken":
                async with replica_set.faults.drop_reply("update", times=2):
                    await ending(narrow.update_one({"_id": 1}, INCREMENT))
            else:
                write = narrow.update_one({"_id": 1}, INCREMENT)
                if case == "cancelled":
                    with contextlib.suppress(FactoryError):
                        write.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await write
                else:
                    await ending(write)
            assert await is_free(narrow)
        # It is told, where nobody awaits it.
        assert all(FactoryError.__name__ in told for told in unhandled)
        unhandled.clear()


async def test_a_look_that_raises(replica_set, collection, monkeypatch, client_class):
    """What has waited for a connection goes on, though nobody can look at the servers just then."""
    async with client_class(replica_set.uri) as client:
        events = client[collection.database.name][collection.name]
        await events.insert_one({"_id": 1})
        attempts = client._driver._steps
        look, raised = attempts.view, []

        def fail_once():
            if not raised:
                raised.append(True)
                raise ConfigurationError("a server is too old")
            return look()

        async with replica_set.faults.hang("update", applied=True) as held:
            first = events.update_one({"_id": 1}, INCREMENT)
            await held.wait_until_fired()
            monkeypatch.setattr(attempts, "view", fail_once)
            second = events.update_one({"_id": 1}, INCREMENT)  # opens a connection
            async with asyncio.timeout(30):
                await second
                held.disarm()
                await first
    assert raised
