"""The model beside a real server: the same commands, the same replies, the same documents."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any, Self
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, NotPrimaryError, OperationFailure

from aioretry.testing import Faults
from tests.lengths import in_full
from tests.simulation.clock import Clocks, VirtualLoop
from tests.simulation.commands import (
    ABORT,
    COMMIT,
    MAX_TIME,
    Command,
    error_of,
    with_concern_error,
)
from tests.simulation.members import Request
from tests.simulation.relays import World
from tests.simulation.replica_set import ReplicaSet
from tests.simulation.sequences import SESSIONS, Sequence, Step, TransactionSequence

STEPS = 60
HELD_UP = 0.3
"""How long a command may wait for a transaction to end, in seconds."""

_OF_A_DRIVER = {"lsid", "txnNumber", "$clusterTime", "readConcern", "writeConcern", "maxTimeMS"}
TOLD = (
    "ok",
    "code",
    "n",
    "nModified",
    "upserted",
    "retriedStmtIds",
    "retriedStmtId",
    "value",
    "errorLabels",
)


class Model:
    """The simulated set, asked one command after the other."""

    def __init__(self, version: tuple[int, int]) -> None:
        self._loop = VirtualLoop()
        self._set = ReplicaSet(
            self._loop, Clocks(self._loop), Random(1), lambda _: None, version=version
        )
        self.was_held_up = False
        """Whether the latest command has waited in vain for a transaction to end."""

        self._go_on()

    def run(self, step: Step) -> dict[str, Any] | None:
        """Return the reply to a command, or None if none came."""
        replies: list[Any] = []
        self.was_held_up = False
        command = Command(step.name, step.command, b"%d" % step.session, step.number)
        match step.fault:
            case "lost" | "closed":
                return None
            case "error":
                return error_of(step.code, "", command, self._set.version).reply
        self._set.primary.receive(Request(command, True, None, HELD_UP, replies.append))
        self._go_on()
        reply: dict[str, Any] = replies.pop()
        self.was_held_up = reply.get("code") == MAX_TIME
        if self.was_held_up:
            return reply  # in time, and nothing else happens to it
        if step.fault == "concern":
            reply = with_concern_error(reply, command, step.code, "", self._set.version)
        return None if step.fault == "unanswered" else reply

    def documents(self, collection: str) -> list[Any]:
        """Return what is stored."""
        return [*self._set.primary.state.documents(collection).values()]

    def step_down(self) -> None:
        """Have another member elected, or the same again."""
        self._set.step_down()
        self._go_on(20.0)

    def close(self) -> None:
        """End it."""
        self._loop.close()

    def _go_on(self, seconds: float = 1.0) -> None:
        self._loop.call_later(seconds, self._loop.stop)
        self._loop.run_forever()


class Real:
    """A real server, asked so.

    Args:
        client: Its client.
        faults: The proxy in front of it; None if nothing happens there.
    """

    def __init__(self, client: MongoClient[Any], faults: Faults | None) -> None:
        self._client = client
        self._faults = faults
        self._sessions = [Binary.from_uuid(uuid4()) for _ in range(SESSIONS)]

    def run(self, step: Step, *, is_held_up: bool = False) -> dict[str, Any] | None:
        """Return the reply to a command, or None if none came."""
        self._arm(step)
        with self._client.start_session(causal_consistency=False) as held:
            own = held.session_id
            server_session: Any = held._server_session
            server_session.session_id = {"id": self._sessions[step.session]}
            whole = {**step.command}
            if step.has_concern:
                whole["writeConcern"] = {"w": "majority"}
            if step.number is not None:
                whole["txnNumber"] = Int64(step.number)
            if is_held_up:
                whole["maxTimeMS"] = round(1000 * HELD_UP)
            database = self._client["admin" if step.name in {COMMIT, ABORT} else "simulation"]
            try:
                return dict(database.command(whole, session=held))
            except OperationFailure as exc:
                return dict(exc.details or {})
            except NotPrimaryError as exc:
                return dict(exc.details)
            except ConnectionFailure:
                return None
            finally:
                server_session.session_id = own

    def _arm(self, step: Step) -> None:
        """Have something happen to a command."""
        if step.fault is None:
            return
        name = step.name
        data: dict[str, Any] = {"failCommands": [name]}
        match step.fault:
            case "lost":
                self._faults.drop_request(name)
                return
            case "unanswered":
                self._faults.drop_reply(name)
                return
            case "closed":
                data["closeConnection"] = True
            case "error":
                data["errorCode"] = step.code
            case "concern":
                data["writeConcernError"] = {"code": step.code, "errmsg": ""}
        self._client.admin.command(
            {"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data}
        )

    def documents(self, collection: str) -> list[Any]:
        """Return what is stored."""
        return [*self._client.simulation[collection].find()]


def told(reply: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what counts in a reply."""
    if reply is None:
        return None
    found = {name: reply[name] for name in TOLD if name in reply}
    found["writeConcernError"] = reply.get("writeConcernError", {}).get("code")
    if "cursor" in reply:
        found["found"] = reply["cursor"]["firstBatch"]
    if "values" in reply:
        found["values"] = sorted(reply["values"])
    found["writeErrors"] = [(one["index"], one["code"]) for one in reply.get("writeErrors", ())]
    return found


