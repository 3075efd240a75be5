import asyncio
import os
import re
import signal
import time

import pymongo
import pytest
from bson import Int64
from pymongo.errors import AutoReconnect, OperationFailure, WriteConcernError

from aioretry.testing import (
    CommandFailedError,
    MemberState,
    NoPrimaryError,
    ReplicaSet,
    Standalone,
    _cluster,
)


@pytest.fixture
def client(servers: ReplicaSet):
    with pymongo.MongoClient(
        servers.uri, retryWrites=False, retryReads=False, appname="tester"
    ) as client:
        yield client


async def test_members(servers: ReplicaSet) -> None:
    """A started set has a primary and secondaries, and says where clients find them."""
    primary = await servers.primary()
    secondaries = await servers.secondaries()

    assert {primary, *secondaries} == set(servers.members)
    assert 2 == len(secondaries)
    addresses = ",".join(member.address for member in servers.members)
    assert f"mongodb://{addresses}/?replicaSet=rs0" == servers.uri
    assert primary.direct_address != primary.address
    assert f"mongodb://{primary.direct_address}/?directConnection=true" == primary.direct_uri
    assert f"<Member {primary.index} {primary.address} pid={primary.pid} running>" == repr(primary)


async def test_settings(servers: ReplicaSet) -> None:
    """Elections are quick, no secondary shuns another, and the servers have fail points."""
    primary = await servers.primary()

    config = await primary.command({"replSetGetConfig": 1})
    options = await primary.command({"getCmdLineOpts": 1})

    settings = config["config"]["settings"]
    assert (2000, 500) == (settings["electionTimeoutMillis"], settings["heartbeatIntervalMillis"])
    assert not settings["chainingAllowed"]
    assert "1" == options["parsed"]["setParameter"]["enableTestCommands"]


async def test_kill_and_restart(servers: ReplicaSet) -> None:
    """A killed primary is replaced, and comes back with its data on the same port."""
    old = await servers.primary()
    where, pid = old.direct_address, old.pid
    await old.command({"insert": "c", "documents": [{"x": 1}]}, database="kill")

    await servers.kill(old)
    assert MemberState.DEAD is old.state
    with pytest.raises(OSError, match="refused"):
        await old.command({"ping": 1})
    new = await servers.wait_for_primary(other_than=old)
    assert new is not old
    await servers.restart(old)

    assert (MemberState.RUNNING, where) == (old.state, old.direct_address)
    assert pid != old.pid
    assert 1 == (await old.command({"count": "c"}, database="kill"))["n"]
    assert 2 == len(await servers.secondaries())


async def test_restart_of_a_running_member(servers: ReplicaSet) -> None:
    """Restarting a server that runs gives it another process."""
    [member, _] = await servers.secondaries()
    pid = member.pid

    await servers.restart(member)

    assert pid != member.pid


async def test_shut_down(servers: ReplicaSet) -> None:
    """A server that is shut down ends cleanly, is dead to all, and can be started again."""
    primary = await servers.primary()

    await servers.shut_down(primary)
    await servers.shut_down(primary)

    assert MemberState.DEAD is primary.state
    assert "mongod shutdown complete" in primary.log.read_text()
    await servers.wait_for_primary(other_than=primary)
    await servers.restart(primary)
    assert MemberState.RUNNING is primary.state


async def test_freeze_and_thaw(servers: ReplicaSet) -> None:
    """A frozen primary is replaced, is no obstacle to finding the new one, and can be thawed."""
    old = await servers.primary()

    await servers.freeze(old)
    await servers.freeze(old)
    assert MemberState.FROZEN is old.state
    with pytest.raises(NoPrimaryError):
        await servers.primary()
    with pytest.raises(TimeoutError):
        await old.command({"ping": 1}, timeout=0.1)
    new = await servers.wait_for_primary(other_than=old)
    await servers.thaw(old)

    assert MemberState.RUNNING is old.state
    assert new is await servers.primary()


async def test_heal(servers: ReplicaSet) -> None:
    """Whatever is dead, frozen or has crashed by itself is there again afterwards."""
    primary = await servers.primary()
    one, two = await servers.secondaries()
    await servers.freeze(primary)
    await servers.kill(one)
    os.kill(two.pid, signal.SIGABRT)

    await servers.heal()

    assert {await servers.primary(), *await servers.secondaries()} == set(servers.members)
    assert {MemberState.RUNNING} == {member.state for member in servers.members}


async def test_heal_of_a_frozen_member_that_was_killed(servers: ReplicaSet, eventually) -> None:
    """Somebody else has, say because there was no memory left; it is started again."""
    [member, _] = await servers.secondaries()
    await servers.freeze(member)
    os.kill(member.pid, signal.SIGKILL)
    server = servers._server(member)
    eventually(lambda: server._processes.poll(server.pid) is not None)

    await servers.heal()

    assert {MemberState.RUNNING} == {member.state for member in servers.members}


