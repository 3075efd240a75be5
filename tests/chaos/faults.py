"""Carrying a schedule out on a replica set."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from aioretry.testing import CommandFailedError, Fault, Member, NoPrimaryError, ReplicaSet
from tests.chaos.schedule import Kind, Planned
from tests.chaos.timeline import Happened, Timeline

Say = Callable[[str], None]
_WTIMEOUT = 64
_MAY_BE_APPLIED = (Kind.DELAY, Kind.HANG, Kind.ERROR, Kind.HOT_BREAK)
_ONE_IN = 3  # connections that are lost at once
_LOST_EVERY = 0.5  # seconds


class Saboteur:
    """Breaks a replica set as planned, and heals it.

    Two faults of processes never meet the same member. One that finds nobody to break, or no
    primary to step down, does not happen.

    Args:
        servers: The set, with proxies.
        timeline: Where the faults are noted.
        say: Told of each fault when it begins.
    """

    def __init__(self, servers: ReplicaSet, timeline: Timeline, say: Say) -> None:
        self._servers = servers
        self._timeline = timeline
        self._say = say
        self._broken: set[int] = set()

    async def run(self, plan: Sequence[Planned]) -> None:
        """Do all that is planned, and heal each of it.

        Raises:
            ExceptionGroup: A server did not come back.
        """
        async with asyncio.TaskGroup() as group:
            for planned in plan:
                group.create_task(self._carry_out(planned))

    async def _carry_out(self, planned: Planned) -> None:
        await self._wait_until(planned.at)
        if planned.kind is Kind.HALF_DEAD:
            way = self._break_connections
        else:
            way = self._break_process if planned.kind.is_of_processes else self._break_network
        began = self._timeline.now
        async with way(planned) as doing:
            if doing is None:
                self._say(f"{planned.kind.value}: nobody to do it to")
                return
            self._say(f"{doing.text}, for {planned.lasts:.1f} s")
            await self._wait_until(began + planned.lasts)
        fired = 0 if doing.fault is None else doing.fault.fired
        self._timeline.faults.append(
            Happened(
                planned.kind, doing.text, began, self._timeline.now, fired, tuple(doing.strokes)
            )
        )

    async def _wait_until(self, when: float) -> None:
        await asyncio.sleep(max(0.0, when - self._timeline.now))

    @asynccontextmanager
    async def _break_network(self, planned: Planned) -> AsyncIterator["_Doing"]:
        member = await self._choose(planned, broken_too=True)
        fault, text = self._arm(planned, member)
        try:
            yield _Doing(text, fault)
        finally:
            fault.disarm()

    @asynccontextmanager
    async def _break_connections(self, planned: Planned) -> AsyncIterator["_Doing"]:
        member = await self._choose(planned, broken_too=True)
        members = self._servers.members if member is None else (member,)
        doing = _Doing(f"{planned.kind.value} to {_name(member)}, each {_LOST_EVERY:g} s")
        losing = asyncio.create_task(self._lose_connections(members, doing.strokes))
        try:
            yield doing
        finally:
            losing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await losing

    async def _lose_connections(self, members: Sequence[Member], strokes: list[float]) -> None:
        """Lose some connections again and again, as if one of several back ends had died."""
        while True:
            strokes.append(self._timeline.now)
            for member in members:
                await asyncio.to_thread(_lose_some, member)
            await asyncio.sleep(_LOST_EVERY)

    def _arm(self, planned: Planned, member: Member | None) -> tuple[Fault, str]:
        faults, commands = self._servers.faults, planned.commands
        times = planned.times
        name = planned.kind.value
        about = f"{name} ({'every time' if times is None else times}, {' '.join(commands)})"
        if planned.kind in _MAY_BE_APPLIED and planned.applied:
            about += " after the server ran them"
        match planned.kind:
            case Kind.DROP_REQUEST:
                return faults.drop_request(*commands, times=times, must_fire=False), about
            case Kind.DROP_REPLY:
                return faults.drop_reply(*commands, times=times, must_fire=False), about
            case Kind.HOT_BREAK:
                drop = faults.drop_reply if planned.applied else faults.drop_request
                return drop(*commands, times=times, must_fire=False), about
            case Kind.DELAY:
                fault = faults.delay(
                    planned.wait, *commands, applied=planned.applied, times=times, must_fire=False
                )
                return fault, f"{about}, {planned.wait:g} s each"
            case Kind.HANG:
                fault = faults.hang(
                    *commands, applied=planned.applied, times=times, must_fire=False
                )
                return fault, about
            case Kind.ERROR:
                fault = faults.error(
                    planned.code, *commands, applied=planned.applied, times=times, must_fire=False
                )
                return fault, f"{about}, code {planned.code}"
            case Kind.WRITE_CONCERN_ERROR:
                extra = {"errInfo": {"wtimeout": True}} if planned.code == _WTIMEOUT else None
                fault = faults.write_concern_error(
                    planned.code, *commands, extra=extra, times=times, must_fire=False
                )
                return fault, f"{about}, code {planned.code}"
            case Kind.REFUSE:
                fault = faults.refuse_connections(member=member, must_fire=False)
                return fault, f"{name} by {_name(member)}"
            case Kind.ISOLATE:
                lost = member or self._servers.members[planned.member]
                return faults.isolate(lost, must_fire=False), f"{name}: {_name(lost)}"
            case _:
                fault = faults.partition(member, must_fire=False)
                return fault, f"{name} before {_name(member)}"

    @asynccontextmanager
    async def _break_process(self, planned: Planned) -> AsyncIterator["_Doing | None"]:
        if planned.kind is Kind.STEP_DOWN:
            text = await self._step_down(planned)
            yield None if text is None else _Doing(text)
            return
        member = await self._choose(planned, broken_too=False)
        if member is None:
            yield None
            return
        self._broken.add(member.index)
        try:
            async with self._ways(planned.kind, member):
                yield _Doing(f"{planned.kind.value} of {_name(member)}")
        finally:
            self._broken.remove(member.index)

    def _ways(self, kind: Kind, member: Member) -> AbstractAsyncContextManager[None]:
        if kind is Kind.FREEZE:
            return self._frozen(member)
        return self._gone(member, cleanly=kind is Kind.RESTART)

    @asynccontextmanager
    async def _frozen(self, member: Member) -> AsyncIterator[None]:
        await self._servers.freeze(member)
        try:
            yield
        finally:
            await self._servers.thaw(member)

    @asynccontextmanager
    async def _gone(self, member: Member, *, cleanly: bool) -> AsyncIterator[None]:
        try:
            if cleanly:
                await self._servers.shut_down(member)
            else:
                await self._servers.kill(member)
            yield
        finally:
            await self._servers.restart(member)

    async def _step_down(self, planned: Planned) -> str | None:
        with contextlib.suppress(NoPrimaryError, CommandFailedError, OSError):
            member = await self._servers.step_down(seconds=planned.lasts)
            return f"{planned.kind.value} of {_name(member)}"
        return None

    async def _choose(self, planned: Planned, *, broken_too: bool) -> Member | None:
        """Choose the member that a fault meets; None for all, or if there is none."""
        if broken_too and planned.everywhere:
            return None
        members = self._servers.members
        turn = planned.member
        candidates = [*members[turn:], *members[:turn]]
        if planned.primary:
            with contextlib.suppress(NoPrimaryError):
                candidates.insert(0, await self._servers.primary())
        whole = (one for one in candidates if broken_too or one.index not in self._broken)
        return next(whole, None)


@dataclass(frozen=True, slots=True)
class _Doing:
    """A fault that lasts."""

    text: str
    fault: Fault | None = None
    strokes: list[float] = field(default_factory=list)


def _lose_some(member: Member) -> None:
    proxy = member.proxy
    if proxy is None:
        raise AssertionError("there is no proxy")

    def lose() -> None:
        links = [link for link in proxy._links._links if not link.is_monitor]
        for link in links[::_ONE_IN]:
            link.abort()

    proxy._thread.run(lose)


def _name(member: Member | None) -> str:
    return "all members" if member is None else f"member {member.index}"
