"""What shows that a server is well whose connection broke, by itself."""

import heapq
from dataclasses import dataclass, field

import pytest

from aioretry._commands.command import CommandLimits
from aioretry._drivers.engine.checkup import Checkups
from aioretry._drivers.port import ServerKind, ServerView

VIEW = ServerView(
    address=("host", 27017),
    kind=ServerKind.PRIMARY,
    max_wire_version=17,
    has_sessions=True,
    topology_version=None,
    round_trip_time=0.001,
    limits=CommandLimits(2**24, 48_000_000, 100_000),
    operation_count=lambda: 0,
    source=None,
)


class Loop:
    """An event loop whose clock the test moves."""

    def __init__(self):
        self.now = 0.0
        self.soon = []
        self.timers = []

    def time(self):
        return self.now

    def call_soon(self, call, *args):
        self.soon.append((call, args))

    call_soon_threadsafe = call_soon

    def call_later(self, seconds, call):
        timer = [self.now + seconds, len(self.timers), call]
        heapq.heappush(self.timers, timer)
        return timer

    def run(self, seconds=0.0):
        """Let time pass."""
        until = self.now + seconds
        while self.soon or (self.timers and self.timers[0][0] <= until):
            if self.soon:
                call, args = self.soon.pop(0)
                call(*args)
            else:
                self.now, _, call = heapq.heappop(self.timers)
                call()
        self.now = until


class Asker:
    """Asks when the test says so, and hears what the test says."""

    def __init__(self, loop):
        self.questions = []
        self.answers = [True]  # the last for ever
        self.is_closed = False
        self._loop = loop

    def ask(self, view, tell):
        assert VIEW is view
        if self.is_closed:
            raise RuntimeError("the pool is closed")
        self.questions.append(tell)

    def run(self):
        answer = self.answers.pop(0) if self.answers[1:] else self.answers[0]
        self._loop.call_soon(self.questions.pop(0), answer)


@dataclass
class Pool:
    """What is looked at of PyMongo's pool."""

    active_sockets: int = 1
    next_connection_id: int = 5


@dataclass
class Connection:
    """What is looked at of PyMongo's connection."""

    id: int = 1
    service_id: object = None


@dataclass
class Clinic:
    """Checkups, and all that is around them."""

    loop: Loop = field(default_factory=Loop)
    pool: Pool = field(default_factory=Pool)
    told: list = field(default_factory=list)

    def __post_init__(self):
        self.asker = Asker(self.loop)
        self.checkups = Checkups(self.loop, self.asker)

    def lose(self, name, connection=None):
        """Have a connection break."""

        def tell(*, is_server_well):
            self.told.append((name, is_server_well))

        self.checkups.add(VIEW, self.pool, connection or Connection(), tell)

    def hear(self, connection=None, sent=None):
        """Have the server answer a command."""
        sent = self.checkups.breaks if sent is None else sent
        self.checkups.hear(VIEW, connection or Connection(2), sent)
        self.loop.run()


@pytest.fixture
def clinic():
    return Clinic()


@pytest.fixture
def answers(clinic):
    """What the server answers when it is asked; the last for ever."""
    return clinic.asker.answers


class TestEvidence:
    def test_a_later_answer(self, clinic):
        """What answers a command that was sent after the break is well; nobody asks it."""
        clinic.lose("a")
        clinic.hear()
        assert [("a", True)] == clinic.told
        assert not clinic.checkups.cases
        clinic.loop.run(1)
        assert [] == clinic.asker.questions

    def test_not_an_answer_to_an_earlier_command(self, clinic):
        """It may have been given before the server was lost."""
        sent = clinic.checkups.breaks
        clinic.lose("a")
        clinic.hear(sent=sent)
        assert [] == clinic.told

    def test_not_over_a_later_connection(self, clinic):
        """It may be another server's, at the same address."""
        clinic.lose("a")
        clinic.hear(Connection(clinic.pool.next_connection_id))
        assert [] == clinic.told

    def test_not_of_another_service(self, clinic):
        """Behind a load balancer, each connection has a server of its own."""
        clinic.lose("a", Connection(1, "one"))
        clinic.hear(Connection(2, "other"))
        assert [] == clinic.told
        clinic.hear(Connection(2, "one"))
        assert [("a", True)] == clinic.told

    def test_only_of_breaks_before_it_was_sent(self, clinic):
        """An answer says nothing of what broke after its command was sent."""
        clinic.lose("a")
        sent = clinic.checkups.breaks
        clinic.lose("b")
        clinic.hear(sent=sent)
        assert [("a", True)] == clinic.told
        clinic.hear()
        assert [("a", True), ("b", True)] == clinic.told

    def test_of_a_server_that_nobody_doubts(self, clinic):
        """It is of no use."""
        clinic.hear()
        assert [] == clinic.told


