"""A worker in a process of its own, to be killed."""

from tests.clients import chosen_client
from tests.streams.tagging import of_change_stream

LEASE_SECONDS = 1.0  # so that the next one need not wait for long


async def follow(uri: str, name: str, rebuilds: bool) -> None:
    """Bring the aggregates of a collection up to date, or rebuild them first."""
    async with chosen_client()(uri) as client:
        database = client.aioretry_tests
        aggregator = of_change_stream(
            database[name], database[f"{name}_tags"], lease_seconds=LEASE_SECONDS
        )
        if rebuilds:
            await aggregator.rebuild()
        await aggregator.run(until_caught_up=True)
