"""Bulk operations against a server that errs at random and counts what it does."""

import asyncio
import random
from collections import Counter

import pytest
from pymongo import DeleteMany, DeleteOne, InsertOne, UpdateMany, UpdateOne
from pymongo.errors import PyMongoError

from aioretry import Outcome, RetryClient, deadline, outcome_of, partial_result_of
from aioretry.testing import ScriptedServer

RETRYABLE_WRITE = "RetryableWriteError"
OVERLOADED = ("RetryableError", "SystemOverloadedError")
STATEMENTS = {"insert": "documents", "update": "updates", "delete": "deletes"}
COUNTS = {"insert": "inserted_count", "update": "matched_count", "delete": "deleted_count"}


class Server:
    """Executes commands as a server does, and fails as the dice say."""

    def __init__(self, dice, collection):
        self.dice = dice
        self.collection = collection
        self.done = Counter()
        self.by_kind = Counter()
        self.records = {}

    def execute(self, request, *, most=None):
        """Execute a command, or the first of its statements, but none that was executed before."""
        name = request.name
        statements = request.command[STATEMENTS[name]]
        number = request.command.get("txnNumber")
        key = (bytes(request.command["lsid"]["id"]), number)
        record = set() if number is None else self.records.setdefault(key, set())
        count = len(statements) if most is None else most
        for position, statement in enumerate(statements[:count]):
            if position not in record:
                record.add(position)
                self.done[statement.get("q", statement)["_id"]] += 1
                self.by_kind[name] += 1
        reply = {"n": count}
        return reply | {"nModified": count} if name == "update" else reply

    def answer(self, request):
        """Answer a command."""
        if request.command[request.name] != self.collection:  # of one that was left behind
            return {"n": 0}
        if self.dice.random() < 0.6:
            return self.execute(request)
        return self.dice.choice(self.FAILURES)(self, request)

    def not_arrived(self, request):
        request.fail(6, labels=[RETRYABLE_WRITE])

    def applied_and_failed(self, request):
        self.execute(request)
        request.fail(89, labels=[RETRYABLE_WRITE])

    def half_applied_and_failed(self, request):
        self.execute(request, most=1)
        request.fail(262, labels=[RETRYABLE_WRITE])

    def not_written(self, request):
        request.fail(6, labels=[RETRYABLE_WRITE, "NoWritesPerformed"])

    def refused(self, request):
        request.fail(13)

    def overloaded(self, request):
        labels = [*OVERLOADED, RETRYABLE_WRITE, "NoWritesPerformed"]
        request.fail(462, labels=labels, baseBackoffMS=0.01)

    def no_concern(self, request):
        return self.execute(request) | {"writeConcernError": {"code": 64, "errmsg": "scripted"}}

    def no_concern_now(self, request):
        error = {"code": 91, "errmsg": "scripted"}
        labelled = {"errorLabels": [RETRYABLE_WRITE]} if "txnNumber" in request.command else {}
        return self.execute(request) | {"writeConcernError": error} | labelled

    def write_error(self, request, labels=(), code=11000):
        """Refuse a statement that was not executed before."""
        statements = request.command[STATEMENTS[request.name]]
        number = request.command.get("txnNumber")
        key = (bytes(request.command["lsid"]["id"]), number)
        last = len(statements) - 1
        if number is not None and last in self.records.get(key, ()):
            return self.execute(request)
        error = {"index": last, "code": code, "errmsg": "scripted"}
        labelled = {"errorLabels": list(labels)} if labels else {}
        return self.execute(request, most=last) | {"writeErrors": [error]} | labelled

    def interrupted(self, request):
        """As MongoDB 4.4."""
        return self.write_error(request, [RETRYABLE_WRITE], 11602)

    FAILURES = (
        not_arrived,
        applied_and_failed,
        half_applied_and_failed,
        not_written,
        refused,
        overloaded,
        no_concern,
        no_concern_now,
        write_error,
        interrupted,
    )


def requests(dice):
    """Some requests, each of which names itself."""
    made = []
    for number in range(dice.randint(1, 12)):
        one = {"_id": number}
        many = dice.random() < 0.1
        match dice.choice("iud"):
            case "i":
                made.append(InsertOne(one))
            case "u":
                made.append((UpdateMany if many else UpdateOne)(one, {"$inc": {"n": 1}}))
            case _:
                made.append((DeleteMany if many else DeleteOne)(one))
    return made


def write(dice, collection):
    """Begin a bulk operation; return it, and how many statements it has."""
    ordered = dice.random() < 0.5
    if dice.random() < 0.5:
        made = requests(dice)
        return collection.bulk_write(made, ordered=ordered), len(made)
    documents = [{"_id": number} for number in range(dice.randint(1, 12))]
    given = iter(documents) if dice.random() < 0.5 else documents
    return collection.insert_many(given, ordered=ordered), len(documents)


async def end_of(dice, bulk):
    """Await it, or cancel it at some time; return what it ends with."""
    if dice.random() < 0.3:
        for _ in range(dice.randint(0, 40)):
            await asyncio.sleep(0.0002)
        bulk.cancel()
    try:
        return await bulk
    except (PyMongoError, asyncio.CancelledError) as exc:
        return exc


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(6))
async def test_outcomes_are_true(seed):
    """Whatever happens: applied is once, not applied is never, unknown is once at most."""
    dice = random.Random(seed)
    async with (
        ScriptedServer(hello={"maxWriteBatchSize": 3}) as server,
        RetryClient(server.uri) as client,
    ):
        await client.admin.command("ping")
        for turn in range(60):
            collection = client.db[f"c{turn}"]
            model = Server(dice, collection.name)
            for name in STATEMENTS:
                server.answer(name, model.answer)
            async with deadline(dice.choice([None, None, 0.05, 20])):
                bulk, count = write(dice, collection)
                ended = await end_of(dice, bulk)
            await client.admin.command("ping")
            check(model, ended, count, f"seed {seed}, turn {turn}")


def check(model, ended, count, when):
    """Compare what a caller was told with what the server has done."""
    assert max(model.done.values(), default=0) <= 1, when
    if not isinstance(ended, BaseException):
        assert dict.fromkeys(range(count), 1) == dict(model.done), when
        return
    partial = partial_result_of(ended)
    if partial is None:
        assert {} == dict(model.done), when
        return
    outcomes = [*partial.outcomes, *[Outcome.NOT_APPLIED] * (count - len(partial.outcomes))]
    found = [(outcome, model.done[number]) for number, outcome in enumerate(outcomes)]
    assert {(Outcome.APPLIED, 0), (Outcome.NOT_APPLIED, 1)}.isdisjoint(found), (
        f"{when}: {found} after {ended!r}"
    )
    shared = outcome_of(ended)
    assert shared is Outcome.UNKNOWN or {shared} >= set(partial.outcomes), when
    for name, field in COUNTS.items():
        assert getattr(partial.result, field) <= model.by_kind[name], when
