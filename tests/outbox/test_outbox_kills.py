"""Relays that are killed or frozen, and replies that are lost: nothing is lost, order is kept."""

import asyncio
import os
import signal

import pytest

from aioretry.outbox import Outbox
from tests.forks import Fork
from tests.idempotent.points import APP_NAME, at_each_kill, at_each_lost_reply
from tests.outbox.conftest import emptied, until
from tests.outbox.recipe import ENTRIES, Letters, firsts, order_and_tell, relay_of


@pytest.fixture
def letters(tmp_path):
    """A receiver that outlives whoever tells it."""
    path = tmp_path / "letters"
    path.touch()
    return path


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
        joint = "&" if "?" in replica_set.uri else "?"
        uri = f"{replica_set.uri}{joint}appName={APP_NAME}"
        await order_and_tell(uri, collection.name, number, str(letters))
        await check(stored, letters)

    lost = await at_each_lost_reply(replica_set, run)
    assert lost >= 4 * ENTRIES + 4
    assert stored.count_documents({}) == (lost + 1) * ENTRIES


async def test_frozen_and_thawed(replica_set, outbox, add, letters, at_work, tmp_path, collection):
    """Another one takes over; when the first one goes on, it hands on nothing more.

    What it was at when it was frozen is delivered twice, with one id. The other one is held at the
    second entry all the while: handed on by the first one, the third one would come before it.
    """
    gate, begun, log = (tmp_path / name for name in ("gate", "gate.begun", "gate.log"))
    await add("a1", "a2", "a3")
    child = Fork(
        "tests.idempotent.child:run",
        "tests.outbox.recipe:hand_on",
        replica_set.uri,
        {"name": collection.name, "path": str(letters), "gate": str(gate)},
    )
    try:
        await until(begun.exists)
        os.kill(child.pid, signal.SIGSTOP)
        others, may_end = [], asyncio.Event()

        async def deliver(entry):
            others.append(entry)
            if len(others) > 1:
                await may_end.wait()

        at_work(relay_of(outbox, deliver))
        await until(lambda: len(others) == 2)
        gate.touch()
        os.kill(child.pid, signal.SIGCONT)
        await until(Letters(letters).lines)
        # It has found out when it asks for the lease again, which it does after a moment.
        await until(lambda: "LeaseLostError" in log.read_text())
        may_end.set()
        await emptied(outbox)
    finally:
        child.kill()
        await child.wait()
        child.close()
    (late,) = Letters(letters).lines()
    assert [entry.payload["what"] for entry in others] == ["a1", "a2", "a3"]
    assert (late["what"], late["id"]) == ("a1", others[0].id)
    assert late["fence"] < others[0].fence
