"""Faults at the proxies that one seed decides: what becomes of which message, each time alike."""

import asyncio
import contextlib
import random
from collections import Counter

import pytest
from pymongo import ReturnDocument
from pymongo.errors import PyMongoError

from aioretry import Outcome, deadline, outcome_of, partial_result_of, resolve
from aioretry._retry.sessions import CommandNumber
from tests.integration.looping import Silent, all_given_back
from tests.integration.test_landing import making_tasks, old_style
from tests.lengths import in_full

OPERATIONS, AT_ONCE = 60, 20
KINDS = ("insert", "update", "delete", "find_one_and_update", "insert_many", "operation")
CANCELLED = (None, None, None, None, None, 0.0, 0.002, 0.02)
APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
RIGHT = {APPLIED: {1}, NOT_APPLIED: {0}, UNKNOWN: {0, 1}}


class Dice:
    """Decides by a seed what becomes of a message: by what is in it, and how often it was sent.

    Args:
        seed: Decides all of it.
    """

    def __init__(self, seed):
        self.seed = seed
        self.seen = Counter()
        self.struck = set()

    def says(self, action, chance):
        """Return what a fault asks about each command."""

        def where(body):
            tag = tag_of(body)
            self.seen[action, tag] += 1
            cast = f"{self.seed}/{action}/{tag}/{self.seen[action, tag]}"
            if random.Random(cast).random() >= chance:
                return False
            self.struck.add((action, tag, self.seen[action, tag]))
            return True

        return where

    def arm(self, faults, namespace):
        """Arm all faults, for as long as they stand."""
        only = {"namespace": namespace, "times": None, "must_fire": False}
        faults.drop_request(where=self.says("drop_request", 0.1), **only)
        faults.drop_reply(where=self.says("drop_reply", 0.15), **only)
        faults.truncate_reply(20, where=self.says("truncate_reply", 0.05), **only)
        faults.delay(0.02, where=self.says("delay", 0.1), **only)


def tag_of(body):
    """Return what tells the operation of a command from others."""
    if "findAndModify" in body:
        return body["query"]["_id"]
    (statements,) = (body[name] for name in ("documents", "updates", "deletes") if name in body)
    first = statements[0]
    return first.get("q", first)["_id"]


async def operate(collection, number, kind, cancelled):
    """Make an operation; return the outcome of each of its statements."""
    tags = [f"{number}.{n}" for n in range(4 if kind == "insert_many" else 1)]
    try:
        async with asyncio.timeout(cancelled), deadline(30.0 if number % 3 else None):
            await call(collection, kind, tags)
    except (PyMongoError, TimeoutError) as exc:
        outcomes = said(exc, tags)
        if UNKNOWN in outcomes:
            try:
                async with deadline(30.0):
                    await resolve(exc)
            except PyMongoError as again:
                outcomes = said(again, tags)
            else:
                outcomes = [APPLIED] * len(tags)
        return outcomes
    return [APPLIED] * len(tags)


def said(exc, tags):
    partial = partial_result_of(exc)
    return [outcome_of(exc)] * len(tags) if partial is None else [*partial.outcomes]


async def call(collection, kind, tags):
    (tag, *_), increment = tags, {"$inc": {"n": 1}}
    match kind:
        case "insert":
            await collection.insert_one({"_id": tag, "n": 1})
        case "insert_many":
            await collection.insert_many([{"_id": each, "n": 1} for each in tags], ordered=False)
        case "update":
            await collection.update_one({"_id": tag}, increment)
        case "delete":
            await collection.delete_one({"_id": tag})
        case "find_one_and_update":
            after = await collection.find_one_and_update(
                {"_id": tag}, increment, return_document=ReturnDocument.AFTER
            )
            assert after["n"] == 1
        case "operation":
            async with collection.operation() as writes:
                await writes.update_one({"_id": tag}, increment)


def times(kind, document):
    """Return how often a statement was done, by what is stored."""
    if kind == "delete":
        return int(document is None)
    return 0 if document is None else document["n"]


async def run(seed, faults, collection, stored, relay):
    """Make many operations at once, and more; return what has struck which of their messages.

    In between some connections of the pool are reset, while the others live. What is sent over
    those comes to no proxy.

    Of those that are cancelled nothing is returned: how far they come depends on the machine.
    Nor of those without a deadline, whose only retry may be spent on a pool that is paused.
    """
    kinds = [random.Random(f"{seed} {n}").choice(KINDS) for n in range(OPERATIONS)]
    cancelled = [
        random.Random(f"{seed} cancelled {n}").choice(CANCELLED) for n in range(OPERATIONS)
    ]
    stored.delete_many({})
    there = [n for n, kind in enumerate(kinds) if not kind.startswith("insert")]
    stored.insert_many({"_id": f"{n}.0", "n": 0} for n in there)
    dice = Dice(seed)
    dice.arm(faults, f"{collection.database.name}.{collection.name}")
    told = []
    try:
        for first in range(0, OPERATIONS, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            told += await asyncio.gather(
                *(operate(collection, n, kinds[n], cancelled[n]) for n in numbers)
            )
            await all_given_back(collection.database.client)
            relay.cut(random.Random(f"{seed} cut {first}").choice([2, 3]))
    finally:
        faults.verify()
    documents = {one["_id"]: one for one in stored.find()}
    for number, (kind, outcomes) in enumerate(zip(kinds, told, strict=True)):
        for position, outcome in enumerate(outcomes):
            done = times(kind, documents.get(f"{number}.{position}"))
            assert done in RIGHT[outcome], (seed, number, kind, position, outcome)
    return {
        (action, tag, count)
        for action, tag, count in dice.struck
        if cancelled[number := int(tag.split(".")[0])] is None and number % 3
    }


@pytest.mark.long
@pytest.mark.parametrize("seed", range(in_full(20, otherwise=4)))
async def test_what_is_told(seed, replica_set, relay, collection, stored, commands, client_class):
    """Each statement is done once, never, or as nobody could tell; twice the same is met.

    On the event loop and on threads, with tasks of the loop's own kind and of another.
    """
    listeners = [commands, Silent()] if seed % 2 else []
    makes_tasks = making_tasks(old_style) if seed % 4 > 1 else contextlib.nullcontext()
    uri = f"mongodb://{relay.address}/?directConnection=true"
    async with client_class(uri, event_listeners=listeners) as client:
        things = client[collection.database.name].get_collection(
            collection.name, write_concern=collection.write_concern
        )
        with makes_tasks:
            struck = [await run(seed, replica_set.faults, things, stored, relay) for _ in range(2)]
        await all_given_back(client)
    assert relay.has_cut
    assert struck[0]
    assert struck[0] == struck[1]


async def test_a_mistake_is_found(replica_set, relay, collection, stored, monkeypatch):
    """Attempts with numbers of their own are executed twice."""
    monkeypatch.setattr(CommandNumber, "take", lambda _, session: session.next_number())
    with pytest.raises(AssertionError):
        await run(0, replica_set.faults, collection, stored, relay)
