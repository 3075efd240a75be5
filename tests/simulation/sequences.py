"""Commands of one client, some of them asked again, all of it decided by a seed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.simulation.commands import ABORT, COMMIT

SESSIONS = 3
CODES = (6, 7, 50, 64, 79, 89, 91, 112, 133, 134, 189, 251, 262, 317, 384, 9001)
CODES += (10107, 11600, 11601, 11602, 13435, 13436)


@dataclass(frozen=True)
class Step:
    """A command, and what happens to it."""

    command: dict[str, Any]
    session: int
    number: int | None
    fault: str | None = None
    code: int = 0

    @property
    def name(self) -> str:
        """That of the command."""
        return next(iter(self.command))

    @property
    def has_concern(self) -> bool:
        """Whether it has a write concern."""
        if self.name in {COMMIT, ABORT}:
            return True
        is_write = self.name in {"insert", "update", "delete", "findAndModify"}
        return is_write and "autocommit" not in self.command


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
        self._upserts = True

    def step(self) -> Step:
        """Return what is asked next."""
        step = Step(*self._asked())
        if not self._fails or self._random.random() < 0.6:
            return step
        faults = ["lost", "unanswered", "closed", "error"]
        fault = self._random.choice([*faults, "concern"] if step.has_concern else faults)
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
        return {"u": update, "upsert": random.random() < 0.5 and self._upserts}


class TransactionSequence(Sequence):
    """Transactions over a few sessions, and what others write and read beside them."""

    def __init__(self, seed: int, collection: str, *, fails: bool) -> None:
        super().__init__(seed, collection, fails=fails)
        self._begun: set[int] = set()
        """The sessions whose latest number is a transaction's."""

    def _asked(self) -> tuple[dict[str, Any], int, int | None]:
        session, draw = self._random.randrange(SESSIONS), self._random.random()
        if draw < 0.1:
            self._upserts = False  # they would wait for a minute
            try:
                return super()._asked()
            finally:
                self._upserts = True
        if draw < 0.2:
            return self._read(), session, None
        if session not in self._begun or draw < 0.3:
            self._numbers[session] += 1
            self._begun.add(session)
            return self._part({"startTransaction": True}), session, self._numbers[session]
        number = self._numbers[session]
        if draw < 0.35:
            number += self._random.choice([-1, 1])
        if draw < 0.55:
            end = self._random.choice([COMMIT, COMMIT, ABORT])
            return {end: 1, "autocommit": False}, session, max(1, number)
        more = {"startTransaction": True} if draw > 0.97 else {}
        return self._part(more), session, max(1, number)

    def _part(self, more: Mapping[str, Any]) -> dict[str, Any]:
        command = self._read() if self._random.random() < 0.3 else self._command()
        return {**command, "autocommit": False, **more}

    def _read(self) -> dict[str, Any]:
        query = self._random.choice([{}, {"n": 5}, {"_id": self._id()}])
        match self._random.choice(["find", "aggregate", "distinct"]):
            case "find":
                return {
                    "find": self._collection,
                    "filter": {"_id": self._id()},
                    "limit": 1,
                    "singleBatch": True,
                }
            case "aggregate":
                group = {"$group": {"_id": 1, "n": {"$sum": 1}}}
                pipeline = [{"$match": query}, group]
                return {"aggregate": self._collection, "pipeline": pipeline, "cursor": {}}
            case _:
                return {"distinct": self._collection, "key": "n", "query": query}
