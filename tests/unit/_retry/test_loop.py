"""The coordinator and its writes over a scripted driver: no server, no waiting."""

import asyncio
import contextvars
import time
from dataclasses import replace

import anyio
import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import (
    AutoReconnect,
    InvalidOperation,
    NetworkTimeout,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteError,
)
from pymongo.write_concern import WriteConcern

from aioretry import DeadlineExceeded, Outcome, attempts_of, outcome_of, resolve
from aioretry._commands.command import CommandLimits
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import (
    Failed,
    NoServer,
    Policy,
    Replied,
    ServerKind,
    ServerView,
    TopologyView,
)
from aioretry._retry.budget import RetryBudget
from aioretry._retry.loop import Coordinator
from aioretry._retry.server_selection import Selection
from aioretry._retry.sessions import LastingLease, SessionLease
from aioretry._writes.single import Write
from aioretry._writes.under_way import UnderWay
from aioretry.deadlines import Deadline
from aioretry.operation import Operation

CALLER = contextvars.ContextVar("CALLER")

A, B, C = ("a", 1), ("b", 1), ("c", 1)
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)


def server(address=A, kind=ServerKind.PRIMARY, *, sessions=True, rtt=0.0, busy=0):
    """A server as a driver would describe it."""
    return ServerView(address, kind, 17, sessions, None, rtt, LIMITS, lambda: busy, object())


class Session:
    """A server session that counts."""

    def __init__(self, log):
        self.number = 0
        self.log = log

    def next_number(self):
        self.number += 1
        return self.number

    def latest_number(self):
        return self.number

    def open(self, *, has_sessions):
        return self

    def close(self, *, discard):
        self.log.append("discarded" if discard else "pooled")


class Driver:
    """Answers attempts from a script, when it is told to or at once."""

    def __init__(self, *script, servers=(A,)):
        self.script = list(script)
        self.calls = []
        self.held = []
        self.sessions = []
        self.probing = False
        self.set_servers(*(server(address) for address in servers))

    def set_servers(self, *servers):
        self.topology = TopologyView({s.address: s for s in servers}, 0.015, object())

    def view(self):
        return self.topology

    def session(self):
        return Session(self.sessions)

    def start_probing(self):
        self.probing = True

    def time_out(self, call):
        return False  # the attempt ends by itself

    def abandon(self, call):
        return True

    def stop_probing(self):
        self.probing = False

    def add_label(self, error, label):
        error._add_error_label(label)

    def attempt(self, loop, call, receiver):
        self.calls.append(call)
        step = self.script.pop(0)
        if step == "hold":
            self.held.append((call, receiver.land))
            return True
        if isinstance(step, Exception) and not isinstance(step, OperationFailure):
            # The server is lost with it, and found again.
            known = self.topology.writable.values()
            self.set_servers(*(replace(view, source=object()) for view in known))
        loop.call_soon(receiver.land, self.fly(call, step))
        return True

    def fly(self, call, step):
        """Play an attempt."""
        if step is NoServer:
            return NoServer()
        session = call.lease.carry()
        if call.has_transaction_id:
            call.taken = call.number.take(session)
        call.token.begin_sending()
        call.lease.drop()
        return Failed(step, sent=True) if isinstance(step, Exception) else Replied(step)


@pytest.fixture(autouse=True)
def _no_slots(monkeypatch):
    """Let the scripted driver keep the number that an attempt took on its call."""
    from aioretry._retry import attempt

    class OpenCall(attempt.AttemptCall):
        pass

    monkeypatch.setattr(attempt, "AttemptCall", OpenCall)


def coordinator_of(driver, *, events=None, sst=0.05, most_under_way=100, budget=None, **policy):
    """A coordinator over the scripted driver."""
    return Coordinator(
        driver,
        asyncio.get_running_loop(),
        Policy(**policy),
        server_selection_timeout=sst,
        hooks=() if events is None else (events.append,),
        most_under_way=most_under_way,
        budget=budget,
    )


def begin(driver, *, deadline=None, **options):
    """Begin a write over the scripted driver, with a coordinator of its own."""
    return begin_with(coordinator_of(driver, **options), deadline)


