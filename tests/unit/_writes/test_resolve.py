"""When a write in doubt can be resolved, by the client's own clock: no server, no waiting."""

import asyncio
import time
from dataclasses import replace

import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError
from pymongo.write_concern import WriteConcern

from aioretry import DeadlineExceeded, Outcome, ResolveError, outcome_of, resolve
from aioretry._commands.command import CommandLimits
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._drivers.port import Failed, Policy, Replied, ServerKind, ServerView, TopologyView
from aioretry._retry.command_execution import trusted_seconds
from aioretry._retry.loop import Coordinator
from aioretry._retry.sessions import SessionLease
from aioretry._writes.single import Write
from aioretry.deadlines import Deadline

TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
SERVER = ServerView(("a", 1), ServerKind.PRIMARY, 17, True, None, 0.0, LIMITS, lambda: 0, object())
OK = {"ok": 1, "n": 1}


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
    """Answers attempts as a test says; by default it loses the connection."""

    def __init__(self):
        self.answer = AutoReconnect("lost")
        self.session_minutes = 30
        self.is_there = True
        self.before = lambda: None
        self.deadlines = []
        self.numbers = []
        self.sessions = []
        self.sources = iter(object, None)

    def view(self):
        server = replace(SERVER, session_minutes=self.session_minutes, source=next(self.sources))
        servers = {server.address: server} if self.is_there else {}
        return TopologyView(servers, 0.015, server.source)

    def session(self):
        return Session(self.sessions)

    def time_out(self, call):
        return False  # the attempt ends by itself

    def abandon(self, call):
        return True

    def start_probing(self):
        pass

    def stop_probing(self):
        pass

    def add_label(self, error, label):
        error._add_error_label(label)

    def attempt(self, loop, call, receiver):
        self.before()
        self.deadlines.append(call.deadline)
        self.numbers.append(call.number.take(call.lease.carry()))
        call.token.begin_sending()
        call.lease.drop()
        answer = self.answer
        failed = isinstance(answer, Exception)
        loop.call_soon(receiver.land, Failed(answer, sent=True) if failed else Replied(answer))
        return True


@pytest.fixture
async def clock(monkeypatch):
    """Moves the event loop's clock on."""
    loop = asyncio.get_running_loop()
    real = loop.time
    passed = 0.0

    def pass_by(seconds):
        nonlocal passed
        passed += seconds

    monkeypatch.setattr(loop, "time", lambda: real() + passed)
    return pass_by


@pytest.fixture
async def driver():
    return Driver()


async def lose_one(driver, deadline=None):
    """What a write ends with whose answers are lost."""
    coordinator = Coordinator(
        driver, asyncio.get_running_loop(), Policy(), server_selection_timeout=1.0, hooks=()
    )
    with pytest.raises(AutoReconnect) as caught:
        await Write(coordinator, SessionLease(driver.session), deadline).begin(
            Insert({"_id": 7}), TARGET
        )
    assert Outcome.UNKNOWN is outcome_of(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("minutes", "expected"), [(None, 1500), (30, 1500), (10, 500), (60, 1500), (1, 50)]
)
def test_trusted_seconds(minutes, expected):
    """25 minutes, or five sixths of the time for which the server remembers a session."""
    assert expected == pytest.approx(trusted_seconds(minutes))


