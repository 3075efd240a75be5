"""What the snippets of each page take as given, and what must have come of them.

A snippet that shows an error is given what makes the error happen.
"""

import asyncio
import io
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
from pymongo.write_concern import WriteConcern

from aioretry import deadline
from aioretry.idempotent import Keys, VersionConflict
from aioretry.pymongo import AsyncRetryClient
from aioretry.streams import NO_WATERMARKS
from tests.docs.snippets import Page, Setup

DATABASES = ("bank", "metrics", "polls", "shop", "zoo")
"""What the snippets write to; they are empty when a page begins."""


async def nothing(page: Page) -> AsyncGenerator[str, None]:
    """The page has all that it needs."""
    page.give(client=page.client)
    return
    yield


async def events(page: Page) -> AsyncGenerator[str, None]:
    """There is a collection of events."""
    page.give(client=page.client, events=page.client.metrics.events)
    return
    yield


async def readme(page: Page) -> AsyncGenerator[str, None]:
    pytest.importorskip("fastapi")
    yield "async with AsyncRetryClient("
    events = page.client.metrics.events  # its own client is closed
    page.give(client=page.client, events=events)
    yield "async with deadline("
    with page.faults.drop_reply("update", times=2):
        yield "await resolve("
    assert 1 == page.names["result"].raw_result["n"]
    assert 1 == (await events.find_one({"_id": 1}))["n"]
    yield "app = FastAPI("
    app = page.names["app"]
    async with app.router.lifespan_context(app) as state:

        async def served(scope, receive, send):  # as a server does
            await app({**scope, "state": dict(state)}, receive, send)

        with page.faults.drop_reply("update", namespace="metrics.events"):
            assert 204 == await status_of(served, "/events/monday")
    assert 1 == (await events.find_one({"_id": "monday"}))["counter"]


async def idempotency_keys(page: Page) -> AsyncGenerator[str, None]:
    async with Keys(b"sixteen bytes at least", "shop") as keys:
        yield "take_order("
        take = page.names["take_order"]
        assert [1, 1, 2] == [await take(page.client, keys, key) for key in ("a", "a", "b")]
        yield "take_order_durably"
        for key in ("c", "c", "d"):
            await page.names["take_order_durably"](page.client, keys, key)
    assert 4 == await page.client.shop.orders.count_documents({"request": {"$exists": True}})


async def increments(page: Page) -> AsyncGenerator[str, None]:
    stock = page.client.shop.stock
    await stock.insert_one({"_id": "bolts"})
    with page.faults.drop_reply("update", namespace="shop.stock"):
        yield "PendingUpdates("
    assert 1 == (await stock.find_one())["sold"]
    yield "token=token"
    assert 2 == (await stock.find_one())["sold"]
    yield "clean_up("
    assert 0 == page.names["status"].tokens


async def migrating(page: Page) -> AsyncGenerator[str, None]:
    yield "AsyncMongoClient("
    yield "AsyncRetryClient("
    yield " RetryClient("
    assert 3 == await page.client.metrics.events.count_documents({"kind": "login"})
    with page.faults.drop_reply("update", times=2):
        yield 'sell(stock, "bolts")'
    page.check_printed()
    with page.faults.drop_reply("update", times=2):
        yield 'sell(stock, "nuts")'
    page.check_printed()
    page.give(stock=page.client.shop.stock)  # the page's client is closed
    with page.faults.error(10107, "update", labels=["NoWritesPerformed"]) as refused:
        yield "sell_patiently("
    assert refused.fired
    assert 2 == (await page.client.shop.stock.find_one({"_id": "nuts"}))["sold"]


async def outcomes(page: Page) -> AsyncGenerator[str, None]:
    events = page.client.metrics.events
    page.give(events=events)
    with page.faults.drop_reply("insert", times=2):
        yield "match outcome_of(exc)"
    first, *attempts = page.printed().splitlines()
    assert first == "writing it again may write it twice"
    assert 2 == len(attempts)
    yield "partial_result_of("
    assert page.printed() == "1\n"
    assert [1, 2, 3, 4] == [document["_id"] for document in page.names["again"]]
    await events.drop()
    with page.faults.write_concern_error(64, "insert"):
        yield "isinstance(exc, WriteConcernError)"
    assert page.printed() == "applied on the primary, not yet by a majority\n"
    accounts = page.client.bank.accounts
    await accounts.insert_many([{"_id": "A", "money": 5}, {"_id": "B", "money": 0}])
    page.give(client=page.client)
    yield "transaction(client"
    assert [0, 5] == [account["money"] async for account in accounts.find().sort("_id")]


async def safe_to_repeat(page: Page) -> AsyncGenerator[str, None]:
    orders = page.client.shop.orders
    await orders.insert_one({"_id": "order-42"})
    page.give(orders=orders)
    with page.faults.drop_reply("find", times=2):
        yield "orders.find_one("
    assert page.names["order"] == {"_id": "order-42"}


async def sessions(page: Page) -> AsyncGenerator[str, None]:
    async with AsyncRetryClient(page.uri) as client:
        page.give(client=client, events=client.metrics.events)
        yield "events.find_one("
        assert page.names["event"] == {"_id": 1}
        accounts = page.client.bank.accounts
        await accounts.insert_many([{"_id": "A", "money": 10}, {"_id": "B", "money": 0}])
        yield "await session.with_transaction(transfer)"
        assert 5 == page.names["moved"]
        async with client.start_session() as session:
            page.give(session=session)
            with page.faults.drop_reply("commitTransaction", times=None):
                yield "UnknownTransactionCommitResult"
        assert page.printed() == "perhaps committed\n"
        yield "transaction(client"


