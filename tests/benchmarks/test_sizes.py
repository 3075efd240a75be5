"""What the benchmark of sizes measures."""

import asyncio
import subprocess
import sys
import time

import bson
import pytest

from tests.benchmarks.sizes import SIZES, document_of, measure


@pytest.mark.parametrize("size", SIZES.values())
def test_documents_are_as_large_as_they_are_said_to_be(size):
    """Their items come to it, with a little for what is around the smallest."""
    assert 0.85 * size < len(bson.encode(document_of(size))) < 1.35 * size + 100


async def test_a_stall_is_seen():
    """A call that blocks is a stall of its length, and costs no CPU time; to wait is none."""

    async def block(collection, document):
        await asyncio.sleep(0)
        time.sleep(0.2)

    async def wait(collection, document):
        await asyncio.sleep(0.2)

    blocked, waited = await measure(block, None, {}, 2), await measure(wait, None, {}, 1)
    assert blocked.stall > 0.19
    assert blocked.busy < 0.1
    assert waited.stall < blocked.stall


async def test_work_is_seen():
    """What the process computes in one turn of the loop is told in CPU time."""

    async def compute(collection, document):
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    seen = await measure(compute, None, {}, 2)
    assert seen.busy >= 0.1
    assert seen.cpu >= 0.1


@pytest.mark.server
def test_runs():
    """The command runs to its end, and has a row for each client."""
    command = [sys.executable, "-m", "tests.benchmarks.sizes", "--rounds", "1", "--sizes", "10 kB"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert printed.count("AsyncMongoClient") == printed.count("10 kB") / 3 == 3
