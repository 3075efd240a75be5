"""A fault that was armed, which commands it is for, and the list of those at one proxy."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Any, Final, Self

from anyio import to_thread

from aioretry.testing._actions import Action, Partition, RefuseConnections, Throttle
from aioretry.testing._running import verify_after

# What drivers send by themselves; a fault that names no command spares it.
_DRIVERS_OWN: Final = frozenset(
    {"hello", "ping", "buildinfo", "saslstart", "saslcontinue", "endsessions", "killcursors"}
)
_ALIASES: Final = {"ismaster": "hello"}


class FaultNotFiredError(AssertionError):
    """A fault was declared and never struck: the test did not test what it says."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a command on its way to a server.

    Attributes:
        command: its name.
        body: the command itself.
        app_name: the application name that the client gave when it connected.
    """

    command: str
    body: Mapping[str, Any]
    app_name: str | None

    @property
    def namespace(self) -> str:
        """Database and collection, as `metrics.events`; the database if there is no collection."""
        database = self.body.get("$db", "")
        collection = self.body.get("collection") if self.command == "getMore" else None
        if collection is None:
            collection = self.body.get(self.command)
        return f"{database}.{collection}" if isinstance(collection, str) else str(database)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which commands a fault is for.

    Attributes:
        commands: their names; empty for all but those that drivers send by themselves.
        namespace: database and collection; None for any.
        app_name: the client's application name; None for any.
        where: a predicate on the whole command; None for any.
    """

    commands: tuple[str, ...] = ()
    namespace: str | None = None
    app_name: str | None = None
    where: Callable[[Mapping[str, Any]], bool] | None = None

    def __str__(self) -> str:
        parts = [*self.commands]
        parts += [f"namespace={self.namespace}"] if self.namespace else []
        parts += [f"app_name={self.app_name}"] if self.app_name else []
        parts += ["where=..."] if self.where else []
        return ", ".join(parts)

    def names(self, command: str) -> bool:
        """Say whether it is for commands of this name."""
        name = _canonical(command)
        if not self.commands:
            return name not in _DRIVERS_OWN
        return any(name == _canonical(other) for other in self.commands)

    def matches(self, request: Request) -> bool:
        """Say whether it is for this command."""
        return (
            self.names(request.command)
            and (self.namespace is None or self.namespace == request.namespace)
            and (self.app_name is None or self.app_name == request.app_name)
            and (self.where is None or bool(self.where(request.body)))
        )


