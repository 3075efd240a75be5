"""Commits over sessions of no driver: what is sent, what is told of them, and when they resolve."""

import asyncio
import time

import pytest
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    ResolveError,
    attempts_of,
    deadline,
    outcome_of,
    resolve,
)
from aioretry._drivers.port import ServerKind
from aioretry._retry.transactions import UNKNOWN_COMMIT
from aioretry._writes.commits import commit, explain
from aioretry.errors import attach, report_of
from tests.unit._writes.transacting import (
    ABORT,
    ADDRESS,
    COMMIT,
    OK,
    OTHER,
    Driver,
    session_over,
)

MINUTE = 60.0
APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN


def lost():
    """An error of a connection."""
    return AutoReconnect("lost")


def gone():
    """What a server says of a transaction that it does not know."""
    return OperationFailure("gone", 251, {"errorLabels": ["TransientTransactionError"]})


def busy():
    """What an overloaded server says."""
    labels = ["RetryableError", "SystemOverloadedError"]
    return OperationFailure("busy", 462, {"errorLabels": labels, "baseBackoffMS": 1})


@pytest.fixture
async def driver():
    return Driver()


@pytest.fixture
async def session(driver):
    """One with a transaction in progress."""
    session = session_over(driver)
    session.start_transaction()
    driver.log.clear()
    return session


async def awaited(session):
    """A commit that somebody waits for."""
    await commit(session)


async def failed(session, *answers):
    """What a commit ends with that is answered so."""
    session.driver.answers = list(answers)
    with pytest.raises(PyMongoError) as caught:
        await commit(session)
    return caught.value


class TestSending:
    @pytest.mark.parametrize("first", [ADDRESS, OTHER])
    async def test_by_the_router_that_knows_it(self, session, driver, first):
        """Then by another one (transactions, "When to unpin")."""
        driver.kind, driver.addresses, driver.pinned = ServerKind.MONGOS, [ADDRESS, OTHER], first
        driver.answers = [lost()]
        await commit(session)
        assert [first, ({ADDRESS, OTHER} - {first}).pop()] == driver.asked

    async def test_once(self, session, driver):
        await commit(session)
        assert [{"commitTransaction": 1, "maxTimeMS": 700}] == driver.sent
        assert not session.in_transaction
        assert ["given back"] == driver.log

    async def test_after_a_lost_answer(self, session, driver):
        """It is sent again by a majority, whether or not the policy is to retry writes."""
        driver.answers = [lost(), OK]
        await commit(session)
        concern = {"w": "majority", "wtimeout": 10_000}
        assert [None, concern] == [each.get("writeConcern") for each in driver.sent]
        assert ["given back"] == driver.log

    async def test_its_own_time_limit(self, session, driver):
        """A limit that the user gave is kept; under a deadline there is none but that."""
        session._calls.concern = WriteConcern(w=2, wtimeout=500)
        driver.answers = [lost(), OK]
        await commit(session)
        concerns = [{"w": 2, "wtimeout": 500}, {"w": "majority", "wtimeout": 500}]
        assert concerns == [each["writeConcern"] for each in driver.sent]
        session.start_transaction()
        driver.sent.clear()
        async with deadline(30):
            await commit(session)
        assert [{"commitTransaction": 1, "writeConcern": {"w": 2}}] == driver.sent

    async def test_to_an_overloaded_server(self, session, driver):
        """It was refused, so that its concern remains."""
        driver.answers = [busy(), OK]
        await commit(session)
        assert 2 == len(driver.sent)
        assert "writeConcern" not in driver.sent[1]

    async def test_no_more_than_twice(self, session, driver):
        error = await failed(session, lost(), lost())
        assert [COMMIT] * 2 == driver.names
        assert error.has_error_label(UNKNOWN_COMMIT)
        assert (UNKNOWN, 2) == (outcome_of(error), len(attempts_of(error)))
        assert ["kept"] == driver.log
        assert not session.in_transaction

    async def test_as_often_as_time_allows(self, session, driver):
        driver.answers = [lost()] * 5
        async with deadline(30):
            await commit(session)
        assert 6 == len(driver.sent)

    async def test_no_time_to_send_it(self, session, driver):
        """It is aborted, without the session: as long as it is open, it bars others."""
        driver.is_late = True
        async with deadline(30):
            with pytest.raises(DeadlineExceeded) as caught:
                await commit(session)
        assert NOT_APPLIED is outcome_of(caught.value)
        assert session.transaction is None
        async with asyncio.timeout(10):
            while "discard it over" not in driver.log:
                await asyncio.sleep(0.001)
        assert [ABORT] == driver.names

    async def test_by_the_user_once_more(self, session, driver):
        """It is the same commit, by a majority from the first sending on."""
        await commit(session)
        await commit(session)
        assert "majority" == driver.sent[1]["writeConcern"]["w"]
        assert 2 == len(session._commit.progress.sendings)