def begin_with(coordinator, deadline=None):
    """Begin a write."""
    target = Target.of("db", "c", CodecOptions(), WriteConcern())
    return Write(coordinator, SessionLease(coordinator.driver.session), deadline).begin(
        Insert({"_id": 7}), target
    )


OK = {"ok": 1, "n": 1}
NOT_KNOWN_TO_A_MAJORITY = OK | {
    "writeConcernError": {"code": 91, "errmsg": "it shuts down"},
    "errorLabels": ["RetryableWriteError"],
}


async def test_success():
    """One attempt, numbered, on a session that is pooled after."""
    driver = Driver(OK)
    result = await begin(driver)
    assert (7, True) == (result.inserted_id, result.acknowledged)
    assert (1, ["pooled"]) == (driver.calls[0].taken, driver.sessions)


async def test_retry_uses_the_same_number():
    """A retry carries the transaction number of the first attempt."""
    driver = Driver(AutoReconnect("lost"), OK)
    await begin(driver)
    assert [1, 1] == [call.taken for call in driver.calls]
    assert [True, True] == [c.has_transaction_id for c in driver.calls]
    assert ["pooled"] == driver.sessions


async def test_a_retry_on_an_ineligible_server_surfaces_the_error_before():
    """A server that can't retry writes is no place for a retry."""
    driver = Driver(AutoReconnect("lost"), OK)
    write = begin(driver)
    await asyncio.sleep(0)
    driver.set_servers(server(kind=ServerKind.STANDALONE))
    with pytest.raises(AutoReconnect, match="lost") as caught:
        await write
    assert (Outcome.UNKNOWN, 1) == (outcome_of(caught.value), len(attempts_of(caught.value)))
    assert ["discarded"] == driver.sessions


@pytest.mark.parametrize(
    "only", [server(kind=ServerKind.STANDALONE), server(sessions=False)], ids=["alone", "old"]
)
async def test_an_ineligible_server_gets_the_command_once_without_number(only):
    """The first attempt on such a server has no transaction id and no retry."""
    driver = Driver(AutoReconnect("lost"))
    driver.set_servers(only)
    with pytest.raises(AutoReconnect) as caught:
        await begin(driver)
    assert not caught.value.has_error_label("RetryableWriteError")
    assert 1 == len(driver.calls)
    assert not hasattr(driver.calls[0], "taken")


async def test_a_load_balancer_is_eligible():
    """Behind a load balancer writes are retried."""
    driver = Driver(AutoReconnect("lost"), OK)
    driver.set_servers(server(kind=ServerKind.LOAD_BALANCER, sessions=False))
    await begin(driver)
    assert [1, 1] == [call.taken for call in driver.calls]


async def test_sharded_retries_avoid_the_failed_mongos():
    """One that has not failed gets the retry, as long as there is such a one; then any does."""
    for _ in range(10):
        driver = Driver(*map(AutoReconnect, "1234"), OK)
        driver.set_servers(*(server(address, ServerKind.MONGOS) for address in (A, B, C)))
        events = []
        await begin(driver, deadline=Deadline.after(60), events=events)
        assert {A, B, C} == {event.address for event in events[:3]}
        assert 5 == len(driver.calls)


async def test_where_another_mongos_is_known_nobody_waits(monkeypatch):
    """News of the mongos that failed are waited for only where no other one could be asked."""
    settled = []

    async def settle(self, server, seconds):
        settled.append(server.address)
        return True

    monkeypatch.setattr(Selection, "still_takes_writes", settle)
    unreachable = {"ok": 0, "code": 6, "errorLabels": ["RetryableWriteError"]}
    failures = [OperationFailure("unreachable", 6, unreachable) for _ in range(2)]
    driver = Driver(*failures, OK)
    driver.set_servers(server(A, ServerKind.MONGOS), server(B, ServerKind.MONGOS))
    await begin(driver, deadline=Deadline.after(60))
    assert 3 == len(driver.calls)
    assert 1 == len(settled)  # when both had failed


