"""Recipes that are cut off at each of their commands: the reply is lost, or the process is killed.

Every point is visited, none is sampled: what cuts a recipe off strikes its first command, then its
second, until there is none left to strike.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aioretry.testing import Fault, ReplicaSet, Standalone
from tests.forks import Fork

APP_NAME = "recipe"
_MOST = 60  # commands of one run; more would mean that a recipe never ends


async def at_each_lost_reply(
    servers: ReplicaSet | Standalone, run: Callable[[int], Awaitable[object]]
) -> int:
    """Run a recipe as often as it has commands, losing the reply of another one each time.

    Args:
        servers: They have faults.
        run: Runs the recipe and checks what it left; given the number of the run, from 1. Its
            client's ``appName`` must be :data:`APP_NAME`, and nothing else may have that name.

    Returns:
        How many replies were lost.
    """
    for number in range(1, _MOST):
        fault = servers.faults.drop_reply(nth=number, app_name=APP_NAME, must_fire=False)
        async with fault:
            await run(number)
        if not fault.fired:
            return number - 1
    raise AssertionError(f"the recipe has not ended after {_MOST} commands")


async def at_each_kill(
    servers: ReplicaSet | Standalone,
    target: str,
    arguments: Callable[[int], dict[str, Any]],
    recover: Callable[[int], Awaitable[object]],
    *,
    whens: Sequence[bool] = (False, True),
) -> int:
    """Kill a process that runs a recipe at each of its commands, before it and after it.

    Args:
        servers: They have faults.
        target: ``module:function``: an ``async def`` that is called with the URI and the arguments.
            It runs in a process of its own, whose clients are named :data:`APP_NAME`.
        arguments: Makes the arguments of a run (JSON); given the number of the run, from 1.
        recover: Does what the next process would do, and checks the final state.
        whens: Whether before it, after it, or both: whether it is applied.

    Returns:
        How many processes were killed.
    """
    number = 0
    for nth in range(1, _MOST):
        for applied in whens:
            number += 1
            fault = servers.faults.hang(
                nth=nth, applied=applied, app_name=APP_NAME, must_fire=False
            )
            async with fault:
                was_killed = await _kill_when_struck(servers, target, arguments(number), fault)
            await recover(number)
            if not was_killed:
                return number - 1
    raise AssertionError(f"the recipe has not ended after {_MOST} commands")


async def _kill_when_struck(
    servers: ReplicaSet | Standalone, target: str, arguments: dict[str, Any], fault: Fault
) -> bool:
    joint = "&" if "?" in servers.uri else "/?"
    uri = f"{servers.uri.removesuffix('/')}{joint}appName={APP_NAME}"
    child = Fork("tests.idempotent.child:run", target, uri, arguments)
    ending = asyncio.ensure_future(child.wait())
    striking = asyncio.ensure_future(fault.wait_until_fired(timeout=60))
    try:
        await asyncio.wait({ending, striking}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        striking.cancel()
        child.kill()
        code = await ending
        _, complaints = child.close()
        await asyncio.gather(striking, return_exceptions=True)
    if code == 0:
        return False
    assert fault.fired, f"{target} failed by itself: {complaints}"
    return True
