"""Many writes that wait for a server, over a scripted driver."""

import asyncio
import contextvars
import itertools
from collections import Counter
from unittest import mock

import anyio
import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import InvalidOperation, ServerSelectionTimeoutError
from pymongo.write_concern import WriteConcern

from aioretry import Attempt, Outcome, TooManyWaiting, WritesUnavailableError, outcome_of
from aioretry._commands.command import CommandLimits
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import Policy, ServerKind, ServerView, TopologyView
from aioretry._retry.lookout import Lookout
from aioretry._retry.loop import Coordinator
from aioretry._retry.server_selection import Selection
from aioretry._retry.sessions import SessionLease
from aioretry._writes.group.kinds import INSERTS
from aioretry._writes.group.queue import Coalescing, GroupQueue
from aioretry._writes.single import Write
from aioretry.deadlines import Deadline

A = ("a", 1)
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
WAITING = 1000
CALLER = contextvars.ContextVar("CALLER", default=None)


class Description:
    """A driver's description of a deployment that counts how often it is written down."""

    def __init__(self):
        self.written = 0

    def __repr__(self):
        self.written += 1
        return "<nobody answers>"


class Driver:
    """Knows of no server until it is told of one."""

    def __init__(self):
        self.description = Description()
        self.topology = TopologyView({}, 0.015, self.description)

    def appear(self):
        """Let a server appear."""
        known = ServerView(A, ServerKind.PRIMARY, 17, True, None, 0.0, LIMITS, lambda: 0, object())
        self.topology = TopologyView({A: known}, 0.015, object())

    def view(self):
        return self.topology

    def start_probing(self):
        self.is_probing = True

    def stop_probing(self):
        self.is_probing = False


def selection_of(driver):
    """Who waits for a server, on the running event loop."""
    loop = asyncio.get_running_loop()
    return Selection(driver, loop, Lookout(driver, loop))


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self, loop):
        self.loop = loop
        self.number = 0
        self.stopped = False
        loop.call_soon(self.count)

    def count(self):
        self.number += 1
        if not self.stopped:
            self.loop.call_soon(self.count)


async def test_woken_in_order_and_a_few_at_a_time():
    """At most 64 of 1,000 go on in one turn of the event loop, which is free in between."""
    driver, loop = Driver(), asyncio.get_running_loop()
    selection = selection_of(driver)
    woken = []
    turns = Turns(loop)

    async def wait(number):
        assert await selection.wait_for_server(loop.time() + 60)
        woken.append((number, turns.number))

    async with asyncio.TaskGroup() as group:
        for number in range(WAITING):
            group.create_task(wait(number))
        while f"waiting={WAITING}" not in repr(selection):
            await asyncio.sleep(0)
        assert [] == woken
        driver.appear()
    turns.stopped = True
    assert list(range(WAITING)) == [number for number, _ in woken]
    portions = Counter(turn for _, turn in woken)
    assert max(portions.values()) <= 64
    assert WAITING // 64 <= len(portions)


@pytest.mark.parametrize("is_gone", [True, False])
async def test_news_of_a_server_that_failed(is_gone):
    """They are waited for, so that a retry does not meet the same dead server at once."""
    driver = Driver()
    driver.appear()
    (known,) = driver.topology.writable.values()
    asked = asyncio.create_task(selection_of(driver).still_takes_writes(known))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not asked.done()
    if is_gone:
        driver.topology = TopologyView({}, 0.015, object())
    else:
        driver.appear()  # as the driver has just heard
    assert is_gone is not await asked


