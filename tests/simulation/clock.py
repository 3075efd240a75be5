"""Time that passes at once when nothing is left to be done."""

import asyncio
import contextlib
import gc
import random
import selectors
import time
import uuid
from collections.abc import Iterator
from unittest import mock

from aioretry.deadlines import Deadline

EPOCH = 1_800_000_000.0


class StuckError(Exception):
    """Somebody waits, and nothing will ever happen any more."""


class _Skipping(selectors.SelectSelector):
    """Waits for no socket, and for no time."""

    loop: "VirtualLoop"

    def select(self, timeout=None):
        """Let the time pass until the next timer."""
        if timeout is None:
            raise StuckError
        if timeout > 0:
            self.loop.skip()
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while it works, and skips what it would wait for.

    A library such as looptime waits for real sockets beside its timers, and so for real time. Here
    is nothing real: a run is the same each time, and one in which somebody waits for what never
    comes ends at once.
    """

    def __init__(self):
        selector = _Skipping()
        selector.loop = self
        self._now = 0.0
        super().__init__(selector)

    def time(self):
        """Return the virtual seconds since the loop was made."""
        return self._now

    def skip(self):
        """Go on to the next timer."""
        self._now = max(self._now, self._scheduled[0].when())

    def timers(self):
        """Return what is still to be called at some time."""
        return [timer for timer in self._scheduled if not timer.cancelled()]


class Clocks:
    """What the clocks say.

    Args:
        loop: Its time is the monotonic one.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.set_ahead = 0.0
        """By how much the wall clock was set ahead, in seconds."""

        self._settings: list[tuple[float, float]] = []
        """What it said whenever it was set, and by how much it was set ahead, in seconds."""

    def monotonic(self) -> float:
        """Return the monotonic time."""
        return self.loop.time()

    def wall(self) -> float:
        """Return the seconds since the epoch."""
        return EPOCH + self.loop.time() + self.set_ahead

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock ahead, or back."""
        self._settings.append((self.wall(), seconds))
        self.set_ahead += seconds

    def real_age(self, at: float) -> float:
        """Return how long ago the wall clock said something, in seconds that have passed."""
        return self.wall() - at - sum(seconds for before, seconds in self._settings if at <= before)

    @contextlib.contextmanager
    def in_force(self, seed: object) -> Iterator[None]:
        """Have everybody ask these clocks, and one source of random numbers, inside a block."""
        state, was_collecting = random.getstate(), gc.isenabled()
        # Both have taken the real clock for their default.
        functions = [Deadline.after.__func__, Deadline.__init__]
        before = [function.__defaults__ for function in functions]
        gc.disable()  # finalizers run when they run
        random.seed(str(seed))
        try:
            with (
                mock.patch.object(time, "monotonic", self.monotonic),
                mock.patch.object(time, "time", self.wall),
                mock.patch.object(uuid, "uuid4", _new_uuid),
            ):
                for function in functions:
                    function.__defaults__ = (self.monotonic,)
                yield
        finally:
            for function, old in zip(functions, before, strict=True):
                function.__defaults__ = old
            random.setstate(state)
            if was_collecting:
                gc.enable()


def _new_uuid() -> uuid.UUID:
    return uuid.UUID(int=random.getrandbits(128), version=4)
