"""The test kit as type checkers see it; never run."""

from collections.abc import Mapping
from typing import Any, assert_type

from aioretry.testing import BlackPipe, FakeMongoses, Fault, Faults, Only, ReplicaSet


def only_shop(command: Mapping[str, Any]) -> bool:
    return bool(command["$db"] == "shop")


async def use(servers: ReplicaSet) -> None:
    assert_type(servers.faults, Faults)
    primary = await servers.primary()
    fault = servers.faults.drop_reply("insert", times=None, member=primary, where=only_shop)
    assert_type(fault, Fault)
    assert_type(fault.fired, int)
    narrow: Only = {"nth": 2, "namespace": "shop.orders"}
    async with servers.faults.error(91, "update", labels=["RetryableWriteError"], **narrow) as same:
        assert_type(same, Fault)
    servers.faults.drop_reply("insert", namspace="shop")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    servers.faults.delay("insert", 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with FakeMongoses(servers) as cluster, BlackPipe("mongodb://db1") as pipe:
        cluster.faults.hang(member=cluster.mongoses[0])
        pipe.faults.partition(pipe.members[0])
        FakeMongoses(pipe)
