"""What the writes of a client share: one coordinator a loop, deadlines and leases."""

import asyncio
from types import SimpleNamespace

import pymongo
import pytest
from bson.binary import Binary
from bson.codec_options import CodecOptions
from pymongo.errors import InvalidOperation
from pymongo.write_concern import WriteConcern

from aioretry import Outcome, deadline, outcome_of
from aioretry._commands.command import CommandLimits
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import Policy, ServerKind, ServerView, ThreadCounts, TopologyView
from aioretry._retry.sessions import LastingLease, SessionLease
from aioretry._writes.context import WritePath, settled
from aioretry.deadlines import current_deadline

LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
SERVER = ServerView(("a", 1), ServerKind.PRIMARY, 17, True, None, 0.0, LIMITS, lambda: 0, object())
TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())


class Driver:
    """Tells what it was asked for, and has no room for any attempt."""

    def view(self):
        return TopologyView({SERVER.address: SERVER}, 0.015, SERVER.source)

    def attempt(self, loop, call, receiver):
        return False

    def counts(self):
        return ThreadCounts(4, 3, 2, 1)

    def session(self):
        return "implicit"

    def user_session(self, session):
        return "user's", session

    def session_of(self, session_id):
        return "of", session_id


class Client:
    """A client whose event loop can be replaced."""

    def __init__(self, loop):
        self.loop = loop

    def get_io_loop(self):
        return self.loop


class Session:
    """What a user has started."""


def path(loop=None, timeout=None):
    """The path of a client on a loop."""
    return WritePath(
        Driver(),
        Policy(),
        Client(loop),
        server_selection_timeout=30.0,
        timeout=timeout,
        encrypts=False,
        is_load_balanced=False,
        hooks=(),
        most_under_way=100,
        most_waiting=100,
    )


class Landed:
    """Who waits for an attempt."""

    def __init__(self):
        self.results = []

    def land(self, result):
        self.results.append(result)


def launch(coordinator, receiver):
    """Begin an attempt."""
    lease = SessionLease(lambda: None)
    execution = coordinator.execution(Insert({"_id": 7}).command(TARGET), lease, None)
    coordinator.launch(execution, receiver)


class TestCoordinator:
    async def test_one_for_a_loop(self):
        """It is made once, with the path's own rule for deadlines."""
        loop = asyncio.get_running_loop()
        given = path(loop, timeout=5.0)
        coordinator = given.coordinator()
        assert coordinator is given.coordinator()
        assert loop is coordinator.loop
        assert 0 < coordinator.deadline(None).remaining() <= 5.0

    async def test_another_loop_is_running(self):
        """Nothing is sent, and the error says so, also if there is a coordinator already.

        It has the words that asyncio has for it, and what to do about it in pytest.
        """
        other = SimpleNamespace()
        given = path(asyncio.get_running_loop())
        given.coordinator()
        given._client.loop = other
        with pytest.raises(InvalidOperation, match="another event loop") as caught:
            given.coordinator()
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
        for searched in ("attached to a different loop", "loop_scope", "mongo_client"):
            assert searched in str(caught.value)

    def test_the_loop_is_replaced(self):
        """Where none is running the client's counts; a new one gets a coordinator of its own."""
        first, second = (asyncio.new_event_loop() for _ in range(2))
        given = path(first)
        before = given.coordinator()
        given._client.loop = second
        after = given.coordinator()
        assert [first, second] == [before.loop, after.loop]
        first.close()
        second.close()


async def test_thread_counts():
    """Attempts that wait are queued, beside those that the driver knows of."""
    given = path(asyncio.get_running_loop())
    assert ThreadCounts(4, 3, 2, 1) == given.thread_counts()
    coordinator = given.coordinator()
    for _ in range(5):
        launch(coordinator, Landed())
    assert ThreadCounts(4, 3, 7, 1) == given.thread_counts()


class TestClose:
    async def test_in_a_later_turn_and_in_nobodys_context(self):
        """It may be called from any thread; no deadline around the call is that of the end."""
        given = path(asyncio.get_running_loop())
        given.close(2.0)  # nothing was ever sent
        coordinator, receiver, found = given.coordinator(), Landed(), []
        launch(coordinator, receiver)
        close = coordinator.close
        coordinator.close = lambda patience: (
            found.append((patience, current_deadline())),
            close(patience),
        )
        with deadline(60):
            given.close(2.0)
        assert [] == receiver.results
        while not found:
            await asyncio.sleep(0)
        assert [(2.0, None)] == found
        assert [InvalidOperation] == [type(result.error) for result in receiver.results]

    def test_after_its_loop(self):
        """A loop that is closed has nobody who waits."""
        loop = asyncio.new_event_loop()
        given = path(loop)
        given.coordinator()
        loop.close()
        given.close(2.0)


@pytest.mark.parametrize(
    ("seconds", "surrounding", "pymongos", "timeout", "expected"),
    [
        (None, None, None, None, None),
        (None, None, None, 5, 5),
        (None, 9, None, 5, 9),  # it takes the place of the client's, nearer or not
        (None, None, 9, 5, 9),
        (None, 9, 7, 5, 7),
        (3, None, None, 5, 3),
        (8, None, None, 5, 8),
        (8, 9, None, 5, 8),
        (8, 7, None, 5, 7),
        (8, None, 7, None, 7),
        (0, 7, None, 5, 0),
    ],
)
def test_deadline(seconds, surrounding, pymongos, timeout, expected):
    """The nearest that is given counts; the client's own only where none is."""
    with deadline(surrounding), pymongo.timeout(pymongos):
        found = path(timeout=timeout).deadline(seconds)
    assert expected == (None if found is None else pytest.approx(found.remaining(), abs=0.5))


class TestLeases:
    def test_whose_session(self):
        """The driver's, the user's, or one of a chosen id, each opened when it is needed."""
        given, session = path(), Session()
        session_id = Binary(bytes(16), 4)
        assert "implicit" == given.lease().carry()
        assert ("user's", session) == given.lease(session).carry()
        assert ("of", session_id) == given.lease_of(session_id).carry()
        assert "implicit" == given.lasting_lease().carry()

    def test_for_how_long(self):
        """One for several writes outlives each; the others end with the first."""
        given = path()
        assert [LastingLease, SessionLease] == [type(given.lasting_lease()), type(given.lease())]

    def test_turns(self):
        """Who shares a session waits for the others, and for nobody else."""
        given, session, other = path(), Session(), Session()
        motors = SimpleNamespace(delegate=session)
        turn = given.lease(session).turn
        assert turn is not None
        assert turn is given.lease(motors).turn is given.lease(session).turn
        assert turn is not given.lease(other).turn
        assert (None, None) == (given.lease().turn, given.lease_of(Binary(bytes(16), 4)).turn)

    @pytest.mark.parametrize("what", ["session", 7, [], {}])
    def test_what_is_no_session(self, what):
        """It has no turn; the driver says what it is when it is needed."""
        lease = path().lease(what)
        assert (None, ("user's", what)) == (lease.turn, lease.carry())


async def test_what_one_driver_gives_at_once():
    """The other gives it when it is awaited."""
    assert ["given", "given"] == [await settled("given"), await settled(asyncio.sleep(0, "given"))]