@pytest.mark.parametrize(("minutes", "seconds"), [(None, 1500), (30, 1500), (10, 500), (60, 1500)])
class TestAge:
    async def test_of_a_write_that_is_remembered(self, minutes, seconds, clock, driver):
        """Within that time a write is resolved, with its own number."""
        driver.session_minutes = minutes
        exc = await lose_one(driver)
        clock(seconds - 60)
        driver.answer = OK
        assert 7 == (await resolve(exc)).inserted_id
        assert [1, 1, 1] == driver.numbers
        assert ["discarded", "discarded"] == driver.sessions

    async def test_of_a_write_that_may_be_forgotten(self, minutes, seconds, clock, driver):
        """After it nothing is sent."""
        driver.session_minutes = minutes
        exc = await lose_one(driver)
        clock(seconds)
        with pytest.raises(ResolveError, match=f"can be relied on for {seconds} s") as caught:
            await resolve(exc)
        assert exc is caught.value.__cause__
        assert 2 == len(driver.numbers)

    async def test_counts_from_the_first_attempt(self, minutes, seconds, clock, driver):
        """To have tried to resolve it makes it no younger."""
        driver.session_minutes = minutes
        first = await lose_one(driver)
        clock(seconds - 60)
        with pytest.raises(AutoReconnect) as caught:
            await resolve(first)
        assert Outcome.UNKNOWN is outcome_of(caught.value)
        clock(60)
        with pytest.raises(ResolveError, match="may have forgotten it"):
            await resolve(caught.value)
        assert 4 == len(driver.numbers)


class TestAgeWhileItIsTried:
    """However late an attempt comes, the one before it is known to the server."""

    async def test_of_a_write(self, clock, driver):
        """Its retries end, whatever its deadline."""
        driver.before = lambda: clock(600)
        await lose_one(driver, Deadline.after(7200))
        assert [1, 1, 1] == driver.numbers

    async def test_of_a_resolution(self, clock, driver):
        """Its one retry is not made if it would come too late."""
        exc = await lose_one(driver)
        clock(1490)
        driver.before = lambda: clock(20)
        with pytest.raises(AutoReconnect) as caught:
            await resolve(exc)
        assert (Outcome.UNKNOWN, 3) == (outcome_of(caught.value), len(driver.numbers))

    async def test_while_a_server_is_looked_for(self, clock, driver):
        """One that is found too late is sent nothing."""
        exc = await lose_one(driver)
        clock(1490)
        driver.is_there = False
        resolving = asyncio.create_task(resolve(exc))
        await asyncio.sleep(0)
        clock(20)
        driver.is_there = True
        with pytest.raises(ResolveError, match="no server was found before") as caught:
            await resolving
        assert (Outcome.UNKNOWN, 2) == (outcome_of(caught.value), len(driver.numbers))

    async def test_without_a_server(self, driver):
        """The error does not deny what was sent before."""
        exc = await lose_one(driver)
        driver.is_there = False
        with pytest.raises(
            ServerSelectionTimeoutError, match="the command was not sent again"
        ) as caught:
            await resolve(exc)
        assert "nothing" not in str(caught.value)
        assert (Outcome.UNKNOWN, 2) == (outcome_of(caught.value), len(driver.numbers))

    async def test_while_the_machine_slept(self, monkeypatch, driver):
        """A clock that stood still meanwhile makes it no younger."""
        exc = await lose_one(driver)
        slept = time.time() + 1500
        monkeypatch.setattr(time, "time", lambda: slept)
        with pytest.raises(ResolveError, match="began 1500 s ago"):
            await resolve(exc)
        assert 2 == len(driver.numbers)


class TestTimeout:
    @pytest.mark.parametrize("timeout", [3600, float("inf")])
    async def test_is_no_longer_than_the_servers_memory(self, timeout, clock, driver):
        """Retries end when a server may have forgotten the number, whatever the timeout."""
        exc = await lose_one(driver)
        clock(1500 - 60)
        driver.answer = OK
        await resolve(exc, timeout)
        assert driver.deadlines[-1].remaining() <= 60

    async def test_that_is_shorter(self, driver):
        """A timeout is what is left otherwise."""
        exc = await lose_one(driver)
        driver.answer = OK
        await resolve(exc, 5)
        assert driver.deadlines[-1].remaining() <= 5

    async def test_of_nothing(self, driver):
        """A timeout of zero sends nothing, and the doubt stays."""
        exc = await lose_one(driver)
        with pytest.raises(DeadlineExceeded) as caught:
            await resolve(exc, 0)
        assert (Outcome.UNKNOWN, 2) == (outcome_of(caught.value), len(driver.numbers))