@pytest.mark.parametrize("step", [AutoReconnect("1"), NOT_KNOWN_TO_A_MAJORITY])
async def test_news_are_waited_for_no_longer_than_the_deadline(monkeypatch, step):
    """An attempt that ends at the deadline, or after it, leaves no time for them."""
    most = []

    async def settle(self, server, seconds):
        most.append(seconds)
        return True

    monkeypatch.setattr(Selection, "still_takes_writes", settle)
    await begin(Driver(step, OK), deadline=Deadline.after(5.0))
    assert len(most) == 1
    assert most[0] < 5.0


async def test_a_server_that_vanishes_before_the_attempt_costs_nothing():
    """Nothing was tried: the write waits for a server again, without counting a retry."""
    events = []
    driver = Driver(NoServer, NoServer, NoServer, OK)
    await begin(driver, events=events)
    assert (4, []) == (len(driver.calls), events)


async def test_no_server_at_all():
    """A first selection that fails says so, and nothing was sent."""
    driver = Driver()
    driver.set_servers()
    with pytest.raises(DeadlineExceeded, match="nothing was sent") as caught:
        await begin(driver, sst=30, deadline=Deadline.after(0.5))
    assert isinstance(caught.value.__cause__, ServerSelectionTimeoutError)
    with pytest.raises(ServerSelectionTimeoutError, match="nothing was sent") as caught:
        await begin(driver)
    assert (Outcome.NOT_APPLIED, []) == (outcome_of(caught.value), driver.sessions)
    while driver.probing:
        await asyncio.sleep(0)


def slow_clock():
    """Return what a clock says that lags behind the event loop's timers."""
    return 0.1 * time.monotonic()


async def test_no_server_until_a_timer_that_is_early():
    """A deadline that ends the waiting is over, although its clock does not say so yet."""
    driver = Driver()
    driver.set_servers()
    with pytest.raises(DeadlineExceeded, match="nothing was sent") as caught:
        await begin(driver, sst=30, deadline=Deadline.after(0.2, slow_clock))
    assert isinstance(caught.value.__cause__, ServerSelectionTimeoutError)


@pytest.mark.parametrize("retry_writes", [False, True])
async def test_no_answer_until_a_timer_that_is_early(retry_writes):
    """The same of an attempt; it is not followed by another one."""

    class Ending(Driver):
        def time_out(self, call):
            ((_, land),) = self.held
            call.lease.drop()
            land(Failed(NetworkTimeout("timed out"), sent=True))
            return True

    driver = Ending("hold")
    write = begin(driver, deadline=Deadline.after(0.02, slow_clock), retry_writes=retry_writes)
    ((call, _),) = driver.held
    call.lease.carry()
    assert call.token.begin_sending()
    with pytest.raises(DeadlineExceeded, match="timed out") as caught:
        await write
    assert isinstance(caught.value.__cause__, NetworkTimeout)
    assert outcome_of(caught.value) is Outcome.UNKNOWN
    assert 1 == len(driver.calls)


async def test_waits_for_a_server():
    """A write begins when a server appears; the driver is kept looking until then."""
    driver = Driver(OK)
    driver.set_servers()
    write = begin(driver, sst=30)
    while not driver.probing:
        await asyncio.sleep(0)
    assert (False, []) == (write.done(), driver.calls)
    driver.set_servers(server())
    await write


async def test_expires_in_the_queue():
    """A deadline that passes while the attempt has no thread yet: nothing was sent."""
    driver = Driver("hold")
    with pytest.raises(DeadlineExceeded, match="nothing was sent") as caught:
        await begin(driver, deadline=Deadline.after(0.02))
    assert outcome_of(caught.value) is Outcome.NOT_APPLIED
    ((call, _),) = driver.held
    assert not call.token.begin_sending()