async def test_rolling_restart(servers: ReplicaSet) -> None:
    """Every server is another process afterwards, after a clean end, and nothing is lost."""
    primary = await servers.primary()
    await primary.command({"insert": "c", "documents": [{"_id": 1}]}, database="rolling")
    pids = [member.pid for member in servers.members]

    await servers.rolling_restart()

    assert not {*pids} & {member.pid for member in servers.members}
    for member in servers.members:
        assert "mongod shutdown complete" in member.log.read_text()
    new = await servers.wait_for_primary()
    assert 1 == (await new.command({"count": "c"}, database="rolling"))["n"]


@pytest.mark.slow
async def test_rolling_restart_with_an_election_in_it(servers: ReplicaSet, monkeypatch) -> None:
    """The primary may change while members are restarted."""
    cluster = servers._cluster
    restart, restarted = cluster.restart, []

    def restart_and_depose(server) -> None:
        restart(server)
        restarted.append(server)
        if len(restarted) == 2:
            cluster.step_down(1)

    monkeypatch.setattr(cluster, "restart", restart_and_depose)
    await servers.rolling_restart()

    assert {*cluster.servers} == {*restarted}
    assert 3 == len(restarted)


async def test_step_down_of_a_primary_that_is_none_any_more(servers, monkeypatch) -> None:
    """The one that was elected meanwhile is asked instead."""
    primary = await servers.wait_for_primary()
    [stale, _] = await servers.secondaries()
    real, found = _cluster.find_primary, []

    def find(members):
        found.append(servers._server(stale) if not found else real(members))
        return found[-1]

    monkeypatch.setattr(_cluster, "find_primary", find)
    assert primary is await servers.step_down()
    assert 2 == len(found)


async def test_entered_twice(servers: ReplicaSet) -> None:
    """Entering it again is refused, and leaves it running."""
    with pytest.raises(RuntimeError, match="once only"):
        await servers.__aenter__()
    with pytest.raises(RuntimeError, match="once only"):
        servers.__enter__()
    assert await servers.wait_for_primary() in servers.members


async def test_rolling_restart_of_one_member() -> None:
    """A set of one member is away meanwhile, and a dead member is just started."""
    async with ReplicaSet(1) as servers:
        [member] = servers.members
        pid = member.pid
        await servers.rolling_restart()
        assert member is await servers.primary()
        assert pid != member.pid


async def test_dead_member_refuses_signals(servers: ReplicaSet) -> None:
    """A dead server can't be frozen or thawed, and killing it again is fine."""
    [member, _] = await servers.secondaries()
    await servers.kill(member)
    await servers.kill(member)

    with pytest.raises(RuntimeError, match="is dead"):
        await servers.freeze(member)
    with pytest.raises(RuntimeError, match="is dead"):
        await servers.thaw(member)
    assert MemberState.DEAD is member.state


async def test_step_down(servers: ReplicaSet) -> None:
    """A primary that steps down is replaced by a secondary."""
    old = await servers.primary()

    assert old is await servers.step_down()

    new = await servers.wait_for_primary(other_than=old)
    assert new is not old


async def test_wait_for_primary_gives_up(servers: ReplicaSet) -> None:
    """Waiting for a primary ends in an error, which says why, where there is no majority."""
    one, two = await servers.secondaries()
    await servers.kill(one)
    await servers.freeze(two)
    await servers.step_down(seconds=60)

    with pytest.raises(NoPrimaryError, match=r"within 0\.3 seconds") as caught:
        await servers.wait_for_primary(0.3)

    said = str(caught.value)
    assert re.search(r"127\.0\.0\.1:\d+ is dead", said)
    assert re.search(r"127\.0\.0\.1:\d+ is frozen", said)
    assert re.search(r"127\.0\.0\.1:\d+ is SECONDARY with entries until term \d+", said)


def test_loop_independence(servers: ReplicaSet) -> None:
    """One object serves several event loops, one after the other."""
    first = asyncio.run(servers.primary())
    second = asyncio.run(servers.wait_for_primary())

    assert first is second


async def test_member_of_another_deployment(servers: ReplicaSet) -> None:
    """A member of something else is refused."""
    async with Standalone() as other:
        with pytest.raises(ValueError, match="another deployment"):
            await servers.kill(other.member)
        with pytest.raises(ValueError, match="one of those behind"):
            servers.faults.drop_reply("insert", member=other.member)


async def test_standalone() -> None:
    """A standalone can be used without a replica set, and restarted."""
    async with Standalone(faults=True) as deployment:
        await deployment.restart(deployment.member)
        with pymongo.MongoClient(deployment.uri) as client:
            assert 1 == client.admin.command("ping")["ok"]
        assert f"mongodb://{deployment.member.address}/" == deployment.uri


