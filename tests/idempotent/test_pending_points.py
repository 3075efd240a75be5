"""Pending updates and their clean-up, cut off at each of their commands."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import WriteError

from aioretry.idempotent import PendingUpdates, UpdateInterruptedError
from aioretry.testing import ReplicaSet, Standalone
from tests.idempotent.pending_recipe import (
    INCREMENT,
    documents_in,
    named,
    new_name,
    opened,
    tokens_in,
)
from tests.idempotent.points import at_each_kill, at_each_lost_reply

RECIPE = "tests.idempotent.pending_recipe"


@pytest.fixture(scope="module")
def standalone(server_version):
    """One server that is no member of a set, behind a proxy."""
    with Standalone(server_version, faults=True) as server:
        yield server


@pytest.fixture(params=["replica set", "standalone"])
def servers(request, shared_set: ReplicaSet, standalone: Standalone) -> ReplicaSet | Standalone:
    """Either kind of deployment."""
    return shared_set if request.param == "replica set" else standalone


@pytest.fixture
async def name(servers) -> AsyncIterator[str]:
    """A collection of the test's own."""
    yield new_name()
    servers.faults.clear()


def check(servers, name: str, expected: set[int]) -> None:
    """Each document has been updated once, and has no token."""
    documents = documents_in(servers, name)
    assert dict.fromkeys(expected, (1, ["x"])) == {
        key: (document["n"], document["log"]) for key, document in documents.items()
    }
    assert not [document for document in documents.values() if tokens_in(document)]


class TestLostReplies:
    @pytest.mark.parametrize("timeout", [None, 30.0])
    @pytest.mark.parametrize("own_token", [False, True])
    @pytest.mark.parametrize("kind", ["aioretry", "pymongo"])
    async def test_of_an_update(self, servers, name, kind, own_token, timeout):
        """Whichever reply is lost, the update is applied once, and no token is left."""
        async with named(servers, name, kind) as updates:

            async def run(number: int) -> None:
                token = ObjectId() if own_token else None
                result = await updates.apply(
                    number, INCREMENT, token=token, upsert=True, timeout=timeout
                )
                assert result.matched

            lost = await at_each_lost_reply(servers, run)
        assert lost >= 4  # a token that finds no document, a look, an insert, the update
        check(servers, name, set(range(1, lost + 2)))

    @pytest.mark.parametrize("own_token", [False, True])
    async def test_of_a_refused_update(self, servers, name, own_token):
        """Whichever reply is lost, an update that the server refuses is told as refused."""
        async with (
            named(servers, name, "pymongo") as updates,
            opened(servers.uri, name) as own,
        ):
            await own.apply(1, INCREMENT, upsert=True)

            async def run(_number: int) -> None:
                token = ObjectId() if own_token else None
                with pytest.raises(WriteError) as caught:
                    await updates.apply(1, {"$inc": {"log": 1}}, token=token, timeout=30.0)
                assert caught.value.code == 14

            lost = await at_each_lost_reply(servers, run)
        assert lost >= 3  # the token, the update, the withdrawal
        check(servers, name, {1})

    @pytest.mark.parametrize("kind", ["aioretry", "pymongo"])
    async def test_of_a_clean_up(self, servers, name, kind):
        """Whichever reply is lost, what was left is applied once."""
        async with named(servers, name, kind) as updates, opened(servers.uri, name) as own:

            async def run(number: int) -> None:
                await leave_token(servers, own, number)
                report = await updates.clean_up(older_than=0)
                assert (1, ()) == (report.found, report.failed)

            lost = await at_each_lost_reply(servers, run)
        assert lost >= 4
        check(servers, name, set(range(1, lost + 2)))


class TestKills:
    @pytest.mark.sample(4)
    @pytest.mark.parametrize("own_token", [False, True])
    async def test_of_an_update(self, servers, name, own_token):
        """Wherever the process is killed, the clean-up makes it once or never."""
        tokens: dict[int, ObjectId] = {}

        def arguments(number: int) -> dict[str, object]:
            tokens[number] = ObjectId()
            token = str(tokens[number]) if own_token else None
            return {"name": name, "id": number, "token": token}

        async with opened(servers.uri, name) as updates:

            async def recover(number: int) -> None:
                if own_token:  # the next process repeats it
                    result = await updates.apply(
                        number, INCREMENT, token=tokens[number], upsert=True
                    )
                    assert result.matched
                await finish_all(updates)
                document = documents_in(servers, name).get(number, {})
                assert document.get("n", 0) in ({1} if own_token else {0, 1})

            killed = await at_each_kill(servers, f"{RECIPE}:apply", arguments, recover)
            await finish_all(updates)
        assert killed >= 8
        documents = documents_in(servers, name)
        if own_token:
            check(servers, name, set(range(1, killed + 2)))
        assert {1} == {document["n"] for document in documents.values()}
        assert not [document for document in documents.values() if tokens_in(document)]

    @pytest.mark.sample(2)
    async def test_of_a_clean_up(self, servers, name):
        """Wherever a clean-up is killed, the next one brings it to its end."""
        async with opened(servers.uri, name) as updates:
            ids: set[int] = set()

            async def left(number: int) -> None:
                for key in (10 * number, 10 * number + 1):
                    ids.add(key)
                    await leave_token(servers, updates, key)

            await left(1)

            async def recover(number: int) -> None:
                await finish_all(updates)
                check(servers, name, ids)
                await left(number + 1)

            killed = await at_each_kill(
                servers, f"{RECIPE}:clean_up", lambda _: {"name": name}, recover
            )
            await finish_all(updates)
        assert killed >= 8
        check(servers, name, ids)


async def leave_token(servers, updates: PendingUpdates, id: int) -> None:
    """Leave the token of an update that was cut off between its two writes."""
    async with servers.faults.drop_request("update", where=takes_token_away, times=None):
        with pytest.raises(UpdateInterruptedError) as caught:
            await updates.apply(id, INCREMENT, upsert=True)
    assert caught.value.will_be_applied


def takes_token_away(command: Mapping[str, Any]) -> bool:
    """Whether a command is the second write of an update."""
    update = command["updates"][0]["u"]
    return "pending" in update.get("$pull", {}) or "pending.$.d" in update.get("$set", {})


async def finish_all(updates: PendingUpdates) -> None:
    """Clean up until nothing is pending: what a killed process sent last may arrive late."""
    async with asyncio.timeout(30):
        while (await updates.status()).tokens:
            await updates.clean_up(older_than=0)