async def test_a_retry_that_waits_too_long_for_its_turn(monkeypatch):
    """A server may have forgotten the first attempt by then: it is not sent again."""
    driver = Driver("hold", "hold")
    coordinator = coordinator_of(driver, most_under_way=1)
    first, other = begin_with(coordinator), begin_with(coordinator)
    call, land = driver.held[0]
    land(driver.fly(call, AutoReconnect("it broke")))
    while coordinator.pending.waiting == 0:  # the retry waits for the other one's end
        await asyncio.sleep(0)
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + 1500)
    call, land = driver.held[1]
    land(driver.fly(call, OK))
    await other
    with pytest.raises(AutoReconnect, match="it broke") as caught:
        await first
    assert outcome_of(caught.value) is Outcome.UNKNOWN
    assert 2 == len(driver.calls)


async def test_expires_while_sending():
    """A deadline that passes while the server works: unknown, and the late answer is dropped."""
    driver = Driver("hold")
    write = begin(driver, deadline=Deadline.after(0.02))
    ((call, deliver),) = driver.held
    call.lease.carry()
    assert call.token.begin_sending()
    with pytest.raises(DeadlineExceeded, match="has not answered") as caught:
        await write
    assert "no answer after" in caught.value.__notes__[0]
    assert outcome_of(caught.value) is Outcome.UNKNOWN
    assert [] == driver.sessions
    call.lease.drop()
    assert ["discarded"] == driver.sessions
    deliver(NoServer())


async def test_what_the_driver_raises_while_a_write_waits():
    """A server selector of the user's that begins to fail ends the writes that wait."""
    driver = Driver()
    driver.set_servers()
    write = begin(driver, sst=60)
    while not driver.probing:
        await asyncio.sleep(0)

    def fail():
        raise ZeroDivisionError

    driver.view = fail
    with anyio.fail_after(10), pytest.raises(ZeroDivisionError) as caught:
        await write
    assert outcome_of(caught.value) is Outcome.NOT_APPLIED
    while driver.probing:
        await asyncio.sleep(0)


