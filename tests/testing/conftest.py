"""The set of three members, for the tests of the test kit; whole again after each of them."""

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import aioretry.testing
from aioretry.testing import ReplicaSet
from tests.clients import for_both

CHECKOUT = Path(aioretry.testing.__file__).parents[2]


def pytest_generate_tests(metafunc):
    """Test with both clients what is for users of either; the rest in full length."""
    for_both(metafunc, {"test_fake_mongoses_over_tls", "test_scripted_login"})


@pytest.fixture
async def servers(three_members: ReplicaSet) -> AsyncIterator[ReplicaSet]:
    yield three_members
    await three_members.heal()


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait until something is so; for other processes, which can't be awaited."""

    def wait(condition: Callable[[], bool], timeout: float = 20.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "it did not become so in time"
            time.sleep(0.02)

    return wait


@pytest.fixture
def run_python():
    """Run a script in a process (group) of its own, with pipes; kill what is left of it."""

    @contextmanager
    def run(script: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    return run
