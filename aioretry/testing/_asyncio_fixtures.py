"""The clients of the fixtures on pytest-asyncio's loops; imported where that plugin is active."""

import pytest_asyncio

from aioretry.testing._client_fixtures import opened_by

globals().update(
    opened_by(
        "asyncio",
        lambda scope: pytest_asyncio.fixture(scope=scope, loop_scope=scope),  # type: ignore[call-overload]
    )
)