class TestCancelling:
    async def test_at_once(self):
        """Cancelled in the same step: nothing is sent, and the error says so."""
        driver = Driver("hold")
        write = begin(driver)
        assert write.cancel("stop")
        assert not write.cancel()
        with pytest.raises(asyncio.CancelledError, match="stop") as caught:
            await write
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED
        ((call, _),) = driver.held
        assert not call.token.begin_sending()
        assert write.cancelled()

    async def test_while_sending(self):
        """Cancelled while the server works: unknown; the session waits for the thread."""
        driver = Driver("hold")
        write = begin(driver)
        ((call, deliver),) = driver.held
        call.lease.carry()
        call.token.begin_sending()
        write.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await write
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        assert [] == driver.sessions
        call.lease.drop()
        assert ["discarded"] == driver.sessions
        deliver(Replied(OK))
        assert write.cancelled()

    async def test_between_attempts(self):
        """Cancelled during the wait before a retry: no further attempt."""
        driver = Driver(AutoReconnect("lost"))
        write = begin(driver, deadline=Deadline.after(60))
        while not driver.calls:
            await asyncio.sleep(0)
        driver.set_servers()
        for _ in range(5):
            await asyncio.sleep(0)
        write.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await write
        assert (Outcome.UNKNOWN, 1) == (outcome_of(caught.value), len(driver.calls))
        assert ["discarded"] == driver.sessions

    @pytest.mark.parametrize("servers", [(), (A,)])
    async def test_before_its_task_begins(self, servers):
        """Cancelled after the write was handed to a task that has not taken a step yet."""
        driver = Driver(AutoReconnect("lost"), servers=servers)
        write = begin(driver, sst=30, deadline=Deadline.after(30))
        while write._task is None:
            await asyncio.sleep(0)
        write.cancel()
        with anyio.fail_after(5), pytest.raises(asyncio.CancelledError) as caught:
            await write
        assert (Outcome.UNKNOWN if servers else Outcome.NOT_APPLIED) is outcome_of(caught.value)
        assert (["discarded"] if servers else []) == driver.sessions

    async def test_when_the_answer_is_there_already(self):
        """Cancelled between the answer to a retry and its delivery: applied, and known to be."""
        driver = Driver(AutoReconnect("lost"), "hold")
        write = begin(driver, deadline=Deadline.after(30))
        while not driver.held:
            await anyio.sleep(0.001)
        ((call, deliver),) = driver.held
        deliver(driver.fly(call, OK))
        write.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await write
        assert outcome_of(caught.value) is Outcome.APPLIED

    @pytest.mark.parametrize(
        ("step", "expected"),
        [({"ok": 1, "n": 1}, Outcome.APPLIED), (WriteError("no", 121), Outcome.NOT_APPLIED)],
        ids=["success", "error"],
    )
    async def test_of_whoever_awaits_a_write_that_has_just_ended(self, step, expected):
        """The cancellation that arrives instead of the write's own end tells that end."""
        driver = Driver("hold")
        write = begin(driver)
        caught = []

        async def user():
            try:
                await write
            except asyncio.CancelledError as exc:
                caught.append(exc)

        task = asyncio.create_task(user())
        while not driver.held:
            await asyncio.sleep(0)
        ((call, deliver),) = driver.held
        await asyncio.sleep(0)
        deliver(driver.fly(call, step))
        for _ in range(5):
            if not write.done():
                await asyncio.sleep(0)
        task.cancel()
        await task
        (exc,) = caught
        assert expected is outcome_of(exc)
        assert 1 == len(attempts_of(exc))

    async def test_by_asyncio_timeout(self):
        """asyncio.timeout() gives a TimeoutError that still answers."""
        driver = Driver("hold")
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.01):
                await begin(driver)
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED

    async def test_by_wait_for(self):
        """So does asyncio.wait_for()."""
        driver = Driver("hold")
        with pytest.raises(TimeoutError) as caught:
            await asyncio.wait_for(begin(driver), 0.01)
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED

    async def test_by_an_anyio_scope(self):
        """anyio's scopes cancel a write and swallow its error."""
        driver = Driver("hold")
        with anyio.move_on_after(0.01) as scope:
            await begin(driver)
        assert scope.cancelled_caught

    async def test_by_a_task_group(self):
        """A task group that fails cancels the writes of its tasks."""
        driver = Driver("hold")
        ended = []

        async def write():
            try:
                await begin(driver)
            except asyncio.CancelledError as exc:
                ended.append(outcome_of(exc))
                raise

        async def fail():
            await asyncio.sleep(0)
            raise ZeroDivisionError

        async def both():
            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                group.create_task(fail())

        with pytest.raises(ExceptionGroup):
            await both()
        assert [Outcome.NOT_APPLIED] == ended

    async def test_in_gather(self):
        """gather() passes the cancellation on."""
        driver = Driver("hold", "hold")
        both = asyncio.gather(begin(driver), begin(driver))
        both.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both
        assert [False, False] == [call.token.begin_sending() for call, _ in driver.held]