class TestOutcomes:
    async def test_refused(self, session, driver):
        error = await failed(session, gone())
        assert (NOT_APPLIED, 1) == (outcome_of(error), len(attempts_of(error)))
        assert not error.has_error_label(UNKNOWN_COMMIT)
        assert ["given back"] == driver.log

    async def test_refused_by_a_router(self, session, driver):
        """It may speak of what it has sent itself before."""
        driver.kind = ServerKind.MONGOS
        assert UNKNOWN is outcome_of(await failed(session, gone()))

    async def test_a_write_concern_error(self, session):
        """It is done, and may be undone."""
        reply = {"ok": 1, "writeConcernError": {"code": 64, "errmsg": "waiting"}}
        error = await failed(session, reply)
        assert error.has_error_label(UNKNOWN_COMMIT)
        assert UNKNOWN is outcome_of(error)

    async def test_not_known_to_a_majority(self, session, driver):
        """Who does not know it may be deposed by one that does, as long as no majority answers."""
        waiting = {"code": 64, "errmsg": "waiting"}
        unheard = OperationFailure("gone", 251, {"writeConcernError": waiting})
        error = await failed(session, lost(), unheard)
        assert error is unheard
        assert error.has_error_label(UNKNOWN_COMMIT)
        assert UNKNOWN is outcome_of(error)

    async def test_of_what_has_none(self, session):
        """What leaves a block has the outcome of the transaction, if it has none of its own."""
        error = LookupError()
        explain(session, error)
        assert NOT_APPLIED is outcome_of(error)
        attach(error, None, [])
        explain(session, error)
        assert NOT_APPLIED is outcome_of(error)
        await commit(session)
        explain(session, error)
        assert APPLIED is outcome_of(error)
        explain(session, error, was_in_doubt=True)
        assert UNKNOWN is outcome_of(error)

    @pytest.mark.parametrize(
        ("own", "told"), [(APPLIED, NOT_APPLIED), (NOT_APPLIED, NOT_APPLIED), (UNKNOWN, UNKNOWN)]
    )
    async def test_of_a_write_beside(self, session, own, told):
        """Its doubt is not forgotten; that it is done says nothing of the transaction."""
        error = lost()
        attach(error, own, [])
        explain(session, error)
        assert told is outcome_of(error)

    async def test_of_the_one_before(self, session):
        """What never began has nothing of it."""
        await failed(session, lost(), lost())
        error = LookupError()
        explain(session, error, before=session._commit)
        assert (NOT_APPLIED, ()) == (outcome_of(error), attempts_of(error))


