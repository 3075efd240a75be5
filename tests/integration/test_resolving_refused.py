"""Writes that can't be resolved, or over a user's own session only while it knows them."""

import pytest
from doubting import INCREMENT, doubt, increment, lost_increment
from pymongo.errors import DuplicateKeyError, InvalidOperation, OperationFailure

from aioretry import DeadlineExceeded, Outcome, ResolveError, RetryClient, outcome_of, resolve
from aioretry.testing import Standalone

NOT_APPLIED, UNKNOWN = Outcome.NOT_APPLIED, Outcome.UNKNOWN


@pytest.fixture
async def client(watched_client):
    """The client of these tests tells what it sends."""
    return watched_client


async def refused(exc, commands, match, **options):
    """Check that nothing is sent to resolve an exception, and that the text says why."""
    before = list(commands.sent)
    with pytest.raises(ResolveError, match=match) as caught:
        await resolve(exc, **options)
    assert exc is caught.value.__cause__
    assert before == commands.sent


class TestExplicitSessions:
    async def test_are_used_again(self, replica_set, seeded, stored, session, commands):
        """A write over a session is resolved over it, and the session goes on."""
        exc = await lost_increment(replica_set, seeded, session=session)
        assert 1 == (await resolve(exc)).modified_count
        assert 1 == (await increment(seeded, session=session)).modified_count
        assert {bytes(session.session_id["id"])} == commands.sessions
        *same, last = commands.numbers
        assert ({last - 1}, 2) == (set(same), stored.find_one()["n"])

    async def test_that_have_gone_on(self, replica_set, seeded, stored, session, commands):
        """After another write over the session the server knows only that one."""
        exc = await lost_increment(replica_set, seeded, session=session)
        await increment(seeded, session=session)
        await refused(exc, commands, "used for another write since")
        assert 2 == stored.find_one()["n"]

    async def test_in_a_transaction(self, replica_set, seeded, stored, session, commands):
        """Nor can it be sent once a transaction has begun on the session."""
        exc = await lost_increment(replica_set, seeded, session=session)
        async with session.start_transaction():
            await seeded.insert_one({"_id": 2}, session=session)
            await refused(exc, commands, "used for another write since")
        assert [1, 2] == [document["_id"] for document in stored.find().sort("_id")]

    async def test_that_have_ended(self, client, replica_set, seeded, commands):
        """An ended session is gone."""
        async with await client.start_session() as session:
            exc = await lost_increment(replica_set, seeded, session=session)
        await refused(exc, commands, "its session was ended")


class TestRefusals:
    @pytest.mark.parametrize("outcome", [NOT_APPLIED, Outcome.APPLIED])
    async def test_what_is_known(self, outcome, seeded, commands, monkeypatch):
        """There is nothing to find out."""
        if outcome is NOT_APPLIED:
            with pytest.raises(DuplicateKeyError) as caught:
                await seeded.insert_one({"_id": 1})
        else:

            def broken(*arguments, **options):
                raise ZeroDivisionError

            monkeypatch.setattr("aioretry._commands.single.UpdateResult", broken)
            with pytest.raises(ZeroDivisionError) as caught:
                await increment(seeded)
        assert outcome is outcome_of(caught.value)
        await refused(caught.value, commands, f"the outcome is known: {outcome.value}")

    async def test_what_is_no_write(self, seeded, commands):
        """An exception from elsewhere."""
        await refused(ValueError("mine"), commands, "not ValueError")
        with pytest.raises(OperationFailure) as caught:
            await seeded.database.command("nonsense")
        await refused(caught.value, commands, "came out of a write of aioretry")

    @pytest.mark.parametrize("name", ["update", "delete"])
    async def test_what_is_about_many(self, name, replica_set, seeded, commands):
        """Writes of many documents have no transaction id."""
        calls = {
            "update": lambda: seeded.update_many({}, INCREMENT),
            "delete": lambda: seeded.delete_many({}),
        }
        fault = replica_set.faults.drop_reply(name, namespace=seeded.full_name)
        exc = await doubt(fault, calls[name])
        await refused(exc, commands, "without a transaction id")

    async def test_without_retry_writes(self, replica_set, seeded, commands):
        """retryWrites=false: no transaction id."""
        async with RetryClient(replica_set.uri, retryWrites=False) as client:
            mine = client[seeded.database.name][seeded.name]
            fault = replica_set.faults.drop_reply("update", namespace=seeded.full_name)
            exc = await doubt(fault, lambda: increment(mine))
            await refused(exc, commands, "without a transaction id")

    async def test_of_a_standalone_server(self, commands):
        """A server that is in no set takes no transaction ids."""
        async with Standalone(faults=True) as server, RetryClient(server.uri) as client:
            fault = server.faults.drop_reply("update")
            exc = await doubt(fault, lambda: increment(client.db.c))
            await refused(exc, commands, "without a transaction id")

    async def test_after_close(self, replica_set, seeded, stored):
        """A closed client resolves nothing, and says so."""
        async with RetryClient(replica_set.uri) as client:
            mine = client[seeded.database.name][seeded.name]
            exc = await lost_increment(replica_set, mine)
        with pytest.raises(InvalidOperation, match="after close") as caught:
            await resolve(exc)
        assert UNKNOWN is outcome_of(caught.value)
        assert 1 == stored.find_one()["n"]

    @pytest.mark.parametrize(
        ("timeout", "error"), [("1", TypeError), (-1, ValueError), (float("nan"), ValueError)]
    )
    async def test_of_a_bad_timeout(self, timeout, error, replica_set, seeded, commands):
        """A timeout that is no number of seconds."""
        exc = await lost_increment(replica_set, seeded)
        commands.sent.clear()
        with pytest.raises(error, match="timeout"):
            await resolve(exc, timeout)
        assert [] == commands.sent

    async def test_without_time(self, replica_set, seeded, commands):
        """A timeout that is over sends nothing, and leaves everything as it was."""
        exc = await lost_increment(replica_set, seeded)
        commands.sent.clear()
        with pytest.raises(DeadlineExceeded) as caught:
            await resolve(exc, 0)
        assert [] == commands.sent
        assert UNKNOWN is outcome_of(caught.value)
        assert 1 == (await resolve(caught.value)).modified_count