async def nightly_jobs(page: Page) -> AsyncGenerator[str, None]:
    yield "keys.once("
    credit, accounts = page.names["credit"], page.client.bank.accounts
    await accounts.insert_one({"_id": "rex", "balance": 1000})
    async with Keys(b"sixteen bytes at least", "bank") as keys:
        done = [await credit(page.client, keys, "rex", night) for night in ("mon", "mon", "tue")]
    assert [True, False, True] == done
    assert 1002 == (await accounts.find_one({"_id": "rex"}))["balance"]


async def outbox(page: Page) -> AsyncGenerator[str, None]:
    sent: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def send_mail(to: str, message_id: str) -> None:
        await sent.put((to, message_id))

    page.give(client=page.client, send_mail=send_mail)
    yield "create_task("
    to, message_id = await sent.get()
    assert ("rex@example.org", 24) == (to, len(message_id))
    page.names["task"].cancel()
    await asyncio.wait([page.names["task"]])


async def streams(page: Page) -> AsyncGenerator[str, None]:
    await page.client.zoo.create_collection(
        "animals", changeStreamPreAndPostImages={"enabled": True}
    )
    yield "Aggregator("
    client, animals = page.names["client"], page.names["animals"]
    await animals.insert_one({"_id": "Rex", "tags": ["dog", "house"]})
    await page.names["aggregator"].rebuild()
    queue = client.zoo.get_collection("queue", write_concern=WriteConcern("majority"))
    page.give(queue=queue)
    yield "append("
    async with client.start_session() as session:
        await session.with_transaction(page.names["move"])
    assert 1 == await queue.count_documents({})
    await page.names["aggregator"].run(until_caught_up=True)
    found = await page.names["tags"].find(NO_WATERMARKS).sort("_id").to_list(None)
    assert [{"_id": "backyard", "count": 1}, {"_id": "dog", "count": 1}] == found
    await client.close()


async def task_queues(page: Page) -> AsyncGenerator[str, None]:
    arq = pytest.importorskip("arq")
    yield "Retry("
    book = page.names["book"]
    async with Keys(b"sixteen bytes at least", "bank") as keys:
        job = {"client": page.client, "keys": keys, "job_id": "1", "job_try": 1}
        assert [7, 7] == [await book(job, "rex", 7) for _ in range(2)]
        with page.faults.drop_reply("commitTransaction", times=None), deadline(0.5):
            with pytest.raises(arq.Retry):
                await book(job | {"job_id": "2"}, "rex", 1)
        assert 8 == await book(job | {"job_id": "2"}, "rex", 1)


async def why_blind_retries(page: Page) -> AsyncGenerator[str, None]:
    with page.faults.drop_reply("update"):
        yield "cast("
    page.check_printed()
    await page.client.polls.votes.drop()
    with page.faults.drop_reply("update"):
        yield "RetryClient("
    page.check_printed()


async def telemetry(page: Page) -> AsyncGenerator[str, None]:
    yield "JsonFormatter("
    logger, handler, lines = logging.getLogger("aioretry"), page.names["handler"], io.StringIO()
    handler.setStream(lines)
    logger.setLevel(logging.DEBUG)
    try:
        with page.faults.drop_reply("insert"):
            await page.client.metrics.events.insert_one({})
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    first = json.loads(lines.getvalue().splitlines()[0])
    assert "insert_one" == first["mongodb"]["operation"]
    assert 1 == first["mongodb"]["attempt"]


async def versioned_documents(page: Page) -> AsyncGenerator[str, None]:
    page.give(client=page.client)
    yield "VersionedDocuments("
    docs, order = page.names["docs"], page.names["order"]
    stored = await page.client.shop.orders.find_one({"_id": order.id})
    assert ["bolt", "nut"] == stored["lines"]
    with pytest.raises(VersionConflict):
        await docs.save(order.document | {"lines": []})
    page.give(order=await docs.create({"customer": "bob"}))
    yield "payment-17"


SETUPS: Mapping[str, Setup] = {
    "README.md": readme,
    "deadlines.md": events,
    "idempotency-keys.md": idempotency_keys,
    "increments.md": increments,
    "migrating.md": migrating,
    "nightly-jobs.md": nightly_jobs,
    "outbox.md": outbox,
    "outcomes.md": outcomes,
    "safe-to-repeat.md": safe_to_repeat,
    "sessions.md": sessions,
    "streams.md": streams,
    "task-queues.md": task_queues,
    "telemetry.md": telemetry,
    "versioned-documents.md": versioned_documents,
    "why-blind-retries.md": why_blind_retries,
}
"""The set-up of each page that takes more as given than a client."""


def odm_names() -> dict[str, Any]:
    """What a snippet takes from the two ODMs."""
    from beanie import Document, init_beanie
    from odmantic import AIOEngine

    class Order(Document):
        pass

    return {"AIOEngine": AIOEngine, "init_beanie": init_beanie, "Order": Order}


async def status_of(app: Any, path: str) -> int:
    """The status of the answer to a POST to an ASGI application."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }
    await app(scope, receive, send)
    return int(sent[0]["status"])