async def test_a_few_are_cancelled_meanwhile():
    """Who is cancelled while it waits holds up nobody and is not missed."""
    driver, loop = Driver(), asyncio.get_running_loop()
    selection = selection_of(driver)
    tasks = [asyncio.create_task(selection.wait_for_server(loop.time() + 60)) for _ in range(200)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    driver.appear()
    async with asyncio.timeout(30):
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [True] * 100 == ended[1::2]
    assert {asyncio.CancelledError} == {type(end) for end in ended[::2]}
    assert "waiting=0" in repr(selection)


@pytest.mark.parametrize("has_deadline", [False, True])
async def test_fail_together_and_in_order(has_deadline):
    """Those that wait in vain fail in the order in which they came, and cheaply."""
    driver, loop = Driver(), asyncio.get_running_loop()
    coordinator = Coordinator(
        driver,
        loop,
        Policy(),
        server_selection_timeout=60 if has_deadline else 2,
        hooks=(),
    )
    failed = []

    def begin(number):
        write = Write(
            coordinator, SessionLease(lambda: None), Deadline.after(2) if has_deadline else None
        ).begin(Insert({"_id": number}), TARGET)
        write.add_done_callback(lambda write: failed.append((number, write.exception())))
        return write

    writes = [begin(number) for number in range(WAITING)]
    with anyio.fail_after(60):
        await asyncio.gather(*writes, return_exceptions=True)
    order = [number for number, _ in failed]
    # Between the clock of deadlines and the event loop's there may be some microseconds.
    assert list(range(WAITING)) == (sorted(order) if has_deadline else order)
    assert {Outcome.NOT_APPLIED} == {outcome_of(error) for _, error in failed}
    texts = [str(error.__cause__ or error) for _, error in failed]
    assert all("<nobody answers>" in text for text in texts)
    assert {ServerSelectionTimeoutError} == {type(error.__cause__ or error) for _, error in failed}
    assert 1 == driver.description.written


async def test_looked_for_in_nobodys_context():
    """What looks for a server is not a part of the request whose write waits first."""
    request = contextvars.ContextVar("request", default=None)
    seen = []

    class Noting(Driver):
        def view(self):
            seen.append(request.get())
            return super().view()

    driver = Noting()
    selection = selection_of(driver)
    request.set(7)
    waiting = asyncio.ensure_future(selection.wait_for_server(float("inf")))
    while not seen:
        await asyncio.sleep(0)
    driver.appear()
    assert await waiting
    assert {None} == set(seen)


async def test_too_many():
    """Beyond the bound a write fails at once, and nothing is sent; the others go on waiting."""
    driver, loop = Driver(), asyncio.get_running_loop()
    coordinator = Coordinator(
        driver, loop, Policy(), server_selection_timeout=60, hooks=(), most_waiting=3
    )

    def begin(number):
        return Write(coordinator, SessionLease(lambda: None), None).begin(
            Insert({"_id": number}), TARGET
        )

    writes = [begin(number) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyWaiting, match="3 writes wait") as caught:
        await begin(3)
    assert Outcome.NOT_APPLIED is outcome_of(caught.value)
    assert not any(each.done() for each in writes)
    for each in writes:
        each.cancel()
    await asyncio.gather(*writes, return_exceptions=True)


@pytest.mark.parametrize("order", ["ccc", "ccp", "cpc", "pcc", "ppc", "cpp"])
@pytest.mark.parametrize("pause", [0, 3])
async def test_too_many_of_both(order, pause):
    """Those that wait to travel together count as well, wherever they go; each counts once."""
    driver, loop = Driver(), asyncio.get_running_loop()
    coordinator = Coordinator(
        driver, loop, Policy(), server_selection_timeout=60, hooks=(), most_waiting=3
    )
    queues = itertools.cycle(
        GroupQueue(coordinator, INSERTS, TARGET, lambda: SessionLease(None), Coalescing(most, 1000))
        for most in (10, 20)
    )

    async def begin(kind):
        if kind == "c":
            write = next(queues).add(Insert({}), None)
        else:
            write = Write(coordinator, SessionLease(lambda: None), None).begin(Insert({}), TARGET)
        for _ in range(pause):
            await asyncio.sleep(0)
        return write

    writes = [await begin(kind) for kind in order]
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(each.done() for each in writes)
    for kind in "cp":
        with pytest.raises(TooManyWaiting) as caught:
            await asyncio.wait_for(await begin(kind), 30)
        assert Outcome.NOT_APPLIED is outcome_of(caught.value)
    assert not any(each.done() for each in writes)
    writes.pop().cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    writes.append(await begin("p"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(each.done() for each in writes)
    for each in writes:
        each.cancel()
    await asyncio.gather(*writes, return_exceptions=True)


class TestFailingFast:
    """After so long without a server, nobody waits for one whose command was never sent."""

    @pytest.fixture
    def driver(self):
        return Driver()

    @pytest.fixture
    async def coordinator(self, driver):
        loop = asyncio.get_running_loop()
        return Coordinator(
            driver,
            loop,
            Policy(),
            server_selection_timeout=60,
            hooks=(),
            fail_fast_after=0.225,
        )

    @pytest.fixture
    def execution(self, coordinator):
        """A function that returns a new command."""

        def execution(deadline=None):
            command = Insert({"_id": 7}).command(TARGET)
            return coordinator.execution(command, SessionLease(lambda: None), deadline)

        return execution

    async def test_who_waits_and_who_comes(self, driver, coordinator, execution):
        """Who waits already fails then, and who comes later at once, while a server is sought."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = [coordinator.waits.find_server(execution(Deadline.after(60))) for _ in range(3)]
        with anyio.fail_after(30):
            errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert {WritesUnavailableError} == {type(error) for error in errors}
        assert loop.time() - began >= 0.2
        assert not coordinator.waits.waiting
        turns = Turns(loop)
        with pytest.raises(WritesUnavailableError, match=r"for 0.225 s .* nothing was sent"):
            await coordinator.waits.find_server(execution())
        turns.stopped = True
        assert turns.number == 0
        await asyncio.sleep(0)
        assert driver.is_probing

    async def test_the_next_time(self, driver, coordinator, execution):
        """A server that was there meanwhile is waited for anew."""
        with pytest.raises(WritesUnavailableError):
            await coordinator.waits.find_server(execution())
        nobody, driver.topology = driver.topology, None
        driver.appear()
        await coordinator.waits.find_server(execution())
        driver.topology = nobody
        waiting = asyncio.ensure_future(coordinator.waits.find_server(execution()))
        await asyncio.sleep(0.01)
        driver.appear()
        await asyncio.wait_for(waiting, 30)

    async def test_the_next_time_without_a_write(self, driver, coordinator, execution):
        """Nobody needs to write for a server to be seen."""
        with pytest.raises(WritesUnavailableError):
            await coordinator.waits.find_server(execution())
        nobody, driver.topology = driver.topology, None
        driver.appear()
        with anyio.fail_after(30):
            while coordinator.waits._lost_at is not None:
                await asyncio.sleep(0.01)
        driver.topology = nobody
        waiting = asyncio.ensure_future(coordinator.waits.find_server(execution()))
        await asyncio.sleep(0.01)
        driver.appear()
        await asyncio.wait_for(waiting, 30)

    async def test_a_client_that_is_closed(self, driver, coordinator, execution, monkeypatch):
        """Nobody looks for a server any more once the driver has none to tell of."""
        with pytest.raises(WritesUnavailableError):
            await coordinator.waits.find_server(execution())
        lookout, closed = coordinator._lookout, mock.Mock(side_effect=InvalidOperation("closed"))
        assert coordinator.waits in lookout._due
        monkeypatch.setattr(driver, "view", closed)
        with anyio.fail_after(30):
            while coordinator.waits in lookout._due:
                await asyncio.sleep(0.01)

    async def test_at_the_last_moment(self, driver, coordinator, execution):
        """A server that is there when the time is over is not said to be missing."""
        waiting = asyncio.ensure_future(coordinator.waits.find_server(execution()))
        await asyncio.sleep(0)
        over = coordinator.waits._lost_at + 0.225
        asyncio.get_running_loop().call_at(over - 1e-6, driver.appear)
        await asyncio.wait_for(waiting, 30)

    async def test_timer_that_is_early(self, coordinator, execution, monkeypatch):
        """A loop may end it by its clock's resolution before its time; nobody spins till then."""
        waits, calls = coordinator.waits, 0
        selection = waits._selection_of(execution())
        wait_for_server = selection.wait_for_server

        async def counted(until):
            nonlocal calls
            calls += 1
            return await wait_for_server(until - 0.05)

        monkeypatch.setattr(selection, "wait_for_server", counted)
        with anyio.fail_after(30), pytest.raises(WritesUnavailableError):
            await waits.find_server(execution())
        assert calls == 1

    async def test_at_the_start(self, driver, coordinator, execution):
        """The time that the first write has waited for the driver is none without a server."""
        first = asyncio.ensure_future(coordinator.waits.find_server(execution()))
        await asyncio.sleep(0.15)
        nobody = driver.topology
        driver.appear()
        await asyncio.wait_for(first, 30)
        driver.topology = nobody
        second = asyncio.ensure_future(coordinator.waits.find_server(execution()))
        await asyncio.sleep(0.15)
        assert not second.done()
        driver.appear()
        await asyncio.wait_for(second, 30)

    async def test_what_was_sent_waits(self, driver, coordinator, execution):
        """Its outcome would stay unknown."""
        sent = execution()
        sent.add(Attempt(A, 0.0, 0.1, sent=True, error=TimeoutError()), None, 0.0)
        waiting = asyncio.ensure_future(coordinator.waits.find_server(sent))
        with pytest.raises(WritesUnavailableError):
            await coordinator.waits.find_server(execution())
        assert not waiting.done()
        driver.appear()
        await asyncio.wait_for(waiting, 30)
