"""Transactions over sessions of no driver: what is asked of them, in which order."""

import asyncio
from contextlib import nullcontext

import pytest
from pymongo.errors import OperationFailure

from aioretry._drivers.transaction_runs import Runs
from aioretry._retry.transactions import RETRY_LIMIT, TRANSIENT, TransactionRetries
from aioretry._writes.transactions import (
    TransactionalSession,
    TransactionCall,
    run_transaction,
)
from aioretry.deadlines import Deadline


class Calls:
    """What is asked of sessions, noted."""

    def __init__(self, log):
        self._log = log
        self._runs = Runs()

    def runs_of(self, session):
        return self._runs

    def renewed(self, session):
        self._log.append("renewed")
        return Session(self._log)

    def take_transaction(self, session):
        self._log.append("taken")
        session.in_transaction = False
        return "the driver's"

    def has_pending(self, session):
        return False

    def has_begun_transaction(self, session):
        return session.in_transaction

    def commit(self, session):
        return self._done(session, "commit")

    def abort(self, session):
        return self._done(session, "abort")

    def end(self, session):
        self._log.append("end")

    def _done(self, session, name):
        self._log.append(name)
        session.in_transaction = False
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class Path:
    """Aborts what is given up."""

    def __init__(self, log):
        self._log = log

    def abort(self, session):
        self._log.append(f"abort {session}")
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def deadline(self):
        return None


class Session(TransactionalSession):
    """A session, whose transactions begin at once or after an await."""

    def __init__(self, log, *, starts_later=False):
        self._calls = Calls(log)
        self._write_path = Path(log)
        self._starts_later = starts_later
        self.log = log
        self.in_transaction = False

    def start_transaction(self, *_):
        if self._starts_later:
            return self._start()
        self.log.append("start")
        self.in_transaction = True
        return nullcontext()

    async def _start(self):
        self._starts_later = False
        self.start_transaction()
        self._starts_later = True

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.log.append("left")


def call(session, callback, *, session_per_run=False):
    """A call of `with_transaction`."""

    def start():
        return made.session.start_transaction()

    made = TransactionCall(
        session,
        start,
        callback,
        TransactionRetries(lambda: 0.0),
        Deadline.after(RETRY_LIMIT),
        session_per_run,
    )
    return made


def transient():
    """An error after which everything is run again."""
    return OperationFailure("no such transaction", 251, {"errorLabels": [TRANSIENT]})


@pytest.mark.parametrize("starts_later", [False, True])
async def test_a_run(starts_later):
    """It is started, committed, and gives what the callback gives."""
    session = Session([], starts_later=starts_later)

    async def work(given):
        assert given is session
        assert given.in_transaction
        given.log.append("work")
        return "a value"

    assert "a value" == await call(session, work).run()
    assert ["start", "work", "commit"] == session.log


async def test_another_run():
    """After a transient error all of it is run again, in the same session."""
    session, errors = Session([]), [transient()]

    async def work(_):
        if errors:
            raise errors.pop()

    await call(session, work).run()
    assert ["start", "abort", "start", "commit"] == session.log


async def test_a_session_for_each_run():
    """What is left of a run has its own session, which is ended or given up for certain."""
    session, errors = Session([]), [transient()]

    async def work(_):
        if errors:
            raise errors.pop()

    await call(session, work, session_per_run=True).run()
    first = ["renewed", "start", "taken", "abort the driver's", "end"]
    assert [*first, "renewed", "start", "commit", "end"] == session.log


async def test_a_cancelled_callback():
    """Its transaction is taken from the session, and aborted beside it."""
    session = Session([])

    async def work(_):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await call(session, work).run()
    assert ["start", "taken", "abort the driver's"] == session.log


class TestClients:
    @pytest.mark.parametrize("is_awaited", [False, True])
    async def test_of_either_kind(self, is_awaited):
        """One gives a session, the other a coroutine that gives it."""
        session = Session([])

        class Client:
            def start_session(self):
                return self._later() if is_awaited else session

            async def _later(self):
                return session

        log = session.log

        async def work(given):
            return given.in_transaction

        assert await run_transaction(Client(), work)
        assert ["renewed", "start", "commit", "end", "left"] == log

    async def test_of_no_kind(self):
        """A driver's own session is refused before anything is begun."""

        class Plain:
            async def __aenter__(self):
                return self

            async def __aexit__(self, *_):
                pass

        class Client:
            def start_session(self):
                return Plain()

        with pytest.raises(TypeError, match="RetryClient, not Client"):
            await run_transaction(Client(), None)
