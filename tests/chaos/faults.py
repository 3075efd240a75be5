"""Carrying a schedule out on a replica set."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aioretry.testing import CommandFailedError, Fault, Member, NoPrimaryError, ReplicaSet
from tests.chaos.schedule import Kind, Planned
from tests.chaos.timeline import Happened, Timeline

Say = Callable[[str], None]
_WTIMEOUT = 64
_MAY_BE_APPLIED = (Kind.DELAY, Kind.HANG, Kind.ERROR)


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
        way = self._break_process if planned.kind.is_of_processes else self._break_network
        began = self._timeline.now
        async with way(planned) as text:
            if text is None:
                self._say(f"{planned.kind.value}: nobody to do it to")
                return
            self._say(f"{text}, for {planned.lasts:.1f} s")
            await self._wait_until(began + planned.lasts)
        self._timeline.faults.append(Happened(planned.kind, text, began, self._timeline.now))

    async def _wait_until(self, when: float) -> None:
        await asyncio.sleep(max(0.0, when - self._timeline.now))

    @asynccontextmanager
    async def _break_network(self, planned: Planned) -> AsyncIterator[str | None]:
        member = await self._choose(planned, broken_too=True)
        fault, text = self._arm(planned, member)
        try:
            yield text
        finally:
            fault.disarm()

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
            case _:
                fault = faults.partition(member, must_fire=False)
                return fault, f"{name} before {_name(member)}"

    @asynccontextmanager
    async def _break_process(self, planned: Planned) -> AsyncIterator[str | None]:
        if planned.kind is Kind.STEP_DOWN:
            yield await self._step_down(planned)
            return
        member = await self._choose(planned, broken_too=False)
        if member is None:
            yield None
            return
        self._broken.add(member.index)
        try:
            async with self._ways(planned.kind, member):
                yield f"{planned.kind.value} of {_name(member)}"
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


def _name(member: Member | None) -> str:
    return "all members" if member is None else f"member {member.index}"
