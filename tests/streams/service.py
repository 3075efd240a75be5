"""What workers in processes of their own import."""

import os

from aioretry.streams import Aggregator
from tests.clients import chosen_client
from tests.streams.tagging import of_change_stream

URI, NAME = "STREAM_TEST_URI", "STREAM_TEST_NAME"
LEASE_SECONDS = 2.0

not_an_aggregator = 7


def aggregator(parts: int = 1) -> Aggregator:
    """The aggregator that the environment names."""
    database = chosen_client()(os.environ[URI]).aioretry_tests
    name = os.environ[NAME]
    return of_change_stream(
        database[name],
        database[f"{name}_tags"],
        parts=parts,
        lease_seconds=LEASE_SECONDS,
        max_bytes=2000,
    )


def divided() -> Aggregator:
    """The same for two workers."""
    return aggregator(2)


def broken() -> Aggregator:
    """What fails in the code of the service."""
    raise KeyError("DATABASE")
