"""The benchmark of a watched service."""

import asyncio
import subprocess
import sys

import pytest

from tests.benchmarks.service import Service


async def test_one_that_ends_is_told(tmp_path):
    """Nobody waits for a service that can't begin."""
    service = Service("nobody", "nonsense://", tmp_path / "socket", 1)
    with pytest.raises(ChildProcessError, match="has ended"):
        async with asyncio.timeout(60), service:
            pass


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("watching", [[], ["--unwatched"]])
def test_runs(watching):
    """The command runs to its end, and compares with both."""
    command = [sys.executable, "-m", "tests.benchmarks.service", *watching]
    tiny = ["--connections", "3", "--rounds", "1", "--seconds", "0.2"]
    printed = subprocess.run([*command, *tiny], stdout=subprocess.PIPE, text=True, check=True)
    for title in ("Motor", "AsyncMongoClient"):
        [line] = [line for line in printed.stdout.splitlines() if title in line]
        assert line.count(" to ") == 2
