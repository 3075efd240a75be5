"""What is in the air in a session."""

from types import SimpleNamespace

from pymongo import MongoClient, ReadPreference

from aioretry._drivers.engine.transactions import (
    Air,
    EngineSessionCalls,
    keep_apart,
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