class TestAsking:
    @pytest.mark.parametrize("is_well", [True, False])
    def test_at_once_if_nobody_else_waits(self, clinic, answers, is_well):
        """A write that is alone would wait in vain."""
        answers[0] = is_well
        clinic.pool.active_sockets = 0
        clinic.lose("a")
        clinic.asker.run()
        clinic.loop.run()
        assert [("a", is_well)] == clinic.told

    def test_as_soon_as_nobody_else_waits(self, clinic, answers):
        """When all connections of a server break, it is asked within milliseconds."""
        clinic.lose("a")
        clinic.loop.run(0.02)
        assert [] == clinic.asker.questions
        clinic.pool.active_sockets = 0
        clinic.loop.run(0.006)
        clinic.asker.run()
        clinic.loop.run()
        assert [("a", True)] == clinic.told

    def test_if_no_answer_comes(self, clinic, answers):
        """A server that keeps the others waiting is asked."""
        clinic.lose("a")
        clinic.loop.run(0.09)
        assert [] == clinic.asker.questions
        clinic.loop.run(0.02)
        assert 1 == len(clinic.asker.questions)

    def test_not_while_answers_come(self, clinic):
        """Each break has its own time to wait, however long there have been others."""
        for number in range(10):
            clinic.lose(number)
            clinic.loop.run(0.03)
            clinic.lose(-number)
            clinic.loop.run(0.03)
            clinic.hear(sent=clinic.checkups.breaks - 1)
        assert [] == clinic.asker.questions

    def test_once_for_all(self, clinic, answers):
        """Several that broke before the question share its answer."""
        clinic.lose("a")
        clinic.lose("b")
        clinic.loop.run(0.11)
        clinic.asker.run()
        clinic.loop.run()
        assert [("a", True), ("b", True)] == clinic.told
        assert [] == clinic.asker.questions

    def test_again_for_what_broke_meanwhile(self, clinic, answers):
        """The answer may be older than a break that came after the question."""
        answers[:] = [True, False]
        clinic.pool.active_sockets = 0
        clinic.lose("a")
        clinic.lose("b")
        clinic.asker.run()
        clinic.loop.run()
        assert [("a", True)] == clinic.told
        clinic.asker.run()
        clinic.loop.run()
        assert [("a", True), ("b", False)] == clinic.told

    def test_a_bad_answer_is_for_all(self, clinic, answers):
        """A server that is not well was not well for the later ones either."""
        answers[0] = False
        clinic.pool.active_sockets = 0
        clinic.lose("a")
        clinic.lose("b")
        clinic.asker.run()
        clinic.loop.run()
        assert [("a", False), ("b", False)] == clinic.told
        assert [] == clinic.asker.questions

    def test_an_answer_after_the_evidence(self, clinic, answers):
        """Nobody is told twice, and what broke since is not taken for answered."""
        clinic.pool.active_sockets = 0
        clinic.lose("a")
        clinic.hear()
        clinic.pool.active_sockets = 1
        clinic.lose("b")
        clinic.asker.run()
        clinic.loop.run()
        assert [("a", True)] == clinic.told
        clinic.hear()
        assert [("a", True), ("b", True)] == clinic.told

    def test_nobody_to_ask(self, clinic):
        """Where nobody can ask, PyMongo learns of it."""
        clinic.asker.is_closed = True
        clinic.pool.active_sockets = 0
        clinic.lose("a")
        clinic.loop.run()
        assert [("a", False)] == clinic.told
