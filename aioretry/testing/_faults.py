"""Faults that a proxy commits: what to do, to which commands, how often."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self

from anyio import to_thread

_NO_FAULTS: Final[tuple["Fault", ...]] = ()


class FaultKind(Enum):
    """What is done to a command that a fault strikes.

    In each case the client's connection is closed instead of an answer.
    """

    DROP_REQUEST = "drop request"
    """The server never sees the command."""

    DROP_REPLY = "drop reply"
    """The server runs the command and answers it; the client never sees the answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a command on its way to a server.

    Attributes:
        command: its name.
        body: the command itself, without document sequences.
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
        commands: their names, in lower case.
        namespace: database and collection; None for any.
        app_name: the client's application name; None for any.
    """

    commands: frozenset[str]
    namespace: str | None = None
    app_name: str | None = None

    def matches(self, request: Request) -> bool:
        """Say whether the fault is for this command."""
        return (
            request.command.lower() in self.commands
            and (self.namespace is None or self.namespace == request.namespace)
            and (self.app_name is None or self.app_name == request.app_name)
        )


class Fault:
    """A fault that was armed; it strikes until it is used up or disarmed.

    Use it as it is, or in a `with` or `async with` block, whose end disarms it. Safe to use from
    any thread and any event loop.

    Args:
        kind: what it does.
        only: the commands that it is for.
        times: how often it strikes; None for every time.
        disarm: takes it away from the proxies.
    """

    def __init__(
        self, kind: FaultKind, only: Filter, times: int | None, disarm: Callable[["Fault"], None]
    ) -> None:
        self.kind: Final = kind
        self.only: Final = only
        self._times = times
        self._disarm = disarm
        self._changed = threading.Condition()  # guards the three below
        self._armed = True
        self._seen = 0
        self._fired = 0

    def __repr__(self) -> str:
        names = ",".join(sorted(self.only.commands))
        times = "always" if self._times is None else str(self._times)
        return f"<Fault {self.kind.value} {names} fired={self._fired}/{times} seen={self._seen}>"

    @property
    def seen(self) -> int:
        """How many commands that it is for have passed while it was armed, struck or not."""
        return self._seen

    @property
    def fired(self) -> int:
        """How often it has struck."""
        return self._fired

    def disarm(self) -> None:
        """Let every later command pass; fine to repeat."""
        with self._changed:
            self._armed = False
        self._disarm(self)

    async def wait_until_fired(self, times: int = 1, *, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        """Wait until it has struck.

        Args:
            times: how often.
            timeout: seconds.

        Raises:
            TimeoutError: it has not struck so often in time.
        """
        await to_thread.run_sync(self._wait, times, timeout, abandon_on_cancel=True)

    def notice(self) -> None:
        """Count a command that it is for."""
        with self._changed:
            self._seen += self._armed

    def strike(self) -> bool:
        """Say whether to strike now, and count it."""
        with self._changed:
            if not self._armed or (self._times is not None and self._fired >= self._times):
                return False
            self._fired += 1
            self._changed.notify_all()
            return True

    def _wait(self, times: int, timeout: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._fired >= times, timeout):
                raise TimeoutError(f"{self!r} did not strike {times} times in {timeout:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.disarm()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.disarm()


class FaultList:
    """The faults armed at one proxy, in the order in which they were armed; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards changes; readers take the present mapping
        self._by_command: Mapping[str, tuple[Fault, ...]] = {}

    def add(self, fault: Fault) -> None:
        """Arm a fault."""
        with self._lock:
            added = {name: (*self.naming(name), fault) for name in fault.only.commands}
            self._by_command = {**self._by_command, **added}

    def remove(self, fault: Fault) -> None:
        """Take a fault away; fine if it is not there."""
        with self._lock:
            left = {
                name: tuple(other for other in faults if other is not fault)
                for name, faults in self._by_command.items()
            }
            self._by_command = {name: faults for name, faults in left.items() if faults}

    def naming(self, command: str) -> tuple[Fault, ...]:
        """Give the faults that name a command, so that their filters need be asked."""
        return self._by_command.get(command.lower(), _NO_FAULTS)


def arm(
    kind: FaultKind,
    lists: Sequence[FaultList],
    commands: Sequence[str],
    *,
    times: int | None,
    namespace: str | None,
    app_name: str | None,
) -> Fault:
    """Make a fault and arm it at proxies, which share its counts.

    Args:
        kind: what it does.
        lists: the proxies' lists.
        commands: the commands that it is for, in any case.
        times: how often it strikes in all; None for every time.
        namespace: database and collection that it is for; None for any.
        app_name: the application name of the clients that it is for; None for any.

    Returns:
        The armed fault.

    Raises:
        ValueError: no command is named, or it would never strike.
    """
    if not commands or (times is not None and times < 1):
        raise ValueError("a fault needs the name of a command, and at least one time to strike")

    def disarm(fault: Fault) -> None:
        for faults in lists:
            faults.remove(fault)

    only = Filter(frozenset(name.lower() for name in commands), namespace, app_name)
    fault = Fault(kind, only, times, disarm)
    for faults in lists:
        faults.add(fault)
    return fault


def struck(faults: tuple[Fault, ...], kind: FaultKind) -> bool:
    """Let the first fault of a kind that is willing strike.

    Args:
        faults: faults that a command matches, in the order in which they were armed.
        kind: the kind that has its turn now.

    Returns:
        Whether one did.
    """
    return any(fault.strike() for fault in faults if fault.kind is kind)
