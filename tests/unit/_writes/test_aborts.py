"""Aborts over sessions of no driver: what is sent, and until when."""

import asyncio

import pytest
from pymongo.errors import AutoReconnect, InvalidOperation, OperationFailure

from aioretry import OperationEnded, Outcome, deadline, every_event, outcome_of
from aioretry._drivers.port import ServerKind, TopologyView
from aioretry._retry import attempt
from aioretry._writes import aborts
from aioretry._writes.aborts import abort, abort_for_certain, time_for_abort
from aioretry.deadlines import Deadline
from aioretry.errors import attach
from tests.unit._writes.transacting import ABORT, ADDRESS, OK, OTHER, Driver, Session, session_over


def gone():
    """What a server says of a transaction that it does not know."""
    return OperationFailure("gone", 251, {"errorLabels": ["TransientTransactionError"]})


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


async def is_discarded(driver, how):
    async with asyncio.timeout(60):
        while f"discard it {how}" not in driver.log:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("left", "seconds"),
    [(60.0, 5.0), (1.0, 1.1), (0.0, 0.1), (-0.1, 0.1), (-0.2, 0.05), (-0.3, 0.0), (-9.0, 0.0)],
)
def test_how_long_one_waits(left, seconds):
    """Until a moment after the deadline, however late the transaction is."""
    assert seconds == pytest.approx(time_for_abort(Deadline(left, lambda: 0.0)))
    assert time_for_abort(None) is None


