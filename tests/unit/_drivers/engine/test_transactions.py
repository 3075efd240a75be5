"""What is in the air in a session."""

from contextvars import copy_context
from types import SimpleNamespace

import pytest
from pymongo import MongoClient, ReadPreference
from pymongo.errors import ConfigurationError, InvalidOperation
from pymongo.hello import Hello
from pymongo.read_preferences import Primary
from pymongo.server_description import ServerDescription

from aioretry._drivers.engine.sessions import TransactionSession
from aioretry._drivers.engine.transactions import (
    Air,
    EngineSessionCalls,
    keep_apart,
    router_of,
    twin,
)
from aioretry._drivers.transaction_runs import Runs


def connection(*, active=True, closed=False):
    """A connection of PyMongo's, as far as it matters."""
    return SimpleNamespace(active=active, closed=closed)


class TestAir:
    def test_what_is_answered(self):
        """It is there until then, and leaves nothing behind."""
        air = Air()
        for _ in range(2):
            air.add(connection())
            air.add(connection())
            assert air.is_pending
            air.remove()
            assert air.is_pending
            air.remove()
            assert not air.is_pending
        assert not air._commands

    def test_where_it_is_heard(self):
        """An answer is that to what was sent from the same place."""
        air, used, lost = Air(), connection(), connection(closed=True)
        air.add(used)
        air.add(lost, "elsewhere")
        air.remove("elsewhere")
        assert (True, False) == (air.is_pending, air.has_lost)

    def test_what_begins(self):
        """An answer tells whether it is that to what was to begin the transaction."""
        air = Air()
        air.add(connection(), begins=True)
        air.add(connection(), "elsewhere")
        assert not air.remove("elsewhere")
        assert air.remove()

    def test_what_was_lost(self):
        """It is not pending, and may arrive."""
        air = Air()
        air.add(connection(closed=True))
        assert (False, True) == (air.is_pending, air.has_lost)

    def test_of_what_was_taken_before(self):
        """Who hears of it has the session still."""
        before = Air()
        before.add(connection())
        air = Air(before)
        air.remove()
        assert not before.is_pending
        assert not air.is_pending

    def test_of_many_that_were_taken(self):
        """Those that nothing can be heard of any more are forgotten."""
        first = air = Air()
        first.add(connection(), "early")
        for _ in range(5_000):
            air = Air(air)
            air.add(connection(closed=True), "lost")
        air.remove("early")
        assert not first.is_pending
        assert air._before is first


class Calls(EngineSessionCalls):
    """Of PyMongo's sessions themselves."""

    def own(self, session):
        return session


def test_the_latest_command():
    """It is known in a transaction, and not kept for a session's whole life where there is none."""
    given = SimpleNamespace(supports_sessions=True, logical_session_timeout_minutes=30)
    with (
        MongoClient(connect=False, serverSelectionTimeoutMS=1) as client,
        client.start_session() as session,
    ):
        keep_apart(session, Runs())

        def send(command):
            session._apply_to(command, False, ReadPreference.PRIMARY, given)

        send({"insert": "things"})
        assert {} == Calls().latest(session)
        with session.start_transaction():
            send({"update": "things"})
            assert "things" == Calls().latest(session)["update"]
            session._transaction.reset()


class TestGoingOn:
    """The statements of a transaction after the first one."""

    given = SimpleNamespace(
        supports_sessions=True, logical_session_timeout_minutes=30, address=("a", 1)
    )

    @pytest.fixture
    def session(self):
        with (
            MongoClient("mongodb://a:1", connect=False, serverSelectionTimeoutMS=1) as client,
            client.start_session() as session,
        ):
            keep_apart(session, Runs())
            session.start_transaction()
            session._apply_to({"insert": "things"}, False, ReadPreference.PRIMARY, self.given)
            session._transaction.set_in_progress()
            yield session
            session._transaction.reset()

    @pytest.mark.parametrize("preference", [ReadPreference.PRIMARY, Primary()])
    def test_as_the_drivers_own(self, session, preference):
        ours, own = {"update": "things"}, {"update": "things"}
        session._apply_to(ours, False, preference, self.given)
        type(session)._apply_to(session, own, False, preference, self.given)
        assert own == ours
        assert list(own) == list(ours)
        assert {"update", "lsid", "txnNumber", "autocommit"} == ours.keys()

    def test_another_preference(self, session):
        with pytest.raises(InvalidOperation, match="read preference in a transaction"):
            session._apply_to({"find": "things"}, False, ReadPreference.NEAREST, self.given)

    def test_a_server_that_says_that_it_has_no_sessions(self, session, monkeypatch):
        hello = {"ok": 1, "isWritablePrimary": True, "setName": "s", "maxWireVersion": 21}
        known = ServerDescription(("a", 1), Hello(hello))
        topology = SimpleNamespace(server_descriptions=lambda: {("a", 1): known})
        monkeypatch.setattr(type(session.client), "topology_description", topology)
        given = SimpleNamespace(
            supports_sessions=False, logical_session_timeout_minutes=None, address=("a", 1)
        )
        with pytest.raises(ConfigurationError, match="Sessions are not supported"):
            session._apply_to({"update": "things"}, False, ReadPreference.PRIMARY, given)


@pytest.fixture
def begun():
    """PyMongo's session with a transaction that has begun, and ours of it."""
    with MongoClient(connect=False) as client, client.start_session() as session:
        keep_apart(session, Runs())
        session.start_transaction()
        session._transaction.set_in_progress()
        yield session, TransactionSession(None, session)
        session._transaction.set_starting()
        session.abort_transaction()


class TestRouter:
    def test_it_is_the_first_one(self, begun):
        """What was sent to another one after that has found nothing there."""
        session, ours = begun
        for address in (("a", 1), ("b", 1)):
            ours.pin(address)
            ours.unpin()
        assert ("a", 1) == router_of(session._transaction)
        ours.pin(("b", 1))
        assert ("a", 1) == router_of(twin(session)._transaction)

    def test_nothing_was_sent_there(self, begun):
        """It does not know the transaction then."""
        session, ours = begun
        session._transaction.set_starting()
        ours.pin(("a", 1))
        ours.unpin()
        assert router_of(session._transaction) is None

    def test_a_call_of_a_run_that_has_ended(self, begun):
        """It begins no transaction, and makes nobody forget."""
        session, ours = begun
        ours.pin(("a", 1))
        ours.unpin()
        runs = session._start_retryable_write.runs
        with runs.run():
            straggler = copy_context()
        with pytest.raises(InvalidOperation):
            straggler.run(session._start_retryable_write)
        assert ("a", 1) == router_of(session._transaction)


def test_the_router_of_the_transaction_before():
    """It knows nothing of the next one, whoever began that."""
    with MongoClient(connect=False) as client, client.start_session() as session:
        keep_apart(session, Runs())
        session.start_transaction()
        transaction = session._transaction
        transaction.pinned_address = "a", 1
        transaction.router, transaction.pinned_address = router_of(transaction), None
        assert ("a", 1) == router_of(transaction)
        session.abort_transaction()
        session.start_transaction()
        assert router_of(transaction) is None
        transaction.pinned_address = "b", 1  # by PyMongo itself
        assert ("b", 1) == router_of(transaction)
        session.abort_transaction()
