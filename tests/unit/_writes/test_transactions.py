"""Transactions over sessions of no driver: what is asked of them, in which order."""

import asyncio

import pytest
from pymongo.errors import AutoReconnect, OperationFailure

from aioretry import ClientDraining, RetryScheduled
from aioretry._retry.transactions import RETRY_LIMIT, TRANSIENT, TransactionRetries
from aioretry._writes.transactions import TransactionCall, run_transaction
from aioretry.deadlines import Deadline
from aioretry.errors import Outcome, outcome_of
from tests.unit._writes.transacting import ABORT, COMMIT, Driver, session_over


@pytest.fixture
async def driver():
    return Driver()


def call(session, callback, *, session_per_run=False):
    """A call of `with_transaction`."""
    return TransactionCall(
        session,
        callback,
        (None,) * 4,
        TransactionRetries(lambda: 0.0),
        Deadline.after(RETRY_LIMIT),
        session_per_run,
    )


def transient():
    """An error after which everything is run again."""
    return OperationFailure("no such transaction", 251, {"errorLabels": [TRANSIENT]})


@pytest.mark.parametrize("starts_later", [False, True])
async def test_a_run(driver, starts_later):
    """It is started, committed, and gives what the callback gives."""
    session = session_over(driver, starts_later=starts_later)

    async def work(given):
        assert given is session
        assert given.in_transaction
        given.log.append("work")
        return "a value"

    assert "a value" == await call(session, work).run()
    assert (["start", "work", "given back"], [COMMIT]) == (driver.log, driver.names)


async def test_another_run(driver):
    """After a transient error all of it is run again, in the same session."""
    told, errors = [], [transient()]
    session = session_over(driver, hooks=[told.append])

    async def work(_):
        if errors:
            raise errors.pop()

    await call(session, work).run()
    assert ["start", "given back", "start", "given back"] == driver.log
    assert [ABORT, COMMIT] == driver.names
    [event] = told
    assert isinstance(event, RetryScheduled)
    assert ("with_transaction", 251, 1) == (event.operation, event.error_code, event.attempt)


@pytest.mark.parametrize(("minutes", "runs"), [(30, 2), (0, 1)])
async def test_a_commit_that_may_be_done(driver, minutes, runs):
    """It is not run again where servers may have forgotten by now that they have committed it."""
    driver.session_minutes = minutes
    session = session_over(driver)
    driver.answers = [AutoReconnect("it broke"), transient()]

    async def work(given):
        given.log.append("work")

    if runs == 1:
        with pytest.raises(OperationFailure) as caught:
            await call(session, work).run()
        assert outcome_of(caught.value) is Outcome.UNKNOWN
    else:
        await call(session, work).run()
    assert runs == driver.log.count("work")


async def test_no_other_run(driver):
    """What may still arrive of a run that is the last one is aborted for certain."""
    session, errors = session_over(driver), [transient()]
    session._calls.may_arrive = lambda _: True

    async def work(_):
        raise errors[0]

    made = call(session, work)
    made.limit = Deadline.after(0.0)
    with pytest.raises(Exception, match="gave up"):
        await made.run()
    assert "taken" in driver.log


async def test_an_abort_that_takes_all_the_time(driver):
    """Nothing is run again when it is too late."""
    session, now = session_over(driver), [0.0]

    def end(transaction):
        transaction.has_ended = True
        now[0] = 1.0

    async def work(given):
        given.log.append("work")
        raise transient()

    session._calls.end_abort = end
    made = call(session, work)
    made.limit = Deadline(0.5, lambda: now[0])
    with pytest.raises(Exception, match="and 1 transactions"):
        await made.run()
    assert 1 == driver.log.count("work")


