"""A persistent outage: what a write costs that nobody can make."""

import asyncio
import time

from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError

from aioretry import Outcome, RetryClient, attempts_of, outcome_of, thread_counts

THREADS = 4
WRITES = 40


async def test_one_retry_and_one_selection(replica_set, collection, stored):
    """Writes without a deadline, of which some were sent: each waits for a server once.

    Those that wait fail in the order in which they came.
    """
    failed = []
    async with RetryClient(
        replica_set.uri,
        max_concurrent_attempts=THREADS,
        serverSelectionTimeoutMS=1000,
        heartbeatFrequencyMS=500,
        connectTimeoutMS=1000,
    ) as client:
        things = client[collection.database.name][collection.name]
        async with replica_set.faults.hang("update", times=THREADS) as hang:
            warming = [things.update_one({"_id": n}, {"$inc": {"n": 1}}) for n in range(THREADS)]
            await hang.wait_until_fired(THREADS, timeout=60)
            hang.disarm()
            await asyncio.gather(*warming)

        def begin(number):
            write = things.insert_one({"_id": number})
            write.add_done_callback(lambda write: failed.append((number, write.exception())))
            return write

        async with replica_set.faults.partition():
            started = time.monotonic()
            writes = [begin(number) for number in range(WRITES)]
            async with asyncio.timeout(120):
                await asyncio.gather(*writes, return_exceptions=True)
            took = time.monotonic() - started
            while thread_counts(client).abandoned:
                await asyncio.sleep(0.01)
        assert took < 60
    sent = {number: error for number, error in failed if attempts_of(error)}
    unsent = {number: error for number, error in failed if not attempts_of(error)}
    assert set(range(THREADS)) == set(sent)
    for error in sent.values():
        assert isinstance(error, AutoReconnect)
        assert 1 == len(attempts_of(error))  # the retry found no server
        assert Outcome.UNKNOWN is outcome_of(error)
    for error in unsent.values():
        assert isinstance(error, ServerSelectionTimeoutError)
        assert Outcome.NOT_APPLIED is outcome_of(error)
    assert list(range(THREADS, WRITES)) == list(unsent)
    # What was sent may arrive when the cable is plugged in again; nothing else does.
    assert {document["_id"] for document in stored.find()} <= set(sent)
