"""Who looks at the servers, how often, and what that costs while nobody wants to know."""

import asyncio
import contextvars

import pytest

from aioretry._drivers.port import TopologyView
from aioretry._retry.lookout import Lookout


class Fatal(BaseException):
    """Nothing that is caught as a rule."""


class Driver:
    """Counts who asks it what is known."""

    def __init__(self):
        self.looks = 0
        self.error = None
        self.topology = TopologyView({}, 0.015, object())

    def view(self):
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.topology


class Onlooker:
    """Looks so often, until it has looked some times."""

    def __init__(self, every, most, error=None):
        self.every, self.most, self.error = every, most, error
        self.seen = []
        self.done = asyncio.Event()

    def look(self, view):
        self.seen.append(view)
        if self.error is not None and len(self.seen) == 1:
            raise self.error
        if len(self.seen) >= self.most:
            self.done.set()
            return None
        return self.every


@pytest.fixture
async def driver():
    return Driver()


@pytest.fixture
async def lookout(driver):
    return Lookout(driver, asyncio.get_running_loop())


async def test_one_look_serves_all(driver, lookout):
    """A hundred who want to know at once cost as many looks as one of them."""
    onlookers = [Onlooker(0.0, 5) for _ in range(100)]
    for onlooker in onlookers:
        lookout.add(onlooker, 0.0)
    for onlooker in onlookers:
        await onlooker.done.wait()
    assert {5} == {len(onlooker.seen) for onlooker in onlookers}
    assert driver.looks <= 20


async def test_the_impatient_do_not_wait_for_the_patient(lookout):
    """Who comes later and looks sooner does so; the other one looks in its own time."""
    patient, impatient = Onlooker(3600, 1), Onlooker(0.001, 3)
    lookout.add(patient, 3600)
    lookout.add(impatient, 0.0)
    await impatient.done.wait()
    assert (0, 3) == (len(patient.seen), len(impatient.seen))


async def test_nobody_looks_for_nobody(driver, lookout):
    """When the last one has seen enough, there is no timer left."""
    onlooker = Onlooker(0.0, 2)
    lookout.add(onlooker, 0.0)
    await onlooker.done.wait()
    looks = driver.looks
    for _ in range(10):
        await asyncio.sleep(0)
    assert looks == driver.looks
    assert not [one for one in asyncio.get_running_loop()._scheduled if not one.cancelled()]


@pytest.mark.parametrize("error", [ValueError(), KeyError()])
async def test_a_view_that_raises(driver, lookout, error):
    """They are told that nothing can be seen, and go on as they like."""
    driver.error = error
    onlooker = Onlooker(0.0, 2)
    lookout.add(onlooker, 0.0)
    await onlooker.done.wait()
    assert [None, None] == onlooker.seen


async def test_a_view_that_ends_nothing(driver, lookout):
    """What a user's server selector raises may be no Exception; they look again."""
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, about: errors.append(about))
    driver.error = Fatal()
    onlooker = Onlooker(0.0, 2)
    lookout.add(onlooker, 0.0)
    while not errors:
        await asyncio.sleep(0)
    driver.error = None
    await onlooker.done.wait()
    assert [Fatal] * len(errors) == [type(about["exception"]) for about in errors]


async def test_an_onlooker_that_raises(lookout):
    """The loop's handler is told; neither it nor the others look less for it."""
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, about: errors.append(about))
    failing, other = Onlooker(0.0, 2, ZeroDivisionError()), Onlooker(0.0, 2)
    lookout.add(failing, 0.0)
    lookout.add(other, 0.0)
    await other.done.wait()
    await failing.done.wait()
    assert [ZeroDivisionError] == [type(about["exception"]) for about in errors]


async def test_in_nobodys_context(lookout):
    """What a caller has set is not there when somebody looks."""
    caller = contextvars.ContextVar("caller", default=None)
    caller.set(7)
    seen = []

    class Noting(Onlooker):
        def look(self, view):
            seen.append(caller.get())
            return super().look(view)

    onlooker = Noting(0.0, 2)
    lookout.add(onlooker, 0.0)
    await onlooker.done.wait()
    assert [None, None] == seen


async def test_a_loop_whose_timers_cannot_say_when(driver, monkeypatch):
    """What uvloop returns of a time that is over is no timer; nobody fails because of that."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(
        loop, "call_at", lambda _, call, context: loop.call_soon(call, context=context)
    )
    lookout, first, second = Lookout(driver, loop), Onlooker(0.0, 2), Onlooker(0.0, 2)
    lookout.add(first, 0.0)
    lookout.add(second, 0.0)
    await first.done.wait()
    await second.done.wait()
