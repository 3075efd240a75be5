"""For how long nobody has taken writes, as far as is known."""

import asyncio
from types import SimpleNamespace

import pytest

from aioretry._drivers.port import ConnectionCounts, ServerKind, TopologyView
from aioretry._retry.availability import Availability
from aioretry._retry.lookout import Lookout

NOBODY = TopologyView({}, 0.015, None)


class Loop:
    """A clock that a test moves, and the loop that it belongs to."""

    def __init__(self):
        self.now = 1000.0
        self.timers = []

    def time(self):
        return self.now

    def call_at(self, when, call, *args, context=None):
        timer = asyncio.TimerHandle(when, call, args, asyncio.get_running_loop(), context)
        self.timers.append(timer)
        return timer

    def create_future(self):
        return asyncio.get_running_loop().create_future()

    def create_task(self, coro):
        return asyncio.get_running_loop().create_task(coro)

    def waits(self):
        """What would still happen."""
        return [each for each in self.timers if not each.cancelled()]

    def pass_time(self, seconds):
        end = self.now + seconds
        while due := [each for each in self.waits() if each.when() <= end]:
            timer = min(due, key=asyncio.TimerHandle.when)
            self.timers.remove(timer)
            self.now = max(self.now, timer.when())
            timer._run()
        self.now = end


class Driver:
    """Knows what a test says."""

    def __init__(self):
        self.known = NOBODY
        self.searches = 0
        self.is_probing = False
        self.held = {}
        self.silence = None

    def view(self):
        if isinstance(self.known, Exception):
            raise self.known
        return self.known

    def start_probing(self):
        self.searches += not self.is_probing
        self.is_probing = True

    def stop_probing(self):
        self.is_probing = False

    def connections(self):
        return self.held

    def unattended(self):
        return self.silence


def somebody(kind=ServerKind.PRIMARY):
    """A deployment with a server."""
    server = SimpleNamespace(address=("a", 1), kind=kind)
    return TopologyView({server.address: server}, 0.015, None)


@pytest.fixture
async def loop():
    loop = Loop()
    yield loop
    loop.pass_time(20)
    await settle()
    loop.pass_time(100)  # nobody is left who looks
    assert not loop.waits()


@pytest.fixture
async def driver():
    return Driver()


@pytest.fixture
async def availability(driver, loop):
    return Availability(driver, loop, Lookout(driver, loop))


async def settle():
    """Let tasks begin and end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_never(availability, driver, loop):
    """It is not known since when; whoever asks has the driver look, in one search at a time."""
    for _ in range(5):
        assert availability.seconds_without() is None
        await settle()
        loop.pass_time(1.0)
    assert driver.searches == 1
    assert driver.is_probing


async def test_there_is_one(availability, driver):
    """Nobody is looked for."""
    driver.known = somebody()
    assert availability.seconds_without() == 0
    await settle()
    assert driver.searches == 0


async def test_one_that_is_lost(availability, driver, loop):
    """The time is counted from when it was last there, not from when somebody last asked."""
    driver.known = somebody()
    assert availability.seconds_without() == 0
    loop.pass_time(20.0)
    driver.known = NOBODY
    loop.pass_time(5.0)
    assert 5.0 <= availability.seconds_without() <= 6.0
    loop.pass_time(7.0)
    assert 12.0 <= availability.seconds_without() <= 13.0
    driver.known = somebody()
    loop.pass_time(1.5)
    driver.known = NOBODY
    assert availability.seconds_without() <= 1.0


async def test_a_search_that_ended(availability, driver, loop):
    """The next question begins another one; nobody searches for one who does not ask."""
    assert availability.seconds_without() is None
    await settle()
    loop.pass_time(20.0)
    await settle()
    assert not driver.is_probing
    assert availability.seconds_without() is None
    await settle()
    assert driver.searches == 2


async def test_nobody_asks_any_more(availability, driver, loop):
    """The looking ends, and begins again with the next question: what nobody saw does not count."""
    driver.known = somebody()
    availability.seconds_without()
    loop.pass_time(600.0)
    assert not loop.waits()
    driver.known = NOBODY
    assert 0 < availability.seconds_without() <= 5.0
    loop.pass_time(10.0)
    assert 10.0 <= availability.seconds_without() <= 16.0


async def test_a_process_that_was_stopped(availability, driver, loop):
    """Nor does the time in which it could not look."""
    driver.known = somebody()
    availability.seconds_without()
    loop.pass_time(3.0)
    driver.known = NOBODY
    loop.now += 3600.0
    assert 0 < availability.seconds_without() <= 5.0


async def test_a_moment(availability, driver):
    """That there is none is told at once, however short it is yet."""
    driver.known = somebody()
    assert availability.seconds_without() == 0
    driver.known = NOBODY
    assert availability.seconds_without() > 0


@pytest.mark.parametrize("kind", [ServerKind.OTHER, ServerKind.LOAD_BALANCER])
async def test_a_server_that_may_not_take_writes(availability, driver, kind):
    """A direct connection goes to a secondary, too, and nobody asks a load balancer."""
    driver.known = somebody(kind)
    assert availability.seconds_without() is None


async def test_a_load_balancer(availability, driver, loop):
    """It is there as long as there are connections to it."""
    driver.known = somebody(ServerKind.LOAD_BALANCER)
    driver.held = {("a", 1): ConnectionCounts(used=0, idle=1)}
    assert availability.seconds_without() == 0
    driver.held = {("a", 1): ConnectionCounts(used=0, idle=0)}
    loop.pass_time(10.0)
    assert 10.0 <= availability.seconds_without() <= 12.0


async def test_unattended(availability, driver, loop):
    """Servers are not looked after if that was so a second ago: a stopped process goes on first."""
    assert not availability.is_unattended()
    driver.silence = 100.0
    assert not availability.is_unattended()
    driver.silence = None
    assert not availability.is_unattended()
    driver.silence = 100.0
    assert not availability.is_unattended()
    loop.now += 1.5
    assert availability.is_unattended()


async def test_a_driver_that_can_not_say(availability, driver, loop):
    """Who asks is told why; who looks meanwhile notes nothing."""
    driver.known = somebody()
    assert availability.seconds_without() == 0
    driver.known = ZeroDivisionError()
    loop.pass_time(3.0)
    with pytest.raises(ZeroDivisionError):
        availability.seconds_without()