class Fault:
    """A fault that was armed; it strikes until it is used up or disarmed.

    Use it as it is, or in a `with` or `async with` block. The end of the block disarms it, and
    raises `FaultNotFiredError` if it never struck. Safe to use from any thread and event loop.

    Made by the methods of `Faults`.
    """

    def __init__(
        self,
        action: Action,
        only: Filter,
        *,
        times: int | None,
        nth: int,
        must_fire: bool,
        disarm: Callable[["Fault"], None],
    ) -> None:
        self.action: Final = action
        self.only: Final = only
        self._times = times
        self._nth = nth
        self._must_fire = must_fire
        self._disarm = disarm
        self._changed = threading.Condition()  # guards all below
        self._armed = True
        self._settled = False
        self._seen = 0
        self._fired = 0
        self._passed: Counter[str] = Counter()  # commands that it was not for
        self._failure: BaseException | None = None  # of its predicate
        self._on_disarm: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        times = "always" if self._times is None else str(self._times)
        name = f"{type(self.action).__name__}({self.only})"
        return f"<Fault {name} fired={self._fired}/{times} seen={self._seen}>"

    @property
    def seen(self) -> int:
        """How many commands that it is for have passed while it was armed, struck or not.

        Connections, where it is for connections.
        """
        return self._seen

    @property
    def fired(self) -> int:
        """How often it has struck."""
        return self._fired

    @property
    def armed(self) -> bool:
        """Whether it was not disarmed yet."""
        return self._armed

    @property
    def settled(self) -> bool:
        """Whether its block has ended, and with it whether it struck was looked at."""
        return self._settled

    def disarm(self) -> None:
        """Let every later command pass, and what it holds go on; fine to repeat."""
        with self._changed:
            self._armed = False
            self._changed.notify_all()
            released, self._on_disarm = self._on_disarm, []
        self._disarm(self)
        for callback in released:
            callback()

    def verify(self) -> None:
        """Raise an error if it has done nothing.

        Raises:
            FaultNotFiredError: it never struck, and was not declared with `must_fire=False`.
            RuntimeError: its `where` raised an exception, which is the cause.
        """
        if self._failure is not None:
            raise RuntimeError(f"the `where` of {self!r} raised an exception") from self._failure
        if self._must_fire and not self._fired:
            passed = ", ".join(f"{name} {count}" for name, count in self._passed.most_common(8))
            raise FaultNotFiredError(
                f"{self!r} never struck; other commands that passed meanwhile: {passed or 'none'}."
                " If that is meant, declare it with must_fire=False"
            )

    async def wait_until_fired(self, times: int = 1, *, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        """Wait until it has struck.

        Args:
            times: how often.
            timeout: seconds.

        Raises:
            TimeoutError: it has not struck so often in time, or can't any more.
        """
        await to_thread.run_sync(self._wait, times, timeout, abandon_on_cancel=True)

    def pick(self, request: Request) -> bool:
        """Say whether a command is one that it may strike, and count it."""
        try:
            matches = self.only.matches(request)
        except BaseException as exc:  # noqa: BLE001  # a user's predicate, also `pytest.fail`;
            matches = False  # the test is told at the end
            self._failure = exc
        return self.notice() if matches else self.overlook(request.command)

    def notice(self) -> bool:
        """Count something that it is for, and say whether it may strike it."""
        with self._changed:
            self._seen += self._armed
            return self._seen >= self._nth

    def overlook(self, command: str) -> bool:
        """Count a command that it is not for."""
        with self._changed:
            self._passed[command] += 1
        return False

    def strike(self) -> bool:
        """Say whether to strike now, and count it."""
        with self._changed:
            if not self._armed or (self._times is not None and self._fired >= self._times):
                return False
            self._fired += 1
            self._changed.notify_all()
            return True

    def call_on_disarm(self, callback: Callable[[], object]) -> None:
        """Call something once it is disarmed, from whatever thread; at once if it is."""
        with self._changed:
            if self._armed:
                self._on_disarm.append(callback)
                return
        callback()

    def _wait(self, times: int, timeout: float) -> None:
        def is_decided() -> bool:
            used_up = self._times is not None and self._fired >= self._times
            return self._fired >= times or used_up or not self._armed

        with self._changed:
            in_time = self._changed.wait_for(is_decided, timeout)
            if self._fired < times:
                why = "can't any more" if in_time else f"{timeout:g} s are over"
                raise TimeoutError(f"{self!r} did not strike {times} times: {why}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.disarm()
        self._settled = True
        verify_after(exc, self.verify)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(exc_type, exc, traceback)


class FaultList:
    """The faults armed at one proxy, in the order in which they were armed; thread-safe.

    Args:
        changed: called when a fault for connections was added or removed.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()  # guards changes; readers take the present tuple
        self._faults: tuple[Fault, ...] = ()
        self._changed = changed

    def add(self, fault: Fault) -> None:
        """Arm a fault."""
        with self._lock:
            if fault.armed:  # else it was disarmed by another thread just now
                self._faults = (*self._faults, fault)
        self._tell(fault)

    def remove(self, fault: Fault) -> None:
        """Take a fault away; fine if it is not there."""
        with self._lock:
            self._faults = tuple(other for other in self._faults if other is not fault)
        self._tell(fault)

    def naming(self, command: str) -> tuple[Fault, ...]:
        """Give the faults that name a command, so that their filters need be asked."""
        faults = self._faults
        return tuple(fault for fault in faults if _names(fault, command)) if faults else ()

    def overlook(self, command: str) -> None:
        """Count a command at the faults that do not name it."""
        for fault in self._faults:
            if not _names(fault, command):
                fault.overlook(command)

    @property
    def partitions(self) -> list[tuple[Fault, Partition]]:
        """The faults that let nothing pass, and what they part."""
        return [(f, f.action) for f in self._faults if isinstance(f.action, Partition)]

    @property
    def throttles(self) -> list[Fault]:
        """The faults that let little pass in a second."""
        return [fault for fault in self._faults if isinstance(fault.action, Throttle)]

    @property
    def bytes_per_second(self) -> float:
        """How much they let pass; infinite without any."""
        actions = [f.action for f in self._faults]
        return min((a.bytes_per_second for a in actions if isinstance(a, Throttle)), default=inf)

    def refuses(self) -> bool:
        """Say whether a new connection is to be refused, and count it."""
        refusals = [f for f in self._faults if isinstance(f.action, RefuseConnections)]
        struck = [fault.notice() and fault.strike() for fault in refusals]
        return any(struck)

    def _tell(self, fault: Fault) -> None:
        if isinstance(fault.action, Partition | Throttle):
            self._changed()


def _names(fault: Fault, command: str) -> bool:
    for_commands = not isinstance(fault.action, Partition | RefuseConnections | Throttle)
    return for_commands and fault.only.names(command)


def _canonical(command: str) -> str:
    name = command.lower()
    return _ALIASES.get(name, name)
