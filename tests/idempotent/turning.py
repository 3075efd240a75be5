"""What the tests of turns share: no server, no time."""

import asyncio


async def settled():
    """Wait until all that can go on has."""
    for _ in range(10):
        await asyncio.sleep(0)


async def ended(*tasks):
    """Cancel tasks, and wait for their ends."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)