class TestDeposed:
    """What is given up, and when, is tested in test_pending.py."""

    async def send(self, driver, at):
        """Let the attempt that is held reach its server, and depose that."""
        while not driver.held:
            await asyncio.sleep(0.001)
        ((call, deliver),) = driver.held
        driver.held.clear()
        call.server = driver.topology.writable[at]
        call.is_waiting = True
        call.taken = call.number.take(call.lease.carry())
        assert call.token.begin_sending()
        driver.set_servers(server(B if at == A else A))
        return call, deliver

    async def test_the_next_server_gets_it(self):
        """It is sent again with the same number, and what the first one says late is dropped."""
        driver = Driver("hold", "hold")
        write = begin(driver)
        lost, late = await self.send(driver, A)
        while not driver.held:
            await asyncio.sleep(0.001)
        late(Replied(OK))
        await asyncio.sleep(0)
        assert not write.done()
        ((call, deliver),) = driver.held
        deliver(driver.fly(call, OK))
        assert 7 == (await write).inserted_id
        assert lost.taken == call.taken
        assert [] == driver.sessions
        lost.lease.drop()
        assert ["pooled"] == driver.sessions

    async def test_it_is_the_one_retry(self):
        """Without a deadline a second deposed server ends the write."""
        driver = Driver("hold", "hold")
        write = begin(driver)
        for address in (A, B):
            await self.send(driver, address)
        with anyio.fail_after(30), pytest.raises(AutoReconnect, match="stopped taking") as caught:
            await write
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        assert [A, B] == [attempt.address for attempt in attempts_of(caught.value)]

    async def test_it_goes_on_in_the_context_of_its_caller(self):
        """What one write's attempt sets off does not run as if it were of another write."""
        driver = Driver("hold", OK)
        coordinator = coordinator_of(driver)
        contexts = []

        async def write(name):
            CALLER.set(name)
            return await begin_with(coordinator)

        first = asyncio.create_task(write("first"))  # by which the looking begins
        while not driver.held:
            await asyncio.sleep(0.001)
        ((_, deliver),) = driver.held
        driver.held.clear()
        driver.script.insert(0, "hold")
        second = asyncio.create_task(write("second"))
        while not driver.held:
            await asyncio.sleep(0.001)
        deliver(driver.fly(driver.calls[0], OK))
        await first
        attempt = driver.attempt
        driver.attempt = lambda *args: (contexts.append(CALLER.get()), attempt(*args))
        await self.send(driver, A)
        await second
        assert ["second"] == contexts

    async def test_under_a_deadline_it_is_one_of_many(self):
        """With a deadline the write goes on until a server answers."""
        driver = Driver(*["hold"] * 4, OK)
        write = begin(driver, deadline=Deadline.after(60))
        for address in (A, B, A, B):
            await self.send(driver, address)
        await write
        assert 1 == len({call.taken for call in driver.calls})


class TestBudget:
    async def test_spent(self):
        """The error says so, and how the write has ended."""
        budget = RetryBudget(1)
        driver = Driver(AutoReconnect("first"), AutoReconnect("second"), OK)
        with pytest.raises(AutoReconnect, match="second") as caught:
            await begin(driver, deadline=Deadline.after(60), budget=budget)
        assert any("retry budget is spent" in note for note in caught.value.__notes__)
        assert (Outcome.UNKNOWN, 2) == (outcome_of(caught.value), len(attempts_of(caught.value)))
        assert ["pooled"] != driver.sessions

    async def test_earned(self):
        """By writes that succeed, a tenth of a retry each, and by retries that do, their own."""
        budget = RetryBudget(10)
        assert all(budget.take() for _ in range(9))
        await begin(Driver(AutoReconnect("lost"), OK), budget=budget)
        for _ in range(9):
            await begin(Driver(OK), budget=budget)
        assert [True, True, False] == [budget.take() for _ in range(3)]

    async def test_what_cost_nothing(self):
        """It gives nothing back, whatever was sent before it."""
        budget = RetryBudget(3)
        with pytest.raises(AutoReconnect) as caught:
            await begin(Driver(AutoReconnect("1"), AutoReconnect("2"), OK), budget=budget)
        await resolve(caught.value)
        assert [True, True, False] == [budget.take() for _ in range(3)]


class Path:
    """What an operation needs of a client."""

    def __init__(self, driver):
        self.driver = driver
        self.under_way = UnderWay()

    def coordinator(self):
        return Coordinator(
            self.driver,
            asyncio.get_running_loop(),
            Policy(),
            server_selection_timeout=1,
            hooks=(),
        )

    def deadline(self, seconds):
        return None if seconds is None else Deadline.after(seconds)

    def surrounding_deadline(self):
        return None

    def lasting_lease(self):
        return LastingLease(self.driver.session)


