"""No test can hang: what strikes when one takes too long, in place of pytest-timeout's handlers.

pytest-timeout knows the limits (the ini file's, markers'). When one is over, the test fails with
the stacks of all threads and tasks in its report (so they arrive from a worker of pytest-xdist
too), and the processes that it started are killed, since what hangs mostly waits for one. A test
that goes on all the same is struck again, and after that its whole process is ended.
"""

import asyncio
import gc
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import FrameType

import psutil
import pytest

MERCY = 20.0  # seconds from one strike to the next
STRIKES = 3  # then the process is ended


class Limit:
    """The time limit of one test, with its fixtures.

    Args:
        item: the test.
        seconds: how long it may take.
    """

    def __init__(self, item: pytest.Item, seconds: float) -> None:
        self._item = item
        self._seconds = seconds
        self._began = _now()
        self._ended = threading.Event()
        signal.signal(signal.SIGALRM, self._strike)
        signal.setitimer(signal.ITIMER_REAL, seconds, MERCY)
        # A main thread that is blocked outside of Python runs no signal handler.
        last = threading.Thread(target=self._end_process, name="pytest-limit", daemon=True)
        last.start()

    def cancel(self) -> None:
        """The test is over."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._ended.set()

    def _strike(self, _signum: int, _frame: object) -> None:
        __tracebackhide__ = True
        self._item.add_report_section("call", "stacks at the time limit", stacks())
        self._kill_processes()
        pytest.fail(f"the test took more than {self._seconds:g} seconds")

    def _end_process(self) -> None:
        if self._ended.wait(self._seconds + STRIKES * MERCY):
            return
        self._kill_processes()
        text = f"\n{self._item.nodeid} can't be ended, so its process is\n{stacks()}\n"
        os.write(_stderr, text.encode())
        os._exit(1)

    def _kill_processes(self) -> None:
        """Kill what was started since the test began; what a worker's tests share is older."""
        for process in psutil.Process().children(recursive=True):
            try:
                if process.create_time() >= self._began:
                    process.kill()
            except psutil.NoSuchProcess:
                pass


def _now() -> float:
    """The time as it is given for the start of a process, which is rounded down."""
    if sys.platform == "linux":
        return psutil.boot_time() + time.clock_gettime(time.CLOCK_BOOTTIME) - 0.01
    return time.time() - 1.0


def stacks() -> str:
    """Where the tasks and threads are: each place once, tasks first, and few before many."""
    tasks: dict[str, list[str]] = {}
    for task in _tasks():
        frames = _awaiting(task.get_coro())
        stack = "".join(traceback.format_stack(frame, 1)[0] for frame in frames)
        tasks.setdefault(stack, []).append(task.get_name())
    threads: dict[str, list[str]] = {}
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        threads.setdefault(stack, []).append(names.get(number, str(number)))
    text = io.StringIO()
    for kind, places in (("task", tasks), ("thread", threads)):
        for stack, found in sorted(places.items(), key=lambda place: len(place[1])):
            print(f"--- {kind} {', '.join(found)}\n{stack}", end="", file=text)
    return text.getvalue()


def _awaiting(awaitable: object) -> Iterator[FrameType]:
    """The frames of a coroutine, of what it awaits, and so on; a task knows the first one only."""
    while awaitable is not None:
        frames = (getattr(awaitable, name, None) for name in ("cr_frame", "gi_frame", "ag_frame"))
        if (frame := next(filter(None, frames), None)) is None:
            return
        yield frame
        awaits = ("cr_await", "gi_yieldfrom", "ag_await")
        awaitable = next(filter(None, (getattr(awaitable, name, None) for name in awaits)), None)


def _tasks() -> Iterator[asyncio.Task]:
    for found in gc.get_objects():
        # Not isinstance(): a weak reference's object may be gone.
        if issubclass(type(found), asyncio.AbstractEventLoop) and not found.is_closed():
            yield from asyncio.all_tasks(found)


_stderr = 2


def pytest_configure() -> None:
    """Keep the standard error that pytest does not capture."""
    global _stderr  # noqa: PLW0603
    _stderr = os.dup(2)


_LIMIT = pytest.StashKey[Limit]()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item, settings):
    """Begin a test's time, in place of pytest-timeout, which forgets a test that has failed."""
    item.stash[_LIMIT] = Limit(item, settings.timeout)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """End it when the test is torn down."""
    try:
        return (yield)
    finally:
        if (limit := item.stash.get(_LIMIT, None)) is not None:
            limit.cancel()