class Comparison:
    """A sequence of commands, for the model and for a server.

    Args:
        client: The server's.
        seed: Decides the sequence.
        faults: The proxy in front of the server, if something is to happen.
        kind: What sequence it is.
    """

    def __init__(
        self,
        client: MongoClient[Any],
        seed: int,
        faults: Faults | None = None,
        kind: type[Sequence] = Sequence,
    ) -> None:
        self._client = client
        self._collection = f"c{seed}"
        self._sequence = kind(seed, self._collection, fails=faults is not None)
        major, minor, *_ = client.server_info()["versionArray"]
        self.model, self._real = Model((major, minor)), Real(client, faults)
        client.simulation.drop_collection(self._collection)
        client.simulation.create_collection(self._collection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.model.close()

    def run(self, steps: int) -> None:
        """Send commands to both; the replies are to be the same."""
        for number in range(steps):
            step = self._sequence.step()
            model = told(self.model.run(step))
            is_held_up = self.model.was_held_up
            if is_held_up:
                step = replace(step, fault=None)
            real = told(self._real.run(step, is_held_up=is_held_up))
            if is_held_up:  # and if it has written something, it has no time to wait for that
                real = {**real, "writeConcernError": None}
            assert real == model, (number, step)

    def end(self) -> None:
        """Compare what is stored, once no transaction is open any more."""
        for session in range(SESSIONS):
            last = {"insert": self._collection, "documents": [{"_id": -1 - session}]}
            step = Step(last, session, 1000)
            assert told(self._real.run(step)) == told(self.model.run(step))
        model, real = (
            sorted(each.documents(self._collection), key=lambda one: one["_id"])
            for each in (self.model, self._real)
        )
        assert real == model
        self._client.simulation.drop_collection(self._collection)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(in_full(40, otherwise=10)))
def test_replies_and_documents(plain, seed):
    """Whatever is sent under whatever id, the model answers and stores what a server does."""
    with Comparison(plain, seed) as comparison:
        comparison.run(STEPS)
        comparison.end()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 100 + in_full(40, otherwise=3)))
def test_faults(plain, servers_of_test, seed):
    """Messages that are lost and errors of each code: the same is done, said and labelled."""
    with Comparison(plain, seed, servers_of_test.faults) as comparison:
        comparison.run(STEPS)
        servers_of_test.faults.verify()
        comparison.end()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200, 200 + in_full(40, otherwise=10)))
def test_transactions(plain, seed):
    """What they see, write and conflict with, and how they end, is what it is at a server."""
    with Comparison(plain, seed, kind=TransactionSequence) as comparison:
        comparison.run(STEPS)
        comparison.end()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(300, 300 + in_full(40, otherwise=3)))
def test_faults_of_transactions(plain, servers_of_test, seed):
    """Messages that are lost and errors of each code, with the labels that those have then."""
    with Comparison(plain, seed, servers_of_test.faults, TransactionSequence) as comparison:
        comparison.run(STEPS)
        servers_of_test.faults.verify()
        comparison.end()


@pytest.mark.usefixtures("three_members")
@pytest.mark.parametrize(("seed", "kind"), [(1000, Sequence), (1001, TransactionSequence)])
async def test_step_downs(replica_set, plain, seed, kind):
    """What was done under an id is known to the next primary, too, and what was open has ended."""
    with await asyncio.to_thread(Comparison, plain, seed, None, kind) as comparison:
        for _ in range(2):
            await asyncio.to_thread(comparison.run, STEPS)
            await asyncio.to_thread(comparison.model.step_down)
            old = await replica_set.step_down()
            await replica_set.wait_for_primary(other_than=old)
            # Retried until the client knows the new one, too.
            await asyncio.to_thread(plain.simulation.others.insert_one, {})
        await asyncio.to_thread(comparison.run, STEPS)
        await asyncio.to_thread(comparison.end)


def as_steps(sent: list[tuple[int, Command]]) -> Iterator[Step]:
    """Return commands as they are asked again: each process has a session, and its own numbers."""
    numbers: dict[tuple[object, ...], int] = {}
    for process, command in sent:
        body = {name: each for name, each in command.body.items() if name not in _OF_A_DRIVER}
        number = None
        if command.number is not None:
            key = process, command.session, command.number
            number = numbers.setdefault(key, len(numbers) + 1)
        yield Step(body, process, number)


def timeless(value: Any) -> Any:
    """Return a reply or document without its times."""
    match value:
        case dict():
            return {name: timeless(each) for name, each in value.items()}
        case list():
            return [timeless(each) for each in value]
        case datetime() | Timestamp():
            return type(value)
        case _:
            return value


def test_relays(plain):
    """What relays of an outbox ask, and who adds to it, is answered and stored as at a server."""
    world = World(lease_seconds=10_000.0)  # it lasts, however long the answers take
    world.run()
    assert [] == [*world.wrong()]
    names = "outbox", "orders", "aioretry.leases"
    for name in names:
        plain.simulation.drop_collection(name)
        plain.simulation.create_collection(name)
    major, minor, *_ = plain.server_info()["versionArray"]
    with closing(Model((major, minor))) as model:
        real, steps = Real(plain, None), [*as_steps(world.sent)]
        assert {"find", "aggregate", "update", "findAndModify"} < {step.name for step in steps}
        for number, step in enumerate(steps):
            answers = (timeless(told(each.run(step))) for each in (real, model))
            assert next(answers) == next(answers), (number, step)
        for name in names:
            found = [
                sorted(timeless(each.documents(name)), key=lambda one: str(one["_id"]))
                for each in (real, model)
            ]
            assert found[0] == found[1]
