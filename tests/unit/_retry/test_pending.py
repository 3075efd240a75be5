"""Attempts under way, over a scripted driver and a clock of the test's own."""

import contextvars
import gc
import weakref
from dataclasses import replace

import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import AutoReconnect, InvalidOperation, WaitQueueTimeoutError
from pymongo.write_concern import WriteConcern

from aioretry._commands.command import CommandLimits
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import (
    Expired,
    Failed,
    NoRoom,
    NoServer,
    Replied,
    ServerKind,
    ServerView,
    TopologyView,
    Unprepared,
)
from aioretry._retry.attempt import Ineligible, PendingAttempt
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.lookout import Lookout
from aioretry._retry.pending import PendingAttempts
from aioretry._retry.sessions import SessionLease
from aioretry.deadlines import Deadline

A, B, C = ("a", 1), ("b", 1), ("c", 1)
NO_TRANSACTION = object()
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
LOOK_EVERY = 0.05


def server(address=A, process=None):
    """A server that takes writes; with a process id, if one is given."""
    version = None if process is None else (process, 0)
    return ServerView(
        address, ServerKind.PRIMARY, 17, True, version, 0.0, LIMITS, lambda: 0, object()
    )


class LeaseOfTransaction(SessionLease):
    """The lease of a statement, if it is in a transaction."""

    pinned = None
    has_begun = True

    def pin(self, address):
        return False


class Timer:
    """Something that a loop calls when its time has come."""

    def __init__(self, loop, when, callback, args):
        self.loop, self.at = loop, when
        self.call = lambda: callback(*args)

    def when(self):
        return self.at

    def cancel(self):
        if self in self.loop.timers:
            self.loop.timers.remove(self)


