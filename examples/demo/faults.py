"""What is done to the set while the writers write."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aioretry.testing import Fault as ArmedFault
from aioretry.testing import Member, ReplicaSet
from examples.demo.state import State
from examples.demo.strategies import DATABASE

_BETWEEN_LOST_REPLIES = 1.0  # a client that lost one is busy with it for half a second


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a fault happens."""

    state: State
    collections: Sequence[str]
    """One a strategy."""

    until: float
    """When the phase ends, in seconds since the start of the run."""

    @property
    def left(self) -> float:
        """Seconds until the phase ends."""
        return max(0.0, self.until - self.state.elapsed)

    async def rest(self) -> None:
        """Let the writers write until the phase ends."""
        await asyncio.sleep(self.left)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the table."""

    key: str
    """Its name in names of collections and in JSON."""

    title: str
    """Its name for people."""

    share: float
    """Its share of the time."""

    happen: Callable[[Scene, ReplicaSet], Awaitable[None]] | None = None
    """Makes it happen, on a set of our own; None if that takes nothing but the writers."""

    some_fail: bool = False
    """Whether every tenth update is one that the server refuses."""


async def lose_replies(scene: Scene, servers: ReplicaSet) -> None:
    """Again and again, lose the reply to one write of each strategy."""
    scene.state.say(
        f"the proxies lose a reply of each strategy every {_BETWEEN_LOST_REPLIES:g} s, "
        "after the write was applied"
    )
    armed: dict[str, ArmedFault] = {}
    lost = 0
    try:
        while True:
            for name in scene.collections:
                if name not in armed or armed[name].fired:
                    lost += name in armed
                    armed[name] = servers.faults.drop_reply(
                        "update", namespace=f"{DATABASE}.{name}", must_fire=False
                    )
            await asyncio.sleep(_BETWEEN_LOST_REPLIES)
            if scene.left < _BETWEEN_LOST_REPLIES:
                break
    finally:
        for fault in armed.values():
            fault.disarm()
    lost += sum(fault.fired for fault in armed.values())
    await scene.rest()
    scene.state.say(f"{lost} replies were lost")


async def depose_primaries(scene: Scene, servers: ReplicaSet) -> None:
    """Again and again, take the primary away, in one of three ways."""
    plan = scene.state.plan
    ways = (
        (_kill, 4.0),
        (_freeze, plan.freeze + 2.0),
        (_step_down, 2.0),
    )
    turn = 0
    await asyncio.sleep(scene.state.plan.calm)
    while any(seconds < scene.left for _, seconds in ways):
        way, seconds = ways[turn % len(ways)]
        turn += 1
        if seconds < scene.left:
            await way(scene.state, servers)
            await asyncio.sleep(min(plan.calm, scene.left))
    await scene.rest()


async def take_majority_away(scene: Scene, servers: ReplicaSet) -> None:
    """Once, leave no majority for longer than any client looks for a primary."""
    state = scene.state
    await asyncio.sleep(scene.state.plan.calm)
    primary = await servers.wait_for_primary()
    secondary = (await servers.secondaries())[0]
    state.say(
        f"kill -9 {_name(primary)}, the primary, and {_name(secondary)}: "
        f"no majority for {state.plan.outage:g} s"
    )
    await servers.kill(primary)
    await servers.kill(secondary)
    await asyncio.sleep(state.plan.outage)
    state.say(f"start {_name(primary)} and {_name(secondary)} again")
    await servers.heal()
    state.say("the set is complete again")
    await scene.rest()


async def _kill(state: State, servers: ReplicaSet) -> None:
    primary = await servers.wait_for_primary()
    state.say(f"kill -9 {_name(primary)}, the primary")
    started = time.monotonic()
    await servers.kill(primary)
    await _see_election(state, servers, primary, started)
    await servers.restart(primary)
    state.say(f"{_name(primary)} is back")


async def _freeze(state: State, servers: ReplicaSet) -> None:
    primary = await servers.wait_for_primary()
    state.say(f"freeze {_name(primary)}, the primary, for {state.plan.freeze:.3g} s")
    started = time.monotonic()
    await servers.freeze(primary)
    await _see_election(state, servers, primary, started)
    await asyncio.sleep(max(0.0, started + state.plan.freeze - time.monotonic()))
    await servers.thaw(primary)
    state.say(f"{_name(primary)} goes on")
    await servers.heal()


async def _step_down(state: State, servers: ReplicaSet) -> None:
    primary = await servers.wait_for_primary()
    state.say(f"{_name(primary)}, the primary, steps down")
    started = time.monotonic()
    await servers.step_down(seconds=5)
    await _see_election(state, servers, primary, started)


async def _see_election(state: State, servers: ReplicaSet, deposed: Member, started: float) -> None:
    elected = await servers.wait_for_primary(other_than=deposed)
    state.say(f"{_name(elected)} was elected after {time.monotonic() - started:.1f} s")


def _name(member: Member) -> str:
    return member.address


_COMMAND_ERROR = Fault("command_error", "command error", 0.1, some_fail=True)

OWN_SET: Sequence[Fault] = (
    Fault("reply_lost", "reply lost after the write was applied", 0.15, lose_replies),
    Fault("election", "election", 0.47, depose_primaries),
    Fault("outage", "persistent outage", 0.28, take_majority_away),
    _COMMAND_ERROR,
)
"""What a set of our own has to go through."""

EXISTING_SET: Sequence[Fault] = (
    Fault("as_it_is", "the set as it is", 0.3),
    _COMMAND_ERROR,
)
"""What is asked of a set that others use too: nothing is done to it."""