class TestOnce:
    async def test_it_is_sent(self, session, driver):
        await abort(session, None)
        assert [{"abortTransaction": 1}] == driver.sent
        assert not session.in_transaction

    async def test_after_a_lost_answer(self, session, driver):
        """Once more, as it is."""
        driver.answers = [AutoReconnect("lost"), OK]
        await abort(session, None)
        assert [{"abortTransaction": 1}] * 2 == driver.sent

    @pytest.mark.parametrize("error", [AutoReconnect("lost"), gone()])
    async def test_errors_are_the_servers(self, session, driver, error):
        driver.answers = [error] * 2
        await abort(session, None)
        assert not session.in_transaction

    @pytest.mark.parametrize("error", [AutoReconnect("lost"), gone()])
    async def test_what_was_lost_before(self, session, driver, error):
        """It may begin the transaction when the server has said that there is none."""
        arrives = [True] * 3
        session._calls.may_arrive = lambda _: arrives.pop() if arrives else False
        driver.answers = [error] * 2 + [gone()] * 3
        await abort(session, None)
        assert session.transaction is None
        await is_discarded(driver, "over")
        assert not arrives

    async def test_a_closed_client(self, session, driver, monkeypatch):
        """That is told, and the session is in no transaction."""

        def closed():
            raise InvalidOperation("closed")

        monkeypatch.setattr(driver, "view", closed)
        with pytest.raises(InvalidOperation):
            await abort(session, None)

    @pytest.mark.parametrize("sent", [0, 1])
    async def test_a_client_that_was_closed_meanwhile(self, session, driver, monkeypatch, sent):
        """What it is aborted for has more to tell than that."""
        view = driver.view

        def closed():
            if len(driver.sent) < sent:
                return view()
            raise InvalidOperation("closed")

        async def work():
            try:
                raise error
            except LookupError:
                await abort(session, None)

        monkeypatch.setattr(driver, "view", closed)
        driver.answers = [AutoReconnect("lost")]
        error = LookupError()
        attach(error, Outcome.UNKNOWN, [])
        with pytest.raises(InvalidOperation) as caught:
            await work()
        assert sent == len(driver.sent)
        assert Outcome.UNKNOWN is outcome_of(caught.value)

    async def test_a_deadline_that_is_over(self, session, driver):
        """It has its own time."""
        async with deadline(0):
            await abort(session, 5.0)
        assert [ABORT] == driver.names

    async def test_not_answered_in_time(self, session, driver, monkeypatch):
        """It goes on without its caller, who waits no longer than that, as others would."""
        monkeypatch.setattr(attempt, "_AFTER_DEADLINE", 60.0)
        driver.answers = [None]
        async with asyncio.timeout(10):
            await abort(session, 0.5)
        assert session.transaction is None
        await is_discarded(driver, "over")
        assert [ABORT] * 2 == driver.names

    async def test_cancelled(self, session, driver):
        """It goes on, and the session without it."""
        driver.answers = [None]
        task = asyncio.create_task(abort(session, None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.transaction is None
        await is_discarded(driver, "over")
        assert [ABORT] * 2 == driver.names

    async def test_what_hooks_are_told(self, driver):
        """Of a transaction that is aborted nothing is in doubt."""
        events = []
        session = session_over(driver, hooks=[every_event(events.append)])
        session.start_transaction()
        driver.answers = [None]
        task = asyncio.create_task(abort(session, None))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        end = next(event for event in events if isinstance(event, OperationEnded))
        assert ("CancelledError", Outcome.NOT_APPLIED) == (end.error_class, end.outcome)

    async def test_what_is_under_way(self, session, driver):
        """It may come after the abort: that goes on until it has come, and the session without."""
        pending = [True, True, False]
        session._calls.has_pending = lambda _: pending.pop(0) if pending else False
        await abort(session, None)
        assert session.transaction is None
        await is_discarded(driver, "over")


class TestRouters:
    @pytest.fixture
    async def session(self, session, driver):
        """One whose transaction only the first of two routers knows."""
        driver.kind, driver.addresses, driver.pinned = ServerKind.MONGOS, [ADDRESS, OTHER], ADDRESS
        session._calls.router = ADDRESS
        return session

    async def test_another_one_says_that_there_is_none(self, session, driver):
        """The one that knows the transaction may have it still, and is asked until it answers."""
        driver.answers = [AutoReconnect("lost"), gone()] * 2
        await abort(session, None)
        assert session.transaction is None
        await is_discarded(driver, "over")
        assert [ADDRESS, OTHER] * 2 + [ADDRESS] == driver.asked

    async def test_it_says_itself_that_there_is_none(self, session, driver):
        driver.answers = [AutoReconnect("lost"), gone(), gone()]
        await abort(session, None)
        await is_discarded(driver, "over")
        assert [ADDRESS, OTHER, ADDRESS] == driver.asked

    async def test_another_one_was_asked_because_of_a_statement(self, session, driver):
        """The transaction is pinned no more then, and is known to one router all the same."""
        third = ("c", 1)
        driver.addresses, driver.pinned, session._calls.router = (
            [ADDRESS, OTHER, third],
            None,
            third,
        )
        driver.answers = [AutoReconnect("lost"), gone()]
        await abort(session, None)
        await is_discarded(driver, "over")
        assert [ADDRESS, OTHER, third] == driver.asked

    async def test_it_is_asked_twice(self, session, driver):
        """Where there is no other, the rest is the servers'."""
        driver.addresses = [ADDRESS]
        driver.answers = [AutoReconnect("lost")] * 2
        await abort(session, None)
        assert not session.in_transaction
        assert "taken" not in driver.log

    async def test_another_transaction_begins(self, session, driver):
        """That ends this one at the servers."""
        driver.answers = [AutoReconnect("lost"), gone()]
        await abort(session, None, runs_again=True)
        assert "taken" not in driver.log
        assert session.in_transaction, "until it begins: perhaps it never does"

    async def test_while_it_is_away(self, session, driver):
        """No other one is asked in its place, as those can't abort it."""
        driver.addresses = [OTHER]
        driver.answers = [gone()]
        await abort(session, None)
        looks = driver.looks
        async with asyncio.timeout(10):
            while driver.looks < looks + 3:
                await asyncio.sleep(0.001)
        assert [OTHER] == driver.asked
        driver.addresses = [OTHER, ADDRESS]
        await is_discarded(driver, "over")
        assert [OTHER, ADDRESS] == driver.asked

    async def test_while_nothing_was_sent(self, session, driver):
        """There is nothing to abort, and nothing is waited for."""
        driver.addresses = [OTHER]
        session._calls.has_begun_transaction = lambda _: False
        session._calls.transaction_options = None  # there may be none
        abort_for_certain(session, is_unheard=True)
        await is_discarded(driver, "over")
        assert [] == driver.asked

    async def test_who_waits_for_the_first_try_waits_for_no_router_that_was_lost(
        self, session, driver
    ):
        """Any other one may be asked first, as by the specification."""
        driver.addresses, driver.pinned = [OTHER, ADDRESS], None
        driver.answers = [gone()]
        await abort_for_certain(session)
        assert [OTHER] == driver.asked
        await is_discarded(driver, "over")
        assert [OTHER, ADDRESS] == driver.asked

    async def test_it_stays_away(self, session, driver, monkeypatch):
        """It has forgotten the transaction then, or never comes back."""
        monkeypatch.setattr(aborts, "_LOST_PATIENCE", 0.0)
        driver.addresses = [OTHER]
        abort_for_certain(session, is_unheard=True)
        await is_discarded(driver, "open")
        assert [] == driver.asked

    @pytest.mark.parametrize(("places", "most"), [(100, 4), (4, 1)])
    async def test_it_hangs(self, session, driver, places, most):
        """A few ask it at once, so that places are left for what goes to others."""
        session._write_path.coordinator().pending.size = places
        sessions = [session, *(Session(driver, session._write_path) for _ in range(5))]
        for each in sessions[1:]:
            each.start_transaction()
            each._calls.router = ADDRESS
        driver.answers = [None] * most
        for each in sessions:
            abort_for_certain(each, is_unheard=True)
        async with asyncio.timeout(60):
            while len(driver.asked) < most:
                await asyncio.sleep(0.001)
        looks = driver.looks
        async with asyncio.timeout(60):
            while driver.looks < looks + 30:
                await asyncio.sleep(0.001)
        assert [ADDRESS] * most == driver.asked
        for _ in range(most):
            driver.land(OK)
        async with asyncio.timeout(60):
            while session._write_path.aborting:
                await asyncio.sleep(0.001)
        assert [ADDRESS] * 6 == driver.asked


class TestForCertain:
    async def test_who_waits_for_the_first_try(self, session, driver):
        driver.answers = [OperationFailure("no", 8000)] * 2
        await abort_for_certain(session)
        assert [ABORT] == driver.names
        await is_discarded(driver, "over")
        assert [ABORT] * 3 == driver.names

    async def test_nothing_was_sent(self, session, driver):
        session._calls.has_begun_transaction = lambda _: False
        await abort_for_certain(session)
        await is_discarded(driver, "over")
        assert [] == driver.sent

    async def test_a_server_that_knows_nothing(self, session, driver):
        driver.answers = [gone()]
        await abort_for_certain(session)
        await is_discarded(driver, "over")
        assert [ABORT] == driver.names

    async def test_what_may_arrive_after_that(self, session, driver):
        """An abort that was sent before it may have come before it."""
        may_arrive = [True, False]
        session._calls.may_arrive = lambda _: may_arrive.pop(0)
        driver.answers = [gone()] * 2
        await abort_for_certain(session)
        await is_discarded(driver, "over")
        assert [ABORT] * 2 == driver.names

    async def test_without_a_server(self, session, driver, monkeypatch):
        """Nobody is asked before there is one."""
        view = driver.view
        monkeypatch.setattr(driver, "view", lambda: TopologyView({}, 0.015, object()))
        await abort_for_certain(session)
        assert [] == driver.names
        monkeypatch.setattr(driver, "view", view)
        await is_discarded(driver, "over")

    async def test_until_it_is_no_use(self, session, driver, monkeypatch):
        """A server gives it up by itself then."""
        monkeypatch.setattr(aborts, "_PATIENCE", 0.0)
        driver.answers = [OperationFailure("no", 8000)]
        await abort_for_certain(session)
        await is_discarded(driver, "open")

    async def test_a_client_that_is_closed(self, session, driver):
        """Its session is ended then, and the transaction with it."""
        driver.answers = [None]
        first = abort_for_certain(session)
        while not driver.sent:
            await asyncio.sleep(0)
        [aborting] = session._write_path.aborting
        aborting.leave()
        await first
        assert "discard it open" in driver.log
        assert not session._write_path.aborting