class Loop:
    """An event loop whose time passes when it is told to."""

    def __init__(self):
        self.now = 100.0
        self.timers = []

    def time(self):
        return self.now

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self.now + delay, callback, *args)

    def call_at(self, when, callback, *args, context=None):
        timer = Timer(self, when, callback, args)
        self.timers.append(timer)
        return timer

    def call_soon(self, callback, *args, context=None):
        self.call_later(0, callback, *args, context=context)

    def pass_by(self, seconds):
        """Let time pass, and call what is due in it."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.at <= end]:
            timer = min(due, key=lambda one: one.at)
            self.timers.remove(timer)
            self.now = timer.at
            timer.call()
        self.now = end


class Driver:
    """Knows the servers that it is told of, and lets so many attempts be abandoned."""

    def __init__(self, *servers):
        self.calls = []
        self.abandoned = []
        self.bound = 100
        self.full = set()
        self.no_threads = False
        self.views = 0
        self.error = None
        self.know(*servers)

    def know(self, *servers):
        self.topology = TopologyView({one.address: one for one in servers}, 0.015, object())

    def view(self):
        self.views += 1
        if self.error is not None:
            raise self.error
        return self.topology

    def attempt(self, loop, call, receiver):
        if call.server.address in self.full or (self.no_threads and call.command.may_block):
            return False
        self.calls.append((call, receiver.land))
        self.sent()
        return True

    def sent(self):
        pass

    def time_out(self, call):
        return False  # the attempt ends by itself

    def abandon(self, call):
        if len(self.abandoned) >= self.bound:
            return False
        self.abandoned.append(call)
        return True


class Sky:
    """The attempts under way, and what they end with."""

    def __init__(self, *servers, size=100, patience=None):
        self.loop = Loop()
        self.driver = Driver(*servers)
        watch = Lookout(self.driver, self.loop)
        self.pending = PendingAttempts(self.loop, watch, size, patience)
        self.results = []
        self.numbering = Numbering.IF_SUPPORTED
        self.deprioritized = frozenset()
        self.told = lambda: None

    def land(self, result):
        self.results.append(result)
        self.told()

    def begin(self, deadline=None, *, may_block=False, pinned=NO_TRANSACTION):
        """Begin an attempt, or have it wait; of a transaction, if it says where that is pinned."""
        self.lease = lease = LeaseOfTransaction(lambda: None)
        command = Insert({"_id": 7}).command(TARGET)
        command.may_block = may_block
        self.execution = Execution(command, lease, deadline, self.numbering)
        self.execution.deprioritized = self.deprioritized
        if pinned is not NO_TRANSACTION:
            self.execution.in_transaction, lease.pinned = True, pinned
        attempt = PendingAttempt(self.driver, self.loop, self.execution, self, self.pending)
        self.pending.add(attempt)
        attempt.register()
        return attempt

    def launch(self, at=A, *, sent=True, numbered=True, deadline=None):
        """Begin an attempt, and let it wait for its server, if it is to get so far, and send."""
        attempt = self.begin(deadline)
        call, self.answer = self.driver.calls[-1]
        if at is not None:
            call.server = self.driver.topology.writable[at]
            call.may_have_transaction_id, call.is_waiting = numbered, True
        if sent:
            assert call.token.begin_sending()
        return attempt

    def seconds_until_the_end(self, most=60.0):
        """Let time pass until an attempt ends, and return how much."""
        started = self.loop.now
        while not self.results:
            assert self.loop.now - started < most, "it never ended"
            self.loop.pass_by(0.01)
        return self.loop.now - started


APPLIED = Replied({"ok": 1, "n": 1})


class OneConnection(Driver):
    """Has room for one attempt at a time."""

    is_used = False

    def attempt(self, loop, call, receiver):
        if self.is_used:
            return False
        self.is_used = True
        return super().attempt(loop, call, receiver)

    def answer(self):
        """Answer the one under way."""
        self.is_used = False
        call, land = self.calls[-1]
        land(APPLIED)
        return call.command


def test_those_of_another_kind_have_their_turn():
    """Whoever is done lets others try, too, and not only those of its own queue."""
    sky = Sky(server(A))
    sky.driver = driver = OneConnection(server(A))
    watch, sharing = Lookout(driver, sky.loop), []
    queues = [PendingAttempts(sky.loop, watch, 100, sharing=sharing) for _ in range(2)]
    names = {}
    for queue, name in zip(queues, ("write", "read"), strict=True):
        sky.pending = queue
        for number in range(3):
            sky.begin()
            names[id(sky.execution.command)] = f"{name} {number}"
    answered = [names[id(driver.answer())] for _ in range(6)]
    assert ["write 0", "write 1", "read 0", "write 2", "read 1", "read 2"] == answered
    assert [0, 0] == [queue.waiting for queue in queues]


class TestGivenUp:
    @pytest.mark.parametrize("numbered", [True, False])
    def test_replaced_by_another_server(self, numbered):
        """After a short grace it ends as a network error that may have been applied."""
        sky = Sky(server(A))
        sky.launch(numbered=numbered)
        sky.loop.pass_by(10)
        assert [] == sky.results
        sky.driver.know(server(B))
        assert 0.1 <= sky.seconds_until_the_end() <= 0.1 + 2 * LOOK_EVERY + 0.02
        (result,) = sky.results
        assert (Failed, numbered) == (type(result), sky.execution.has_transaction_id)
        assert isinstance(result.error, AutoReconnect)
        assert "a:1: the server stopped taking writes" in str(result.error)
        (record,) = sky.execution.attempts
        assert (A, True, result.error) == (record.address, record.sent, record.error)
        assert [sky.driver.calls[0][0]] == sky.driver.abandoned

    def test_while_there_is_no_other_server(self):
        """It has more time for its answer, but not without end."""
        sky = Sky(server(A))
        sky.launch()
        sky.driver.know()
        assert 1.0 <= sky.seconds_until_the_end() <= 1.0 + 2 * LOOK_EVERY + 0.02
        assert isinstance(sky.results[0], Failed)

    def test_without_a_number_only_if_there_is_another_server(self):
        """What can't be sent again waits as long as nobody else takes writes."""
        sky = Sky(server(A))
        sky.launch(numbered=False)
        sky.driver.know()
        sky.loop.pass_by(30)
        assert [] == sky.results
        sky.driver.know(server(B))
        assert sky.seconds_until_the_end() <= 2 * LOOK_EVERY + 0.02

    def test_another_process_under_the_same_address(self):
        """A server that was started anew does not answer what its predecessor was asked."""
        sky = Sky(server(A, process=1))
        sky.launch()
        sky.driver.know(server(A, process=2))
        sky.seconds_until_the_end()
        assert isinstance(sky.results[0], Failed)

    @pytest.mark.parametrize(("before", "after"), [(1, 1), (None, 2), (1, None)])
    def test_a_server_that_only_told_news_is_waited_for(self, before, after):
        """Another description of the same process, or of one without an id, is no reason."""
        sky = Sky(server(A, process=before))
        sky.launch()
        for _ in range(5):
            sky.driver.know(server(A, process=after))
            sky.loop.pass_by(10)
        assert [] == sky.results

    def test_one_of_two_routers(self):
        """Only the attempts at the router that is unknown now end."""
        sky = Sky(server(A), server(B))
        sky.launch(A)
        at_a = sky.execution
        sky.launch(B)
        sky.driver.know(server(B))
        sky.loop.pass_by(30)
        assert [A] == [record.address for record in at_a.attempts]
        assert ([], 1) == (sky.execution.attempts, len(sky.results))

    def test_before_it_was_sent(self):
        """It ends at once as if no server had been there, and is not sent any more."""
        sky = Sky(server(A))
        sky.launch(sent=False)
        sky.driver.know(server(B))
        sky.seconds_until_the_end()
        (result,) = sky.results
        assert (NoServer, False) == (type(result), sky.execution.attempts[0].sent)
        assert not sky.driver.calls[0][0].token.begin_sending()

    def test_with_no_server_yet(self):
        """What waits for a thread does not wait for its server yet."""
        sky = Sky(server(A))
        sky.launch(at=None, sent=False)
        sky.driver.know(server(B))
        sky.loop.pass_by(30)
        assert [] == sky.results
        assert sky.driver.calls[0][0].token.begin_sending()

    def test_while_it_is_prepared(self):
        """It knows its server already, but its number and its connection are its thread's yet."""
        sky = Sky(server(A))
        sky.launch(sent=False)
        call = sky.driver.calls[0][0]
        call.is_waiting = False
        sky.driver.know(server(B))
        sky.loop.pass_by(LOOK_EVERY * 1.1)
        assert [] == sky.results
        call.is_waiting = True
        sky.seconds_until_the_end()
        assert isinstance(sky.results[0], NoServer)

    def test_one_that_began_with_the_view_before(self):
        """An attempt that tells its server only after the first look at the news is met, too."""
        sky = Sky(server(A))
        sky.launch(at=None, sent=False)
        old = sky.driver.topology.writable[A]
        sky.driver.know(server(B))
        sky.loop.pass_by(LOOK_EVERY * 1.1)
        call = sky.driver.calls[0][0]
        call.server, call.may_have_transaction_id, call.is_waiting = old, True, True
        assert call.token.begin_sending()
        sky.seconds_until_the_end(1)

    def test_doubts_begin_anew(self):
        """A server that is back before the grace is over has all of it again the next time."""
        sky = Sky(server(A))
        sky.launch()
        for _ in range(10):
            sky.driver.know()
            sky.loop.pass_by(0.8)
            sky.driver.know(server(A))
            sky.loop.pass_by(LOOK_EVERY * 3)
        assert [] == sky.results
        sky.driver.know()
        assert sky.seconds_until_the_end() >= 1.0