class TestResolving:
    async def test_it_is_sent_again(self, session, driver):
        error = await failed(session, lost(), lost())
        assert await resolve(error) is None
        assert "majority" == driver.sent[2]["writeConcern"]["w"]
        assert ["kept", "given back"] == driver.log
        assert await resolve(error) is None
        assert 3 == len(driver.sent)

    async def test_in_doubt_again(self, session):
        """Either exception can be resolved."""
        first = await failed(session, lost(), lost())
        session.driver.answers = [lost(), lost()]
        with pytest.raises(AutoReconnect) as second:
            await resolve(first)
        assert (UNKNOWN, 4) == (outcome_of(second.value), len(attempts_of(second.value)))
        await resolve(second.value)
        assert await resolve(first) is None

    async def test_when_the_session_goes_on(self, session, driver):
        """It is about the transaction that it was raised by."""
        error = await failed(session, lost(), lost())
        session.start_transaction()
        await resolve(error)
        assert session.in_transaction
        await commit(session)
        assert [COMMIT] * 4 == driver.names

    async def test_too_old(self, session):
        """What is older than servers remember is not asked for."""
        error = await failed(session, lost(), lost())
        report_of(error).doubt._commit._latest.began -= 25 * MINUTE
        with pytest.raises(ResolveError, match="first sent 1500 s ago, and"):
            await resolve(error)
        assert UNKNOWN is outcome_of(error)

    async def test_too_old_by_the_other_clock(self, session):
        """A monotonic clock that stood still is not believed."""
        error = await failed(session, lost(), lost())
        report_of(error).doubt._commit._latest.began_at = time.time() - 26 * MINUTE
        with pytest.raises(ResolveError, match="may have forgotten it"):
            await resolve(error)

    async def test_no_such_transaction(self, session, driver):
        """So it is told how it ended; its session is others' then, and nothing is sent over it."""
        error = await failed(session, lost(), lost())
        session.driver.answers = [gone()]
        with pytest.raises(OperationFailure) as caught:
            await resolve(error)
        assert NOT_APPLIED is outcome_of(caught.value)
        assert "given back" == driver.log[-1]
        sent = len(driver.sent)
        with pytest.raises(ResolveError, match="found not to be committed"):
            await resolve(error)
        assert (sent, "given back") == (len(driver.sent), driver.log[-1])


class TestCancelled:
    @pytest.fixture
    def begun(self, session, driver):
        """A commit that is not answered."""

        async def begin():
            driver.answers = [None]
            task = asyncio.create_task(awaited(session))
            await asyncio.sleep(0)
            return task

        return begin

    async def test_answered_late(self, begun, session, driver):
        """The answer counts, and the session is given back."""
        task = await begun()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert UNKNOWN is outcome_of(caught.value)
        assert not session.in_transaction
        assert ["kept"] == driver.log  # at once: who ends the session now must not pool it
        driver.land(OK)
        assert "given back" == driver.log[-1]
        assert await resolve(caught.value) is None
        assert [COMMIT] == driver.names

    async def test_answered_while_it_is_resolved(self, begun, session, driver):
        """Its session is given back when that has ended: what is sent must not meet another's."""
        task = await begun()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        driver.has_room = False
        resolving = asyncio.ensure_future(resolve(caught.value))
        for _ in range(5):
            await asyncio.sleep(0)
        driver.land(OK)
        assert ["kept"] == driver.log
        driver.has_room = True
        assert await asyncio.wait_for(resolving, 10) is None
        assert [COMMIT, COMMIT] == driver.names
        assert "given back" == driver.log[-1]

    async def test_as_it_is_answered(self, begun, driver):
        """Who is cancelled in that moment is told that it is committed."""
        task = await begun()
        driver.land(OK)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert APPLIED is outcome_of(caught.value)

    async def test_before_it_was_sent(self, session, driver):
        """It never is, and is aborted; the session has no part in that."""
        driver.has_room = False
        task = asyncio.create_task(awaited(session))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert NOT_APPLIED is outcome_of(caught.value)
        assert [False] == [attempt.sent for attempt in attempts_of(caught.value)]
        assert session.transaction is None
        driver.has_room = True
        session.start_transaction()
        async with asyncio.timeout(10):
            while "discard it over" not in driver.log:
                await asyncio.sleep(0.001)
        assert [ABORT] == driver.names
        assert session.in_transaction