class TestOperation:
    async def test_left_while_it_writes(self):
        """A write that outlives its block keeps its session for the retry."""
        driver = Driver("hold", OK)
        target = Target.of("db", "c", CodecOptions(), WriteConcern())
        async with Operation(Path(driver), target, None) as op:
            writing = asyncio.create_task(op.insert_one({"_id": 7}))
            while not driver.held:
                await asyncio.sleep(0)
        assert [] == driver.sessions
        ((call, deliver),) = driver.held
        result = driver.fly(call, AutoReconnect("lost"))
        driver.set_servers(server())
        deliver(result)
        assert 7 == (await writing).inserted_id
        assert [1, 1] == [call.taken for call in driver.calls]
        assert ["pooled"] == driver.sessions

    async def test_a_cancelled_write_leaves_its_session(self):
        """After a cancelled write the next one gets a session of its own."""
        driver = Driver("hold", OK)
        target = Target.of("db", "c", CodecOptions(), WriteConcern())
        async with Operation(Path(driver), target, None) as op:
            with anyio.move_on_after(0.01):
                await op.insert_one({"_id": 7})
            ((call, _),) = driver.held
            assert call.token.is_revoked
            await op.insert_one({"_id": 8})
            with pytest.raises(InvalidOperation, match="has ended"):
                call.lease.carry()

    async def test_a_coroutine_that_is_closed_sends_no_more(self):
        """Whoever drives it has given it up: what was lost is not sent again, nor by the next."""
        driver = Driver("hold", OK, OK)
        target = Target.of("db", "c", CodecOptions(), WriteConcern())
        async with Operation(Path(driver), target, None) as op:
            writing = op.insert_one({"_id": 7})
            writing.send(None)
            ((call, deliver),) = driver.held
            call.number.take(call.lease.carry())
            call.token.begin_sending()
            writing.close()
            call.lease.drop()
            deliver(Failed(AutoReconnect("lost"), sent=True))
            for _ in range(10):
                await asyncio.sleep(0)
            assert 1 == len(driver.calls)
            await op.insert_one({"_id": 8})
            assert driver.calls[1].lease is not call.lease

    async def test_what_ends_the_process_while_a_command_is_made(self):
        """The operation is not busy for ever after it."""
        driver = Driver(OK)
        target = Target.of("db", "c", CodecOptions(), WriteConcern())

        class Document(dict):
            def __contains__(self, name):
                raise KeyboardInterrupt

        async with Operation(Path(driver), target, None) as op:
            with pytest.raises(KeyboardInterrupt):
                await op.insert_one(Document())
            await op.insert_one({"_id": 8})


async def test_gather_and_wait():
    """Writes are futures to asyncio's own functions."""
    driver = Driver(OK, OK, OK)
    first, second = await asyncio.gather(begin(driver), begin(driver))
    assert first.inserted_id == second.inserted_id
    done, _ = await asyncio.wait([begin(driver)])
    assert 7 == done.pop().result().inserted_id


async def test_what_the_result_raises_is_an_applied_write():
    """If the reply can't be turned into a result, the write is applied all the same."""
    driver = Driver(OK)
    write = begin(driver)

    def broken(reply):
        raise ZeroDivisionError

    write._execution.command.result = broken
    with pytest.raises(ZeroDivisionError) as caught:
        await write
    assert outcome_of(caught.value) is Outcome.APPLIED


async def test_labels_of_the_reply_count_for_a_write_error():
    """A write error in a reply that is labelled as retryable is retried.

    MongoDB 4.4 answers so to a write that meets a step-down.
    """
    stepped_down = {
        "ok": 1,
        "n": 0,
        "writeErrors": [{"index": 0, "code": 189, "errmsg": "Not primary"}],
        "writeConcernError": {"code": 189, "errmsg": "stepdown"},
        "errorLabels": ["RetryableWriteError"],
    }
    driver = Driver(stepped_down, OK)
    write = begin(driver)
    await write
    assert [1, 1] == [call.taken for call in driver.calls]
    plain = Driver({**stepped_down, "errorLabels": []})
    with pytest.raises(WriteError, match="Not primary") as caught:
        await begin(plain)
    assert outcome_of(caught.value) is Outcome.NOT_APPLIED


async def test_events_count_attempts():
    """Each retry is told once, with the number of the attempt that failed."""
    events = []
    driver = Driver(AutoReconnect("1"), AutoReconnect("2"), OK)
    await begin(driver, deadline=Deadline.after(60), events=events)
    assert [(1, "insert_one", "db.c", A), (2, "insert_one", "db.c", A)] == [
        (event.attempt, event.operation, event.namespace, event.address) for event in events
    ]