class TestSlots:
    """So many are under way at once."""

    def test_others_wait(self):
        """They are sent in their order, one for each that lands, to a server that is there then."""
        sky = Sky(server(A), size=2)
        for _ in range(4):
            sky.begin()
        assert (2, 2) == (len(sky.driver.calls), sky.pending.waiting)
        sky.driver.know(server(B))
        _call, land = sky.driver.calls[0]
        land(APPLIED)
        assert (3, 1) == (len(sky.driver.calls), sky.pending.waiting)
        assert B == sky.driver.calls[2][0].server.address
        for _call, land in sky.driver.calls[1:]:
            land(APPLIED)
        _call, land = sky.driver.calls[3]
        land(APPLIED)
        assert [Replied] * 4 == [type(result) for result in sky.results]
        sky.loop.pass_by(1)
        assert [] == sky.loop.timers

    def test_the_one_that_has_landed_is_told_first(self):
        """What it gives back is there for the next one."""
        sky = Sky(server(A), size=1)
        sky.begin()
        sky.begin()
        calls_at_the_end = []
        sky.told = lambda: calls_at_the_end.append(len(sky.driver.calls))
        _call, land = sky.driver.calls[0]
        land(APPLIED)
        assert ([1], 2) == (calls_at_the_end, len(sky.driver.calls))

    def test_cancelled_while_it_waits(self):
        """It is never sent, and takes nobody's place."""
        sky = Sky(server(A), size=1)
        sky.begin()
        sky.begin().disown(KeyError())
        sky.begin()
        _call, land = sky.driver.calls[0]
        land(APPLIED)
        assert (2, 0) == (len(sky.driver.calls), sky.pending.waiting)

    def test_its_deadline_while_it_waits(self):
        """It ends by its deadline, unsent."""
        sky = Sky(server(A), size=1)
        sky.begin()
        sky.begin(Deadline.after(0))
        sky.loop.pass_by(1)
        assert [Expired()] == sky.results
        assert [] == sky.execution.attempts

    def test_as_long_as_the_driver_lets_them_wait(self):
        """Each is refused when it has waited so long; what is under way is the driver's."""
        sky = Sky(server(), size=1, patience=0.3)
        sky.begin()
        sky.begin()
        sky.loop.pass_by(0.2)
        sky.begin()
        assert [] == sky.results
        sky.loop.pass_by(0.2)
        [result] = sky.results
        assert (WaitQueueTimeoutError, False) == (type(result.error), result.sent)
        assert 1 == sky.pending.waiting
        sky.loop.pass_by(0.2)
        assert (2, 0) == (len(sky.results), sky.pending.waiting)

    def test_no_server_any_more(self):
        """Each that waited ends as if no server had been there, in turns of the loop."""
        sky = Sky(server(A), size=1)
        for _ in range(3):
            sky.begin()
        sky.driver.know()
        _call, land = sky.driver.calls[0]
        land(APPLIED)
        sky.loop.pass_by(0.01)
        assert [Replied, NoServer, NoServer] == [type(result) for result in sky.results]
        assert (1, 0) == (len(sky.driver.calls), sky.pending.waiting)

    @pytest.mark.parametrize(
        ("error", "result"), [(InvalidOperation(), NoServer), (ZeroDivisionError(), Unprepared)]
    )
    def test_a_view_that_raises(self, error, result):
        """A closed client's, or the user's server selector's."""
        sky = Sky(server(A), size=1)
        sky.begin()
        sky.begin()
        sky.driver.error = error
        _call, land = sky.driver.calls[0]
        land(APPLIED)
        sky.loop.pass_by(0.01)
        assert [Replied, result] == [type(each) for each in sky.results]

    def test_a_retry_at_a_server_that_knows_no_ids(self):
        """It is not sent."""
        sky = Sky(replace(server(A), kind=ServerKind.STANDALONE))
        sky.numbering = Numbering.REQUIRED
        sky.begin()
        sky.loop.pass_by(0.01)
        assert ([Ineligible()], []) == (sky.results, sky.driver.calls)

    def test_closed_while_it_waits(self):
        """It ends now."""
        sky = Sky(server(A), size=1)
        sky.begin()
        sky.begin()
        sky.pending.close(2.0)
        assert [InvalidOperation] * 2 == [type(each.error) for each in sky.results]

    def test_its_context(self):
        """What waited is sent in the context of its own caller."""
        name = contextvars.ContextVar("name")
        sky = Sky(server(A), size=1)
        sky.begin()
        contextvars.Context().run(lambda: (name.set("second"), sky.begin()))
        sent_in = []
        sky.driver.sent = lambda: sent_in.append(name.get(None))
        _call, land = sky.driver.calls[0]
        land(APPLIED)
        assert ["second"] == sent_in


