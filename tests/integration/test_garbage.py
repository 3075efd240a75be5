"""What is left to the garbage collector, which holds up the event loop: nothing that went well."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import weakref

import pytest


def test_no_cycles(servers_of_test, client_class):
    """No object of the library's is in one."""
    del client_class  # the other process makes it, too
    child = subprocess.run(
        [sys.executable, "-m", "tests.integration.garbage", servers_of_test.uri],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert {} == json.loads(child.stdout)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_client_that_nobody_closed(replica_set, client_class):
    """It goes with whoever had it, as PyMongo's do, and so do its monitors."""
    client = client_class(replica_set.uri)
    await client.db.things.find_one({})
    known = weakref.ref(client)
    del client
    async with asyncio.timeout(20):
        while known() is not None:
            await asyncio.sleep(0.1)
            gc.collect()
