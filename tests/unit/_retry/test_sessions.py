"""Leases of sessions, and numbers."""

import pytest
from pymongo.errors import InvalidOperation

from aioretry._retry.sessions import CommandNumber, EndingLease, SessionLease


class Session:
    """A server session that tells how it ended."""

    def __init__(self):
        self.ended = []
        self.number = 0

    def next_number(self):
        self.number += 1
        return self.number

    def close(self, *, discard):
        self.ended.append(discard)


class TestLease:
    def test_begins_with_the_first_attempt(self):
        """Whoever sends nothing holds no session."""
        opened = []
        lease = SessionLease(lambda: opened.append(1) or Session())
        lease.finish(discard=False)
        assert [] == opened

    def test_ends_with_the_last_thread(self):
        """The session comes back when the operation and every thread have ended, once."""
        session = Session()
        lease = SessionLease(lambda: session)
        lease.carry()
        lease.carry()
        lease.drop()
        lease.finish(discard=False)
        assert [] == session.ended
        lease.drop()
        lease.finish(discard=True)
        assert [False] == session.ended

    def test_a_session_in_doubt_is_discarded(self):
        """What was in doubt is not pooled."""
        session = Session()
        lease = SessionLease(lambda: session)
        lease.carry()
        lease.finish(discard=True)
        lease.drop()
        assert [True] == session.ended

    def test_numbers_are_taken_once_a_command(self):
        """A command keeps its number; the next command gets a larger one."""
        session = Session()
        first, second = CommandNumber(), CommandNumber()
        assert [1, 1, 2, 1] == [
            first.take(session),
            first.take(session),
            second.take(session),
            first.take(session),
        ]

    def test_nothing_begins_after_the_end(self):
        """An attempt that comes too late gets no session, so that nothing is sent."""
        lease = SessionLease(Session)
        lease.finish(discard=False)
        with pytest.raises(InvalidOperation, match="has ended"):
            lease.carry()

    def test_a_number_belongs_to_its_session(self):
        """A retry on another session would be executed again: it is refused."""
        number = CommandNumber()
        number.take(Session())
        with pytest.raises(InvalidOperation, match="another session"):
            number.take(Session())


class TestEnding:
    def test_a_doubt_is_told_at_once(self):
        """Although an attempt still has the session; what comes of that is told, too."""
        session = Session()
        lease = EndingLease(session)
        lease.carry()
        lease.finish(discard=True)
        assert [True] == session.ended
        lease.settle()
        lease.drop()
        assert False is session.ended[-1]

    def test_it_is_asked_for_again(self):
        session = Session()
        lease = EndingLease(session)
        for in_doubt in (True, False):
            lease.carry()
            lease.drop()
            lease.finish(discard=in_doubt)
        assert [True, False] == session.ended