@pytest.mark.parametrize("end", ["too late", "cancelled"])
async def test_nothing_ends_what_may_arrive(driver, end):
    """What was to be ended by another run is aborted for certain if there is none."""
    session, now, is_lost = session_over(driver), [0.0], [True]

    def may_arrive(_):
        now[0] = 1.0 if end == "too late" else 0.0
        return is_lost[0]

    async def work(_):
        raise transient()

    session._calls.may_arrive = may_arrive
    driver.answers = [transient()]
    made = call(session, work)
    made.retries.random = lambda: 20.0  # for 0.1 seconds
    made.limit = Deadline(0.5, lambda: now[0])
    errors = []

    async def run():
        try:
            await made.run()
        except BaseException as exc:  # noqa: BLE001 - a cancellation, too
            errors.append(exc)

    running = asyncio.ensure_future(run())
    for _ in range(20):
        await asyncio.sleep(0)
    running.cancel()  # in the pause, if it is not over
    await asyncio.wait([running])
    assert (end == "cancelled") is isinstance(errors[0], asyncio.CancelledError)
    assert Outcome.NOT_APPLIED is outcome_of(errors[0])
    is_lost[0] = False
    assert "taken" in driver.log


async def test_a_drain_that_is_over_before_the_next_run(driver):
    """What that would have ended is aborted for certain."""
    session = session_over(driver)
    session._calls.may_arrive = lambda _: True
    driver.answers = [transient()]

    async def work(_):
        session._write_path.under_way.is_draining = True
        session._write_path.under_way.leave(0)
        raise transient()

    with pytest.raises(ClientDraining):
        await call(session, work).run()
    assert "taken" in driver.log


async def test_what_somebody_has_ended_in_the_pause(driver):
    """It is run again all the same."""
    session, errors = session_over(driver), [transient()]
    session._calls.may_arrive = lambda _: True
    driver.answers = [transient()]

    async def work(_):
        if errors:
            raise errors.pop()

    made = call(session, work)
    made.retries.random = lambda: 2.0  # for a hundredth of a second
    running = asyncio.ensure_future(made.run())
    for _ in range(20):
        await asyncio.sleep(0)
    session._calls.end_abort(session.transaction)
    session._calls.begin_abort = None  # nobody asks for it
    await running
    assert [ABORT, COMMIT] == driver.names


async def test_what_the_next_run_ends(driver):
    """It goes on in the same session."""
    session, errors = session_over(driver), [transient()]
    session._calls.may_arrive = lambda _: True
    driver.answers = [transient()]

    async def work(_):
        if errors:
            raise errors.pop()

    await call(session, work).run()
    assert ["start", "given back", "start", "given back"] == driver.log
    assert [ABORT, COMMIT] == driver.names


async def test_a_session_for_each_run(driver):
    """What is left of a run has its own session, which is ended or given up for certain."""
    session, errors = session_over(driver), [transient()]

    async def work(_):
        if errors:
            raise errors.pop()

    await call(session, work, session_per_run=True).run()
    driver.log.remove("discard it over")  # whenever that is
    assert ["start", "taken", "given back", "end"] == driver.log[:4]
    assert ["renewed", "start", "given back", "end"] == driver.log[4:]
    assert [ABORT, COMMIT] == driver.names


async def test_a_cancelled_callback(driver):
    """Its transaction is taken from the session, and aborted beside it."""
    session = session_over(driver)

    async def work(_):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError) as caught:
        await call(session, work).run()
    assert Outcome.NOT_APPLIED is outcome_of(caught.value)
    assert ["start", "taken"] == driver.log[:2]
    assert [ABORT] == driver.names


async def test_a_closed_callback(driver):
    """Whoever is closed waits for nothing; the transaction is aborted all the same."""
    session = session_over(driver)

    async def work(_):
        await asyncio.get_running_loop().create_future()

    running = call(session, work).run()
    running.send(None)
    running.close()
    async with asyncio.timeout(10):
        while "discard it over" not in driver.log:
            await asyncio.sleep(0.001)
    assert [ABORT] == driver.names


class TestClients:
    @pytest.mark.parametrize("is_awaited", [False, True])
    async def test_of_either_kind(self, driver, is_awaited):
        """One gives a session, the other a coroutine that gives it."""
        session = session_over(driver)

        class Client:
            def start_session(self):
                return self._later() if is_awaited else session

            async def _later(self):
                return session

        async def work(given):
            return given.in_transaction

        assert await run_transaction(Client(), work)
        assert ["start", "given back", "end"] == driver.log

    async def test_of_no_kind(self):
        """A driver's own session is refused before anything is begun."""

        class Client:
            def start_session(self):
                return object()

        with pytest.raises(TypeError, match="RetryClient, not Client"):
            await run_transaction(Client(), None)
