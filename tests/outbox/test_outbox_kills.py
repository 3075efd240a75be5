"""Relays that are killed or frozen, and replies that are lost: nothing is lost, order is kept."""

import asyncio
import contextlib
import os
import signal

import pytest

from aioretry.outbox import Outbox
from tests.forks import Fork
from tests.idempotent.points import APP_NAME, at_each_kill, at_each_lost_reply
from tests.outbox.conftest import emptied, until
from tests.outbox.recipe import (
    ENTRIES,
    LEASE_SECONDS,
    Letters,
    firsts,
    order_and_tell,
    relay_of,
)


@pytest.fixture
def letters(tmp_path):
    """A receiver that outlives whoever tells it."""
    path = tmp_path / "letters"
    path.touch()
    return path


def named(uri):
    """Servers' URI for a client that faults know by its name."""
    return f"{uri}{'&' if '?' in uri else '?'}appName={APP_NAME}"


async def check(stored, letters):
    """Each order that is stored is told, once or with the same id; those of a key in order."""
    orders = {found["_id"] for found in stored.find()}
    await until(lambda: orders <= {line["order"] for line in firsts(Letters(letters))})
    told = [line["order"] for line in firsts(Letters(letters))]
    assert set(told) <= {found["_id"] for found in stored.find()}
    assert len(set(told)) == len(told)
    for number in {each.split(".")[0] for each in told}:
        of_key = [each for each in told if each.split(".")[0] == number]
        assert of_key == sorted(of_key)


@pytest.mark.sample(4)
@pytest.mark.timeout(300)  # each kill waits for a lease to end
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_each_kill(applied, replica_set, client, collection, stored, letters):
    """Killed before or after any command: whoever comes next tells of each order that is stored."""
    outbox = Outbox(client[collection.database.name][f"{collection.name}_outbox"])
    relay = relay_of(outbox, Letters(letters))
    await outbox.prepare()  # else an open transaction of who was killed holds that up, for a minute

    async def recover(_: int) -> None:
        task = asyncio.create_task(relay.run())
        await check(stored, letters)
        task.cancel()
        await asyncio.wait([task])

    def arguments(number: int) -> dict[str, object]:
        return {"name": collection.name, "number": number, "path": str(letters)}

    target = "tests.outbox.recipe:order_and_tell"
    kills = await at_each_kill(replica_set, target, arguments, recover, whens=[applied])
    assert kills >= 4 * ENTRIES + 6


async def test_each_lost_reply(replica_set, collection, stored, letters):
    """Whichever reply is lost, it goes on by itself; each order is told of."""

    async def run(number: int) -> None:
        await order_and_tell(named(replica_set.uri), collection.name, number, str(letters))
        await check(stored, letters)

    lost = await at_each_lost_reply(replica_set, run)
    assert lost >= 4 * ENTRIES + 4
    assert stored.count_documents({}) == (lost + 1) * ENTRIES


@pytest.fixture
async def first(replica_set, collection, letters, tmp_path):
    """Start a relay in a process of its own; what it needs and writes is beside its gate."""
    gate, forks = tmp_path / "gate", []

    def start(*, stops):
        arguments = {"name": collection.name, "path": str(letters), "gate": str(gate)}
        forks.append(
            Fork(
                "tests.idempotent.child:run",
                "tests.outbox.recipe:hand_on",
                named(replica_set.uri),
                {**arguments, "stops": stops},
            )
        )
        return forks[-1].pid, gate

    yield start
    for fork in forks:
        fork.kill()
        await fork.wait()
        fork.close()


@pytest.mark.parametrize(
    ("where", "late", "again"),
    [
        ("page", [], ["a1", "a2", "a3"]),
        ("delivery", ["a1"], ["a1", "a2", "a3"]),
        ("end", ["a1"], ["a1", "a2", "a3"]),
        ("answer", ["a1"], ["a2", "a3"]),
    ],
)
async def test_frozen_and_thawed(
    where, late, again, replica_set, outbox, add, letters, at_work, first
):
    """Another one takes over; when the first one goes on, it hands on nothing more.

    It is frozen when it has read a page, in a delivery, or while the end of an entry or the answer
    to that is under way; and it learns late that its lease is over. What it was at is delivered
    twice at most, with one id. The other one is held at the second entry all the while: handed on
    by the first one, what is next would come before it.
    """
    ids = await add("a1", "a2", "a3")
    pid, gate = first(stops=where == "page")
    log, is_ending = gate.with_suffix(".log"), where in {"end", "answer"}
    others, may_end = [], asyncio.Event()

    async def deliver(entry):
        others.append(entry)
        if entry.id == ids[1]:
            await may_end.wait()

    relay = relay_of(outbox, deliver)
    async with contextlib.AsyncExitStack() as stack:

        async def keep_from_learning():
            renewal = replica_set.faults.hang("findAndModify", app_name=APP_NAME)
            await stack.enter_async_context(renewal)

        await until(gate.with_suffix(".begun").exists)
        async with contextlib.AsyncExitStack() as ending:
            if is_ending:  # when its lease is nearly over: its patience lasts longer than that
                await keep_from_learning()
                while (await relay._settings.leases.records())[0]["left"] > LEASE_SECONDS / 2:
                    await asyncio.sleep(0.01)
                held = replica_set.faults.hang(
                    "update", namespace=outbox.full_name, applied=where == "answer"
                )
                await ending.enter_async_context(held)
                gate.touch()
                await held.wait_until_fired()
            os.kill(pid, signal.SIGSTOP)
            at_work(relay)
            await until(lambda: ids[1] in [entry.id for entry in others])
            if not is_ending:
                await keep_from_learning()
                gate.touch()
            os.kill(pid, signal.SIGCONT)
        # It has found out, when asking for the lease again, or at the end of an entry.
        await until(lambda: "is served again" in log.read_text().rpartition(" holds ")[2])
    await until(lambda: len(Letters(letters).lines()) >= len(late))
    may_end.set()
    await emptied(outbox)
    told = Letters(letters).lines()
    assert late == [line["what"] for line in told]
    assert again == [entry.payload["what"] for entry in others]
    assert ids[-len(others) :] == [entry.id for entry in others]
    assert ids[: len(told)] == [line["id"] for line in told]
    assert all(line["fence"] < others[0].fence for line in told)