class TestBound:
    def test_waits_while_too_many_are_abandoned(self):
        """At the bound an attempt goes on waiting, until there is room or its answer comes."""
        sky = Sky(server(A))
        sky.driver.bound = 1
        for _ in range(3):
            sky.launch()
        (_call, land), *_ = reversed(sky.driver.calls)
        sky.driver.know(server(B))
        sky.loop.pass_by(30)
        assert 1 == len(sky.results)
        sky.driver.bound = 2
        sky.loop.pass_by(LOOK_EVERY)
        assert [Failed] * 2 == [type(result) for result in sky.results]
        land(APPLIED)
        assert isinstance(sky.results[2], Replied)

    def test_what_is_not_sent_waits_for_nothing(self):
        """It needs no room: nothing of it is in the air."""
        sky = Sky(server(A))
        sky.driver.bound = 0
        sky.launch(sent=False)
        sky.driver.know(server(B))
        sky.seconds_until_the_end()
        assert isinstance(sky.results[0], NoServer)


class TestAfterwards:
    def test_a_late_answer_is_dropped(self):
        """What an attempt that was given up is answered changes nothing."""
        sky = Sky(server(A))
        sky.launch()
        sky.driver.know(server(B))
        sky.seconds_until_the_end()
        history = list(sky.execution.attempts)
        sky.answer(APPLIED)
        assert (1, history) == (len(sky.results), sky.execution.attempts)

    def test_nothing_is_scheduled_while_nothing_is_under_way(self):
        """Without attempts nobody looks at the topology."""
        sky = Sky(server(A))
        assert [] == sky.loop.timers
        for _ in range(3):
            sky.launch()
            sky.loop.pass_by(1)
            assert 1 == len(sky.loop.timers)
            sky.answer(APPLIED)
            sky.loop.pass_by(LOOK_EVERY)
            assert [] == sky.loop.timers
            looks = sky.driver.views
            sky.loop.pass_by(60)
            assert looks == sky.driver.views
        assert "under_way=0 waiting=0 doubted=0" in repr(sky.pending)

    def test_a_selector_that_raises(self):
        """What the user's server selector raises ends neither the looking nor an attempt."""
        sky = Sky(server(A))
        sky.launch()
        sky.driver.error = ZeroDivisionError()
        sky.loop.pass_by(10)
        assert [] == sky.results
        sky.driver.error = None
        sky.driver.know(server(B))
        sky.seconds_until_the_end()


