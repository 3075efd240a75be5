"""The faults that a user can declare at proxies."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict, Unpack

from aioretry.testing import _checks
from aioretry.testing._actions import (
    Action,
    CorruptReply,
    Delay,
    DropReply,
    DropRequest,
    Error,
    Hang,
    Observe,
    Partition,
    RefuseConnections,
    Slow,
    Throttle,
    TruncateReply,
    WriteConcernError,
)
from aioretry.testing._fault import Fault, FaultList, FaultNotFiredError, Filter


class Endpoint(Protocol):
    """What faults can be narrowed down to: a member, a fake mongos."""

    @property
    def address(self) -> str:
        """Host and port that clients know it by."""
        ...


class Only(TypedDict, total=False):
    """What narrows a fault down, and how often it strikes; all of it is optional.

    Attributes:
        times: how often it strikes in all; None for every time. Once by default.
        nth: the first of the commands that it strikes; 1, the default, is the next one. Among
            commands at once, a fault of answers strikes those whose answers come first, of the
            nth command and later ones.
        member: only at this member (or mongos); by default at any.
        namespace: only on this collection, as `metrics.events`.
        app_name: only for clients with this application name.
        where: only commands for which this is true. It is given the whole command, with its
            `documents`, `updates` or `deletes`; dates in it are `bson.datetime_ms.DatetimeMS`. It
            runs in the proxy's thread.
        must_fire: whether it is an error that it never struck, found when its block or the test
            ends. It is by default.
    """

    times: int | None
    nth: int
    member: Endpoint | None
    namespace: str | None
    app_name: str | None
    where: Callable[[Mapping[str, Any]], bool] | None
    must_fire: bool


class Faults:
    """Faults between clients and servers, committed by the proxies between them.

    Every method arms a fault and returns it. Let it be, or use it in a `with` or `async with`
    block, whose end disarms it. A fault that never struck is an error at the end of its block, or
    when `verify` is called, which the pytest fixture `faults` does.

    Without the name of a command, a fault is for every command but those that drivers send by
    themselves (`hello`, `ping`, authentication, `endSessions` and the like). The other conditions
    are those of `Only`; all of them have to hold. Where several faults meet the same command, they
    act in the order in which they were armed.

    Safe to use from any thread and event loop.

    Args:
        lists: the list of faults of each proxy, by the proxy's address.
        peers: by the same addresses, each member's own port, and the list of faults of the proxy
            that other members reach it through.
    """

    def __init__(
        self,
        lists: Mapping[str, FaultList],
        peers: Mapping[str, tuple[int, FaultList]] | None = None,
    ) -> None:
        self._lists = lists
        self._peers = peers or {}
        self._lock = threading.Lock()  # guards changes of the list below
        self._declared: list[Fault] = []

    def __repr__(self) -> str:
        return f"<Faults {' '.join(map(repr, self._declared)) or 'none'}>"

    @property
    def declared(self) -> tuple[Fault, ...]:
        """The faults that were declared since the last `verify` or `clear`.

        Those whose block has ended are no longer among them.
        """
        return tuple(fault for fault in self._declared if not fault.settled)

    def verify(self) -> None:
        """Disarm every fault, and raise an error if one of them has done nothing.

        Raises:
            FaultNotFiredError: faults were declared that never struck.
            RuntimeError: the `where` of a fault raised an exception, which is the cause.
        """
        faults = self._forget()
        idle = []
        for fault in faults:
            try:
                fault.verify()
            except FaultNotFiredError as exc:
                idle.append(str(exc))
        if idle:
            raise FaultNotFiredError("\n".join(idle))

    def clear(self) -> None:
        """Disarm every fault, and forget it."""
        self._forget()

    def drop_request(self, *commands: str, **only: Unpack[Only]) -> Fault:
        """Lose a command before it reaches a server, and close the client's connection.

        Args:
            commands: names of commands.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        return self._arm(DropRequest(), commands, **only)

    def drop_reply(self, *commands: str, **only: Unpack[Only]) -> Fault:
        """Lose the answer to a command: it is run, and the client never hears of it.

        The client's connection is closed when the answer arrives.

        Args:
            commands: names of commands.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        return self._arm(DropReply(), commands, **only)

    def hang(self, *commands: str, applied: bool = False, **only: Unpack[Only]) -> Fault:
        """Hold a command up until the fault is disarmed; nothing is closed.

        What is held goes on then, even if the client has closed its connection meanwhile: so a
        command can arrive late.

        Args:
            commands: names of commands.
            applied: let the server run it first, and hold the answer up.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        return self._arm(Hang(applied), commands, **only)

    def delay(
        self,
        seconds: float,
        *commands: str,
        applied: bool = False,
        jitter: float = 0.0,
        **only: Unpack[Only],
    ) -> Fault:
        """Hold a command up for a while.

        Args:
            seconds: for how long.
            commands: names of commands.
            applied: let the server run it first, and hold the answer up.
            jitter: how many seconds longer it may be, at random each time; with `times=None`, what
                a network of changing latency does.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        _checks.finite("seconds", seconds, zero=True)
        _checks.finite("jitter", jitter, zero=True)
        return self._arm(Delay(seconds, applied, jitter), commands, **only)

    def truncate_reply(self, size: int, *commands: str, **only: Unpack[Only]) -> Fault:
        """Send only the beginning of an answer, and close the client's connection.

        Args:
            size: how many bytes to send at most; 16 of them are the header.
            commands: names of commands.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        _checks.whole("size", size, 0)
        return self._arm(TruncateReply(size), commands, **only)

    def corrupt_reply(self, *commands: str, **only: Unpack[Only]) -> Fault:
        """Garble an answer: it has the right length, and holds no document.

        Args:
            commands: names of commands.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        return self._arm(CorruptReply(), commands, **only)

    def error(
        self,
        code: int,
        *commands: str,
        labels: Sequence[str] | None = None,
        message: str | None = None,
        applied: bool = False,
        extra: Mapping[str, Any] | None = None,
        **only: Unpack[Only],
    ) -> Fault:
        """Answer a command with an error.

        After an error that tells of a state change (such as 10107, not primary, or 91, shutting
        down) the clients' monitors lose their connections and look again, as they would learn of
        a real one; a monitor that is not told would take the server for unknown for 10 seconds.

        Args:
            code: the error's code.
            commands: names of commands.
            labels: its error labels; by default those that a server from 4.4 on gives, which are
                RetryableWriteError for a numbered write and TransientTransactionError in a
                transaction, if the code is worth another try. `()` for none.
            message: its text.
            applied: let the server run the command first, and replace its answer.
            extra: more fields of the answer, as `{"baseBackoffMS": 20}`.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        body = {"ok": 0.0, **_error(code, message), **_checks.fields("extra", extra)}
        return self._arm(Error(body, _labels(labels), applied), commands, **only)

    def write_concern_error(
        self,
        code: int,
        *commands: str,
        labels: Sequence[str] | None = None,
        message: str | None = None,
        extra: Mapping[str, Any] | None = None,
        **only: Unpack[Only],
    ) -> Fault:
        """Put a write concern error into the answer to a command, which is run.

        Monitors are told of a state change as by `error`.

        Args:
            code: the error's code.
            commands: names of commands.
            labels: labels that are added to the answer; by default as for `error`, except that a
                mongos gives none.
            message: its text.
            extra: more fields of the error, as `{"errInfo": {"wtimeout": True}}`.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        error = _error(code, message) | _checks.fields("extra", extra)
        return self._arm(WriteConcernError(error, _labels(labels)), commands, **only)

    def slow(self, bytes_per_second: float, *commands: str, **only: Unpack[Only]) -> Fault:
        """Let commands and their answers trickle; every time, unless `times` is given.

        Args:
            bytes_per_second: how fast.
            commands: names of commands.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        _checks.finite("bytes_per_second", bytes_per_second, zero=False)
        only.setdefault("times", None)
        return self._arm(Slow(bytes_per_second), commands, **only)

    def watch(self, *commands: str, **only: Unpack[Only]) -> Fault:
        """Do nothing to commands, and count them; every time, unless `times` is given.

        For a test that waits until commands have passed (`wait_until_fired`), or requires it.

        Args:
            commands: names of commands.
            only: further conditions.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        only.setdefault("times", None)
        return self._arm(Observe(), commands, **only)

    def refuse_connections(
        self,
        *,
        times: int | None = None,
        nth: int = 1,
        member: Endpoint | None = None,
        must_fire: bool = True,
    ) -> Fault:
        """Reset new connections as soon as they are made; those that are open stay.

        A connection is accepted and reset at once: the nearest to a port where nobody listens that
        can be counted.

        Args:
            times: how often in all; None for every time.
            nth: the first connection that is refused; 1 is the next one.
            member: only at this member (or mongos); by default at any.
            must_fire: whether it is an error that no connection was refused.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range.
        """
        only = Only(times=times, nth=nth, member=member, must_fire=must_fire)
        return self._arm(RefuseConnections(), (), **only)

    def partition(self, member: Endpoint | None = None, *, must_fire: bool = True) -> Fault:
        """Let nothing pass between clients and a member until the fault is disarmed.

        As when a cable is pulled, connections stay open, monitors hear nothing, and what was sent
        arrives once the fault is disarmed. The members still reach each other, unless `isolate`
        parts them, too. It strikes each connection once.

        Args:
            member: the member (or mongos); all of them by default.
            must_fire: whether it is an error that it met no connection.

        Raises:
            ValueError: the member is behind none of these proxies.
        """
        return self._arm(Partition(), (), times=None, member=member, must_fire=must_fire)

    def throttle(
        self,
        bytes_per_second: float,
        member: Endpoint | None = None,
        *,
        must_fire: bool = True,
    ) -> Fault:
        """Make the line between clients and a member narrow until the fault is disarmed.

        All connections over it, open or new, share the limit and take turns, monitors' too; there
        is one for each direction, and for each member. What comes faster is not read, so that who
        sends it has to wait as soon as the systems' own buffers are full: they take some megabytes
        of a message at once. It strikes each connection once; the narrowest of several counts.

        Args:
            bytes_per_second: how much.
            member: the member (or mongos); all of them by default.
            must_fire: whether it is an error that it met no connection.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is out of its range, or the member is behind none of these
                proxies.
        """
        _checks.finite("bytes_per_second", bytes_per_second, zero=False)
        action = Throttle(bytes_per_second)
        return self._arm(action, (), times=None, member=member, must_fire=must_fire)

    def isolate(self, *members: Endpoint, must_fire: bool = True) -> Fault:
        """Let nothing pass between some members and the others until the fault is disarmed.

        Clients still reach all of them. A primary that is isolated goes on taking writes until it
        has missed the others for its election timeout; those that no majority has are lost once
        the others have a primary. It needs a `ReplicaSet` with `member_proxies=True`.

        Args:
            members: those on one side, who still reach each other.
            must_fire: whether it is an error that it met no connection.

        Raises:
            RuntimeError: there are no proxies between the members.
            TypeError: one of them is no member.
            ValueError: there is none, or one of them is no member of this set.
        """
        if not self._peers:
            raise RuntimeError(
                "there are no proxies between members: they need a ReplicaSet with "
                "member_proxies=True"
            )
        accepted = f"some of those at {', '.join(self._peers)}"
        _checks.require(bool(members), "members", members, accepted)
        for member in members:
            self._find(member)
        isolated = frozenset(self._peers[member.address][0] for member in members)
        lists = [faults for _, faults in self._peers.values()]
        return self._declare(Partition(isolated), Filter(), lists, must_fire=must_fire)

    def _arm(
        self,
        action: Action,
        commands: tuple[str, ...],
        *,
        times: int | None = 1,
        nth: int = 1,
        member: Endpoint | None = None,
        namespace: str | None = None,
        app_name: str | None = None,
        where: Callable[[Mapping[str, Any]], bool] | None = None,
        must_fire: bool = True,
    ) -> Fault:
        _checks.texts("commands", commands, "names of commands, as 'insert',")
        if times is not None:
            _checks.whole("times", times, 1)
        _checks.whole("nth", nth, 1)
        _checks.text("namespace", namespace, "a collection, as 'metrics.events', or None")
        _checks.text("app_name", app_name, "an application's name or None")
        _checks.require(
            where is None or callable(where), "where", where, "a function or None", TypeError
        )
        only = Filter(commands, namespace, app_name, where)
        lists = self._find(member)
        return self._declare(action, only, lists, times=times, nth=nth, must_fire=must_fire)

    def _declare(
        self,
        action: Action,
        only: Filter,
        lists: Sequence[FaultList],
        *,
        times: int | None = None,
        nth: int = 1,
        must_fire: bool,
    ) -> Fault:
        def disarm(fault: Fault) -> None:
            for faults in lists:
                faults.remove(fault)

        fault = Fault(action, only, times=times, nth=nth, must_fire=must_fire, disarm=disarm)
        with self._lock:
            self._declared = [*self.declared, fault]
        for faults in lists:
            faults.add(fault)
        return fault

    def _find(self, member: Endpoint | None) -> list[FaultList]:
        if member is None:
            return list(self._lists.values())
        address = getattr(member, "address", None)
        accepted = f"one of those behind {', '.join(self._lists)}"
        _checks.require(address is not None, "member", member, accepted, TypeError)
        _checks.require(address in self._lists, "member", member, accepted)
        return [self._lists[member.address]]

    def _forget(self) -> tuple[Fault, ...]:
        """Disarm every fault, and give those that were not looked at."""
        with self._lock:
            faults, self._declared = self.declared, []
        for fault in faults:
            fault.disarm()
        return faults


def _labels(labels: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if labels is None else _checks.texts("labels", labels, "a list of texts or None")


def _error(code: int, message: str | None) -> dict[str, Any]:
    _checks.whole("code", code)
    _checks.text("message", message, "a text or None")
    return {"errmsg": message or f"injected error {code}", "code": code}
