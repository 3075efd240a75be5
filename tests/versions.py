"""What servers have only since a version."""

import os

import pytest

_TESTED = float(os.environ.get("AIORETRY_TEST_SERVER") or "inf")


def since(version: float) -> pytest.MarkDecorator:
    """Mark what is skipped where the servers that are tested with are older."""
    reason = f"servers have this since {version}"
    return pytest.mark.skipif(_TESTED < version, reason=reason)