def test_an_answer_that_makes_no_sense():
    """It ends the attempt all the same, which may have been applied."""
    sky = Sky(server(A))
    sky.launch()
    sky.answer(Replied({"ok": 1, "writeErrors": 7}))
    (result,) = sky.results
    assert (Failed, True) == (type(result), result.sent)
    assert isinstance(result.error, TypeError)
    sky.loop.pass_by(1)
    assert [] == sky.loop.timers


class TestCancelled:
    def test_frees_its_thread(self):
        """An attempt that was cancelled at a server that is deposed holds no thread either."""
        sky = Sky(server(A))
        attempt = sky.launch()
        call = sky.driver.calls[0][0]
        attempt.disown(KeyError())
        sky.loop.pass_by(10)
        assert [] == sky.driver.abandoned
        sky.driver.know(server(B))
        sky.loop.pass_by(1)
        assert ([call], []) == (sky.driver.abandoned, sky.results)
        assert [] == sky.loop.timers
        sky.answer(APPLIED)
        assert [{"ok": 1, "n": 1}] == [attempt.reply for attempt in sky.execution.attempts]

    def test_is_looked_after_until_it_lands(self):
        """When its thread is done nobody looks any more."""
        sky = Sky(server(A))
        attempt = sky.launch()
        attempt.disown(KeyError())
        sky.answer(APPLIED)
        sky.driver.know(server(B))
        sky.loop.pass_by(1)
        assert ([], []) == (sky.driver.abandoned, sky.loop.timers)