async def test_single_member_steps_down() -> None:
    """A set of one member steps down at once, and becomes primary again."""
    async with ReplicaSet(1) as servers:
        await servers.step_down(seconds=1)

        assert servers.members[0] is await servers.wait_for_primary()


async def test_fail_command_with_an_error(servers: ReplicaSet, client) -> None:
    """A command fails as often as was said, with the code and the labels that were given."""
    async with servers.fail_command(
        "insert", mode={"times": 1}, error_code=112, error_labels=["Mine"]
    ):
        with pytest.raises(OperationFailure) as caught:
            client.t.c.insert_one({})
        client.t.c.insert_one({})

    assert 112 == caught.value.code
    assert caught.value.has_error_label("Mine")


async def test_fail_command_is_turned_off(servers: ReplicaSet, client) -> None:
    """At the end of the block nothing fails any more, also after an exception."""
    with pytest.raises(OperationFailure) as caught:
        async with servers.fail_command(["insert", "update"], mode="alwaysOn", error_code=2):
            client.t.c.insert_one({})
    client.t.c.insert_one({})

    assert 2 == caught.value.code


async def test_fail_command_that_closes(servers: ReplicaSet, client) -> None:
    """The server can close the connection instead of running the command."""
    before = client.t.closes.count_documents({})

    async with servers.fail_command("insert", close_connection=True):
        with pytest.raises(AutoReconnect):
            client.t.closes.insert_one({})

    assert before == client.t.closes.count_documents({})


async def test_fail_command_with_a_write_concern_error(servers: ReplicaSet, client) -> None:
    """A write concern error comes with a write that was applied."""
    error = {"code": 64, "errmsg": "injected"}

    async with servers.fail_command("insert", write_concern_error=error):
        with pytest.raises(WriteConcernError, match="injected"):
            client.t.concern.insert_one({"_id": "concern"})

    assert 1 == client.t.concern.count_documents({"_id": "concern"})


async def test_fail_command_for_one_application(servers: ReplicaSet, client) -> None:
    """Clients of another name are spared, and a blocked command is only late."""
    async with servers.fail_command("ping", mode="alwaysOn", error_code=2, app_name="other"):
        client.admin.command("ping")
    async with servers.fail_command("ping", block_ms=200, app_name="tester"):
        start = time.monotonic()
        client.admin.command("ping")
        assert time.monotonic() - start >= 0.2


async def test_fail_command_at_one_member(servers: ReplicaSet) -> None:
    """A fail point is set at the member that is named, and forgotten when it is killed inside."""
    [member, other] = await servers.secondaries()

    async with servers.fail_command("ping", mode="alwaysOn", error_code=2, member=member):
        with pytest.raises(CommandFailedError) as caught:
            await member.command({"ping": 1})
        await other.command({"ping": 1})
        await servers.kill(member)

    assert 2 == caught.value.code


async def test_fail_command_that_does_nothing(servers: ReplicaSet) -> None:
    """A fail point without a command or without a way to fail is refused."""
    with pytest.raises(ValueError, match="a way to fail"):
        servers.fail_command("insert")
    with pytest.raises(ValueError, match="commands to fail"):
        servers.fail_command([], error_code=1)


async def test_fail_point(servers: ReplicaSet, client) -> None:
    """Any fail point can be set: this one loses the connection after a commit."""
    client.t.c.insert_one({})
    async with servers.fail_point(
        "onPrimaryTransactionalWrite",
        {"times": 1},
        {"closeConnection": True},
    ):
        with client.start_session() as session, pytest.raises(AutoReconnect):
            client.t.command(
                {
                    "insert": "txn",
                    "documents": [{"_id": "txn"}],
                    "txnNumber": Int64(1),
                },
                session=session,
            )
    assert 1 == client.t.txn.count_documents({"_id": "txn"})


async def test_unknown_fail_point(servers: ReplicaSet) -> None:
    """A fail point that the server doesn't know raises what the server says."""
    with pytest.raises(CommandFailedError, match="noSuchPoint"):
        await servers.fail_point("noSuchPoint", "alwaysOn", {}).on()


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["4.2", "4.4", "5.0"])
async def test_other_versions(version: str) -> None:
    """Every version starts, survives its primary's death, and has fail points."""
    async with ReplicaSet(3, version, faults=True) as servers:
        old = await servers.primary()
        async with servers.fail_command("ping", error_code=91):
            with pytest.raises(CommandFailedError):
                await old.command({"ping": 1})
        await servers.kill(old)
        await servers.wait_for_primary(other_than=old)
        await servers.restart(old)
        await servers.step_down()
        await servers.wait_for_primary()

        assert version == (await old.command({"buildInfo": 1}))["version"][:3]
        if version == "4.2":
            with pytest.raises(ValueError, match=r"before 4\.4 has no errorLabels"):
                servers.fail_command("ping", error_code=91, error_labels=["L"])
