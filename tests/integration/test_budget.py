"""What a write costs, counted: what it calls, sends, makes and leaves behind.

``BUDGETS`` says what a write may take at most, which is what it takes now. Whoever makes it cheaper
lowers a figure; whoever raises one has a reason for it.
"""

import gc
import socket
import sys
from collections import Counter

import pytest
from pymongo import ReturnDocument, monitoring

from aioretry import thread_counts
from tests.integration.looping import PYMONGO, all_given_back

WRITES = {
    "update_one": lambda c: c.update_one({"_id": 1}, {"$inc": {"n": 1}}),
    "insert_one": lambda c: c.insert_one({"n": 1}),
    "find_one_and_update": lambda c: c.find_one_and_update(
        {"_id": 1}, {"$inc": {"n": 1}}, return_document=ReturnDocument.AFTER
    ),
}

AT_ONCE = {1: 20, 50: 4}
"""How many writes go at once, and how often."""

ALWAYS = {
    "send": 1,
    "recv": 1,
    "encodings": 2,
    "decodings": 1,
    "locks": 2,
    "futures": 1,
    "tasks": 0,
    "timers": 0,
    "jobs for threads": 0,
    "calls from threads": 0,
    "events of PyMongo's": 0,
}
"""The most that each write takes, whatever it is and however many go at once."""

ALONE = ALWAYS | {"contexts": 3, "handles": 1, "turns": 3}
"""The same of writes one after the other; most turns are timers'."""

TOGETHER = ALWAYS | {"contexts": 2, "handles": 0, "turns": 0}
"""The same of writes at once: several are a turn of the loop's."""

BUDGETS = {
    ("update_one", 1): ALONE | {"calls": 250},
    ("insert_one", 1): ALONE | {"calls": 242},
    ("find_one_and_update", 1): ALONE | {"calls": 277},
    ("update_one", 50): TOGETHER | {"calls": 260},
    ("insert_one", 50): TOGETHER | {"calls": 255},
    ("find_one_and_update", 50): TOGETHER | {"calls": 290},
}
"""``calls`` are those of Python functions, PyMongo's among them, asyncio's not. Of many at once it
varies how often a connection is given back and taken again."""

MORE_CALLS_BEFORE = {"update_one": 0, "insert_one": 0, "find_one_and_update": 8}
"""How many more are PyMongo's before 4.20."""

MOST_BLOCKS_KEPT = 0.5
"""How many blocks of memory each write may leave behind."""

_PYTHON = {
    ("events.py", "Handle.__init__"): "handles",
    ("events.py", "TimerHandle.__init__"): "timers",
    ("base_events.py", "BaseEventLoop._run_once"): "turns",
    ("base_events.py", "BaseEventLoop.create_task"): "tasks",
    ("base_events.py", "BaseEventLoop.create_future"): "futures",
    ("base_events.py", "BaseEventLoop.call_soon_threadsafe"): "calls from threads",
    ("future.py", "RunningWrite.__init__"): "futures",
    ("threads.py", "ThreadPool.submit"): "jobs for threads",
}
_C = {
    "_op_msg": "encodings",
    "_dict_to_bson": "encodings",
    "_bson_to_dict": "decodings",
    "_decode_all": "decodings",
    "allocate_lock": "locks",
    "copy_context": "contexts",
}
# Once in a while, however many writes there are.
_BY_TIME = {"_look", "_sweep"}


class Meter:
    """Counts what the event loop's thread does, in a block."""

    def __init__(self):
        self.counts = Counter()

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exc_info):
        sys.setprofile(None)

    def _note(self, frame, event, arg):
        if event == "call":
            self._note_python(frame)
        elif event == "c_call":
            name = arg.__name__
            if name in {"send", "recv"}:
                self.counts[name] += _is_to_a_server(arg.__self__)
            elif name in _C:
                self.counts[_C[name]] += 1

    def _note_python(self, frame):
        code = frame.f_code
        folder, _, file = code.co_filename.rpartition("/")
        what = _PYTHON.get((file, code.co_qualname))
        is_the_loops = folder.endswith("asyncio") or file == "selectors.py"
        self.counts["calls"] += not is_the_loops and code.co_name not in _BY_TIME
        self.counts["events of PyMongo's"] += code.co_filename == monitoring.__file__
        if what in {"handles", "timers"}:
            called = frame.f_locals["callback"]
            self.counts[what] += getattr(called, "__name__", "") not in _BY_TIME
        elif what is not None:
            self.counts[what] += 1


def _is_to_a_server(end):
    # The loop wakes itself by a pair of other sockets.
    return isinstance(end, socket.socket) and end.family in {socket.AF_INET, socket.AF_INET6}


async def run(write, collection, at_once, times):
    """Make writes so many at once, so often."""
    for _ in range(times):
        for under_way in [write(collection) for _ in range(at_once)]:
            await under_way


async def cost(write, collection, at_once, times):
    """What a write costs on the average, when nothing else happens meanwhile."""
    rounds = []
    for _ in range(12):
        with Meter() as meter:
            await run(write, collection, at_once, times)
        rounds.append(meter.counts)
    return {
        name: min(counts[name] for counts in rounds) / at_once / times
        for name in set().union(*rounds)
    }


@pytest.fixture
async def warm(replica_set, client, collection):
    """A collection with connections for all that go at once."""
    collection = client.aioretry_tests[collection.name]
    await collection.insert_one({"_id": 1, "n": 0})
    async with replica_set.faults.hang("update", times=32) as hang:
        warming = [WRITES["update_one"](collection) for _ in range(50)]
        await hang.wait_until_fired(32, timeout=60)
    for write in warming:
        await write
    for write in WRITES.values():
        await run(write, collection, 50, 2)
    return collection


@pytest.mark.sample(2)
@pytest.mark.parametrize("at_once", AT_ONCE)
@pytest.mark.parametrize("name", WRITES)
async def test_a_write_takes_no_more(warm, name, at_once):
    """Each figure is at most what it was."""
    found = await cost(WRITES[name], warm, at_once, AT_ONCE[at_once])
    # A part of one is of what happens once in a while, or for many writes at once.
    measured = {what: int(found.get(what, 0)) for what in BUDGETS[name, at_once]}
    if PYMONGO < (4, 20):
        measured["calls"] -= MORE_CALLS_BEFORE[name]
    over = {
        what: f"{measured[what]}, not {most}"
        for what, most in BUDGETS[name, at_once].items()
        if measured[what] > most
    }
    assert {} == over, measured
    assert thread_counts(warm.database.client).queued == 0


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WRITES)
async def test_a_write_leaves_nothing_behind(warm, name):
    """Memory does not grow with the number of writes."""
    grown = []
    for _ in range(7):
        gc.collect()
        before = sys.getallocatedblocks()
        await run(WRITES[name], warm, 50, 10)
        await all_given_back(warm.database.client)
        gc.collect()
        grown.append((sys.getallocatedblocks() - before) / 500)
    assert sorted(grown)[3] <= MOST_BLOCKS_KEPT