def test_what_fails_before_it_is_sent(monkeypatch):
    """Who can't be looked after is not sent: its error says that nothing was."""
    sky = Sky(server(A))

    def fail(*_):
        raise AttributeError("a loop of another kind")

    monkeypatch.setattr(Lookout, "add", fail)
    with pytest.raises(AttributeError):
        sky.begin()
    assert [] == sky.driver.calls
    monkeypatch.undo()
    sky.launch()
    assert 1 == len(sky.loop.timers)  # and the next one is looked after


class TestClosing:
    def test_ends_what_is_not_sent_now_and_the_rest_after_a_while(self):
        """The one is not applied, the other may be; each is told of the closing."""
        sky = Sky(server(A))
        sky.launch()
        sky.launch(sent=False)
        sky.driver.error = InvalidOperation()  # as every look at a closed client
        sky.pending.close(2.0)
        assert [False] == [result.sent for result in sky.results]
        sky.loop.pass_by(1.9)
        assert 1 == len(sky.results)
        sky.loop.pass_by(0.2)
        assert [False, True] == [result.sent for result in sky.results]
        assert {InvalidOperation} == {type(result.error) for result in sky.results}
        assert 2 == len(sky.driver.abandoned)
        sky.loop.pass_by(1)
        assert [] == sky.loop.timers

    def test_a_deadline_that_is_nearer(self):
        """The patience of closing makes no write longer than its caller allowed."""
        sky = Sky(server(A))
        sky.launch(deadline=Deadline.after(0))
        sky.pending.close(2.0)
        sky.loop.pass_by(0.5)
        assert [InvalidOperation] == [type(result.error) for result in sky.results]

    def test_an_answer_in_time_counts(self):
        """What was sent before the client was closed may be answered."""
        sky = Sky(server(A))
        sky.launch()
        sky.pending.close(2.0)
        sky.answer(APPLIED)
        sky.loop.pass_by(10)
        assert [Replied] == [type(result) for result in sky.results]

    def test_a_cancelled_one_frees_its_thread(self):
        """Its thread ends, too, if the server has not answered meanwhile."""
        sky = Sky(server(A))
        attempt = sky.launch()
        attempt.disown(KeyError())
        sky.pending.close(2.0)
        sky.loop.pass_by(3)
        assert ([], 1) == (sky.results, len(sky.driver.abandoned))
        assert [] == sky.loop.timers


def test_views_of_the_same_moment_are_not_compared():
    """As long as the driver has heard nothing, single attempts are not looked at."""
    sky = Sky(server(A))
    sky.launch()
    sky.loop.pass_by(1)
    # The view is another one, but the driver's description is the same.
    sky.driver.topology = replace(sky.driver.topology, writable={})
    sky.loop.pass_by(10)
    assert [] == sky.results


