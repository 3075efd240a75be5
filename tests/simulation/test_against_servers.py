"""The model beside a real server: the same commands, the same replies, the same documents."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self
from uuid import uuid4

import pytest
from bson.binary import Binary
from bson.int64 import Int64
from pymongo import MongoClient
from pymongo.errors import ConnectionFailure, NotPrimaryError, OperationFailure

from aioretry.testing import Faults
from tests.lengths import in_full
from tests.simulation.clock import Clocks, VirtualLoop
from tests.simulation.members import ReplicaSet, Request, labels_of, with_concern_error
from tests.simulation.state import Command, CommandError

STEPS = 60
SESSIONS = 3
CODES = (6, 7, 50, 64, 79, 89, 91, 112, 133, 134, 189, 262, 317, 384, 9001)
CODES += (10107, 11600, 11601, 11602, 13435, 13436)
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
        self._go_on()

    def run(self, step: "Step") -> dict[str, Any] | None:
        """Return the reply to a command, or None if none came."""
        replies: list[Any] = []
        name = next(iter(step.command))
        command = Command(name, step.command, b"%d" % step.session, step.number)
        match step.fault:
            case "lost" | "closed":
                return None
            case "error":
                labels = labels_of(step.code, command, self._set.version)
                return CommandError(step.code, "", *labels).reply
        self._set.primary.receive(Request(command, True, None, None, replies.append))
        self._go_on()
        reply: dict[str, Any] = replies.pop()
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

    def run(self, step: "Step") -> dict[str, Any] | None:
        """Return the reply to a command, or None if none came."""
        self._arm(step)
        with self._client.start_session(causal_consistency=False) as held:
            own = held.session_id
            server_session: Any = held._server_session
            server_session.session_id = {"id": self._sessions[step.session]}
            whole = {**step.command, "writeConcern": {"w": "majority"}}
            if step.number is not None:
                whole["txnNumber"] = Int64(step.number)
            try:
                return dict(self._client.simulation.command(whole, session=held))
            except OperationFailure as exc:
                return dict(exc.details or {})
            except NotPrimaryError as exc:
                return dict(exc.details)
            except ConnectionFailure:
                return None
            finally:
                server_session.session_id = own

    def _arm(self, step: "Step") -> None:
        """Have something happen to a command."""
        if step.fault is None:
            return
        name = next(iter(step.command))
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
    found["writeErrors"] = [(one["index"], one["code"]) for one in reply.get("writeErrors", ())]
    return found


@dataclass(frozen=True)
class Step:
    """A command, and what happens to it."""

    command: dict[str, Any]
    session: int
    number: int | None
    fault: str | None = None
    code: int = 0


class Sequence:
    """Commands of one client, some of them asked again.

    Args:
        seed: Decides all of it.
        collection: Where they go.
        fails: Whether something happens to some of them.
    """

    def __init__(self, seed: int, collection: str, *, fails: bool) -> None:
        self._random = Random(f"sequence {seed}")
        self._fails = fails
        self._collection = collection
        self._numbers = [0] * SESSIONS
        self._latest: dict[int, dict[str, Any]] = {}

    def step(self) -> Step:
        """Return what is asked next."""
        step = Step(*self._asked())
        if not self._fails or self._random.random() < 0.6:
            return step
        fault = self._random.choice(["lost", "unanswered", "closed", "error", "concern"])
        return replace(step, fault=fault, code=self._random.choice(CODES))

    def _asked(self) -> tuple[dict[str, Any], int, int | None]:
        random, session = self._random, self._random.randrange(SESSIONS)
        draw = random.random()
        if draw < 0.35 and session in self._latest:  # once more
            return self._latest[session], session, self._numbers[session]
        # Too late, unless the latest one was lost.
        if draw < 0.4 and self._numbers[session] > 1 and not self._fails:
            return self._command(), session, self._numbers[session] - 1
        if draw < 0.45:
            return self._command(), session, None
        self._numbers[session] += 1
        self._latest[session] = command = self._command()
        return command, session, self._numbers[session]

    def _command(self) -> dict[str, Any]:
        random = self._random
        many = range(random.choice([1, 1, 2, 4]))
        ordered = random.random() < 0.5
        match random.choice(["insert", "update", "delete", "findAndModify"]):
            case "insert":
                documents = [{"_id": self._id(), "n": 0} for _ in many]
                return {"insert": self._collection, "documents": documents, "ordered": ordered}
            case "update":
                updates = [{"q": {"_id": self._id()}, **self._update()} for _ in many]
                return {"update": self._collection, "updates": updates, "ordered": ordered}
            case "delete":
                deletes = [{"q": {"_id": self._id()}, "limit": 1} for _ in many]
                return {"delete": self._collection, "deletes": deletes, "ordered": ordered}
            case _:
                command = {"findAndModify": self._collection, "query": {"_id": self._id()}}
                if random.random() < 0.3:
                    return {**command, "remove": True}
                update = self._update()
                update["update"] = update.pop("u")
                return {**command, **update, "new": random.random() < 0.5}

    def _id(self) -> int:
        return self._random.randrange(6)

    def _update(self) -> dict[str, Any]:
        random = self._random
        update = random.choice([{"$inc": {"n": 1}}, {"$set": {"n": 5}}, {"n": 7}])
        return {"u": update, "upsert": random.random() < 0.5}


class Comparison:
    """A sequence of commands, for the model and for a server.

    Args:
        client: The server's.
        seed: Decides the sequence.
        faults: The proxy in front of the server, if something is to happen.
    """

    def __init__(self, client: MongoClient[Any], seed: int, faults: Faults | None = None) -> None:
        self._client = client
        self._collection = f"c{seed}"
        self._sequence = Sequence(seed, self._collection, fails=faults is not None)
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
            model, real = (told(each.run(step)) for each in (self.model, self._real))
            assert real == model, (number, step)

    def end(self) -> None:
        """Compare what is stored."""
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


@pytest.mark.usefixtures("three_members")
async def test_step_downs(replica_set, plain):
    """What was done under an id is known to the next primary, too."""
    with await asyncio.to_thread(Comparison, plain, 1000) as comparison:
        for _ in range(2):
            await asyncio.to_thread(comparison.run, STEPS)
            await asyncio.to_thread(comparison.model.step_down)
            old = await replica_set.step_down()
            await replica_set.wait_for_primary(other_than=old)
            # Retried until the client knows the new one, too.
            await asyncio.to_thread(plain.simulation.others.insert_one, {})
        await asyncio.to_thread(comparison.run, STEPS)
        comparison.end()