class TestRoom:
    """What waits because no server has room for it."""

    def test_another_server_has_some(self):
        """The one that was chosen has none: another one is asked, and nobody waits."""
        sky = Sky(server(A), server(B))
        sky.driver.full = {A}
        for _ in range(20):
            sky.begin()
        assert {B} == {call.server.address for call, _ in sky.driver.calls}
        assert (20, 0) == (len(sky.driver.calls), sky.pending.waiting)

    def test_a_deprioritized_one_comes_last(self):
        """It is asked only where no other one has room."""
        sky = Sky(server(A), server(B), server(C))
        sky.deprioritized = frozenset({A})
        sky.driver.full = {B}
        for _ in range(20):
            sky.begin()
        assert {C} == {call.server.address for call, _ in sky.driver.calls}
        sky.driver.full = {B, C}
        sky.begin()
        assert A == sky.driver.calls[-1][0].server.address

    def test_nobody_has_any(self):
        """They wait until somebody makes way, in their order, and choose their server then."""
        sky = Sky(server(A))
        sky.begin()
        (call, _), *_ = sky.driver.calls
        sky.driver.full = {A}
        waiting = [sky.begin() for _ in range(3)]
        assert (1, 3) == (len(sky.driver.calls), sky.pending.waiting)
        sky.driver.know(server(A), server(B))
        sky.driver.full = {A, B}
        waiting[0].make_way()
        assert (1, 3) == (len(sky.driver.calls), sky.pending.waiting)
        sky.driver.full = {A}
        waiting[0].make_way()
        assert [A, B, B, B] == [call.server.address for call, _ in sky.driver.calls]
        assert [True] * 3 == [one.so_far().address == B and not one.is_over for one in waiting], (
            call
        )

    def test_a_new_server_is_news(self):
        """Nobody has to land for those who wait to find a server that has just appeared."""
        sky = Sky(server(A))
        sky.launch()
        sky.driver.full = {A}
        sky.begin()
        sky.driver.know(server(A), server(B))
        sky.loop.pass_by(0.2)
        assert [A, B] == [call.server.address for call, _ in sky.driver.calls]

    @pytest.mark.parametrize("news", [True, False], ids=["a server", "a connection"])
    def test_while_nothing_of_ours_is_under_way(self, news):
        """Room that others have taken may be theirs to give back, and is found all the same."""
        sky = Sky(server(A))
        sky.driver.full = {A}
        sky.begin()
        sky.loop.pass_by(10)
        assert ([], 1) == (sky.driver.calls, sky.pending.waiting)
        if news:
            sky.driver.know(server(B))
        else:
            sky.driver.full = set()
        sky.loop.pass_by(LOOK_EVERY)
        assert (1, 0) == (len(sky.driver.calls), sky.pending.waiting)
        sky.answer = sky.driver.calls[0][1]
        sky.answer(APPLIED)
        sky.loop.pass_by(1)
        assert [] == sky.loop.timers

    @pytest.mark.parametrize("ended", ["expired", "disowned"])
    @pytest.mark.parametrize("may_block", [False, True])
    def test_a_thread_that_nobody_waits_for(self, may_block, ended):
        """One that reads from an iterator of the user's holds no place when its time is over."""
        sky = Sky(server(A), size=1)
        attempt = sky.begin(Deadline.after(1.0), may_block=may_block)
        if ended == "disowned":
            attempt.disown(KeyError())
        else:
            sky.loop.pass_by(1.5)
            assert [Expired()] == sky.results
        assert may_block is (len(sky.driver.abandoned) == 1)
        sky.begin()
        assert 1 + (may_block or ended == "expired") == len(sky.driver.calls)

    def test_after_all_there_was_none(self):
        """Its connection was gone: it waits before the others, and is not told of it."""
        sky = Sky(server(A), size=1)
        sky.begin()
        second = sky.begin()
        sky.driver.full = {A}
        (_, land), *_ = sky.driver.calls
        land(NoRoom())
        assert ([], 2) == (sky.results, sky.pending.waiting)
        sky.driver.full = set()
        second.make_way()
        (_, again) = sky.driver.calls[1]
        again(APPLIED)
        assert (3, [Replied]) == (len(sky.driver.calls), [type(one) for one in sky.results])

    def test_after_all_there_was_none_for_one_that_was_given_up(self):
        """Nobody waits for it any more, so that it does not either."""
        sky = Sky(server(A))
        sky.launch(sent=False).disown(KeyError())
        sky.answer(NoRoom())
        assert ([], 0) == (sky.results, sky.pending.waiting)

    def test_who_needs_a_thread_holds_up_nobody(self):
        """Each kind waits for itself, and none takes all the places."""
        sky = Sky(server(A), size=2)
        sky.begin()
        sky.driver.no_threads = True
        blocking = sky.begin(may_block=True)
        sky.begin()
        assert (2, 1) == (len(sky.driver.calls), sky.pending.waiting)
        others = [sky.begin() for _ in range(4)]
        sky.driver.no_threads = False
        for _ in range(3):
            _, land = sky.driver.calls.pop(0)
            land(APPLIED)
        assert blocking.so_far().address == A
        assert len(others) - 2 == sky.pending.waiting

    def test_who_needs_a_router_that_is_full_holds_up_nobody(self):
        """What another transaction is pinned to has room; its turn comes as soon as there is."""
        routers = [replace(server(one), kind=ServerKind.MONGOS) for one in (A, B)]
        sky = Sky(*routers, size=2)
        sky.driver.full = {A}
        first, second = sky.begin(pinned=A), sky.begin(pinned=A)
        for router in (B, None):
            sky.begin(pinned=router)
        assert [B, B] == [call.server.address for call, _ in sky.driver.calls]
        assert 2 == sky.pending.waiting
        sky.driver.full = set()
        for _ in range(2):
            _, land = sky.driver.calls.pop(0)
            land(APPLIED)
        assert [A, A] == [call.server.address for call, _ in sky.driver.calls]
        assert [first, second] == [*sky.pending._under_way]

    def test_a_session_that_is_pinned_while_it_waits(self):
        """It waits with those that go there, and no longer before all others."""
        routers = [replace(server(one), kind=ServerKind.MONGOS) for one in (A, B)]
        sky = Sky(*routers)
        sky.driver.full = {A, B}
        sky.begin(pinned=None)
        sky.lease.pinned = A
        sky.begin(pinned=B)
        sky.driver.full = {A}
        sky.pending.pump()
        assert [B] == [call.server.address for call, _ in sky.driver.calls]
        assert 1 == sky.pending.waiting

    @pytest.mark.parametrize("looks", [0, 1], ids=["landings alone", "looks between"])
    def test_the_kinds_take_turns(self, looks):
        """One place after the other is the one kind's and the other's, also after idle looks."""
        sky = Sky(server(A), size=1)
        under_way = sky.begin()
        for _ in range(4):
            sky.begin(may_block=True)
            sky.begin()
        for landing in range(8):
            for _ in range(looks):
                under_way.make_way()
            _, land = sky.driver.calls[landing]
            land(APPLIED)
        kinds = [call.command.may_block for call, _ in sky.driver.calls[1:]]
        assert [True, False] * 4 == kinds

    @pytest.mark.parametrize("ended", ["abandoned", "expired", "closed"])
    def test_what_ends_while_it_waits_is_forgotten_at_once(self, ended):
        """Its document, its timer and its caller's context are kept by nobody."""
        sky = Sky(server(A), size=1)
        sky.begin()
        attempt = weakref.ref(sky.begin(Deadline.after(60)))
        match ended:
            case "abandoned":
                attempt().disown(KeyError())
            case "expired":
                sky.loop.pass_by(61)
            case "closed":
                attempt().close(0.0)
        del sky.execution
        gc.collect()
        assert (0, None) == (sky.pending.waiting, attempt())
        assert not [one for one in sky.loop.timers if one.at > sky.loop.now + 1]

    def test_what_ends_the_process_leaves_nobody_behind(self):
        """A start that raises it takes no other's turn."""
        sky = Sky(server(A), size=1)
        sky.begin()
        sky.begin()
        sky.begin()
        sky.driver.sent = failing_once(SystemExit())
        _, land = sky.driver.calls[0]
        with pytest.raises(SystemExit):
            land(APPLIED)
        sky.loop.pass_by(0.01)
        assert (3, 0) == (len(sky.driver.calls), sky.pending.waiting)


def failing_once(error):
    """Raise an error the first time."""
    errors = [error]

    def call():
        if errors:
            raise errors.pop()

    return call
