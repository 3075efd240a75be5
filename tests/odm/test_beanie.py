"""Beanie 2 on an `AsyncRetryClient`: what its documents and queries write is there once."""

import pytest
from beanie import BulkWriter, Document, Indexed, Link, WriteRules, init_beanie
from beanie.exceptions import RevisionIdWasChanged
from beanie.operators import Inc, Set
from pydantic import BaseModel
from pymongo import ASCENDING, AsyncMongoClient, IndexModel
from pymongo.errors import AutoReconnect, BulkWriteError, DuplicateKeyError

from aioretry import Outcome, RetryClient, deadline, outcome_of
from aioretry.pymongo import AsyncRetryClient, AsyncRetryCollection


class Address(BaseModel):
    street: str
    city: str


class Item(BaseModel):
    sku: str
    quantity: int = 1


class Customer(Document):
    id: int
    name: Indexed(str, unique=True)
    address: Address
    orders: int = 0
    points: int = 0

    class Settings:
        name = "customers"


class Order(Document):
    id: int
    customer: Link[Customer]
    items: list[Item]
    state: str = "new"

    class Settings:
        name = "orders"
        use_state_management = True
        use_revision = True
        indexes = (IndexModel([("customer", ASCENDING), ("state", ASCENDING)], name="by_state"),)


class Visit(Document):
    id: int
    times: int = 0

    class Settings:
        name = "visits"


@pytest.fixture
def client_class():
    """What Beanie takes: PyMongo's own asynchronous client, with our writes."""
    return AsyncRetryClient


@pytest.fixture
async def stock_client(stock_options):
    """PyMongo's client, which sends every write once."""
    async with AsyncMongoClient(**stock_options) as client:
        yield client


def customer(number):
    """A customer, not saved yet."""
    return Customer(
        id=number, name=f"customer {number}", address=Address(street="Short St", city="Ghent")
    )


def order(number, of):
    """An order of a customer, not saved yet."""
    return Order(id=number, customer=of, items=[Item(sku="a"), Item(sku="b", quantity=2)])


async def connect(client, name):
    """Bind the models to a database."""
    await init_beanie(database=client[name], document_models=[Customer, Order, Visit])


async def seed(client, name):
    """Two customers, two orders of the first, and a visit."""
    await connect(client, name)
    first = await customer(1).insert()
    await customer(2).insert()
    await order(1, first).insert()
    await order(2, first).insert()
    await Visit(id=1, times=1).insert()


async def insert():
    return (await customer(3).insert()).model_dump()


async def insert_one():
    return (await Customer.insert_one(customer(3))).model_dump()


async def insert_many():
    result = await Customer.insert_many([customer(3), customer(4), customer(5)])
    return result.inserted_ids


async def insert_linked():
    placed = await order(3, customer(3)).insert(link_rule=WriteRules.WRITE)
    return placed.id


async def save_new():
    return (await customer(3).save()).model_dump()


async def save_known():
    known = await Order.get(1)
    known.state = "paid"
    await known.save()
    known.state = "sent"  # the revision is still the one that is stored
    await known.save()
    return known.state


async def save_changes():
    known = await Order.get(1)
    known.items.append(Item(sku="c"))
    return (await known.save_changes()).items


async def update():
    known = await Customer.get(1)
    await known.update(Inc({Customer.orders: 1}), Set({Customer.points: 5}))
    return known.model_dump()


async def inc():
    known = await Customer.get(1)
    return (await known.inc({Customer.orders: 1})).orders


async def update_one():
    result = await Customer.find_one(Customer.id == 1).update(Inc({Customer.orders: 1}))
    return result.matched_count, result.modified_count


async def find_and_update():
    return await Customer.find_one(Customer.id == 1).update(
        Inc({Customer.orders: 1}), response_type="NEW_DOCUMENT"
    )


async def upsert_new():
    visit = Visit.find_one(Visit.id == 2)
    return (await visit.upsert(Inc({Visit.times: 1}), on_insert=Visit(id=2, times=1))).model_dump()


async def upsert_known():
    visit = Visit.find_one(Visit.id == 1)
    result = await visit.upsert(Inc({Visit.times: 1}), on_insert=Visit(id=1, times=1))
    return result.matched_count, result.modified_count


async def replace():
    known = await Order.get(1)
    known.items = []
    await known.replace()


async def replace_many():
    customers = await Customer.find_all().sort(Customer.id).to_list()
    for one in customers:
        one.points = 7
    await Customer.replace_many(customers)


async def delete():
    return (await (await Order.get(1)).delete()).deleted_count


async def delete_one():
    return (await Order.find_one(Order.state == "new").delete()).deleted_count


async def bulk():
    async with BulkWriter() as writer:
        for number in (3, 4, 5):
            await Customer.insert_one(customer(number), bulk_writer=writer)
        for number in (1, 2, 3):
            await Customer.find_one(Customer.id == number).update(
                Inc({Customer.orders: 1}), bulk_writer=writer
            )
        changed = customer(4)
        changed.points = 1
        await changed.replace(bulk_writer=writer)
        await Customer.find_one(Customer.id == 5).delete(bulk_writer=writer)


async def bulk_unordered():
    async with Customer.bulk_writer(ordered=False) as writer:
        await Customer.insert_one(customer(3), bulk_writer=writer)
        await Customer.find_one(Customer.id == 1).update(
            Inc({Customer.orders: 1}), bulk_writer=writer
        )
        await Customer.find_one(Customer.id == 2).delete(bulk_writer=writer)


async def in_session():
    client = Customer.get_pymongo_collection().database.client
    async with client.start_session() as session:
        known = await Customer.get(1, session=session)
        await known.inc({Customer.orders: 1}, session=session)
        return (await Customer.get(1, session=session)).orders


async def in_transaction():
    client = Customer.get_pymongo_collection().database.client
    async with client.start_session() as session:
        async with await session.start_transaction():
            known = await Customer.get(1, session=session)
            await order(3, known).insert(session=session)
            await known.inc({Customer.orders: 1}, session=session)


WRITES = [
    ("insert", insert),
    ("insert", insert_one),
    ("insert", insert_many),
    ("insert", insert_linked),
    ("findAndModify", insert_linked),
    ("findAndModify", save_new),
    ("findAndModify", save_known),
    ("findAndModify", save_changes),
    ("findAndModify", update),
    ("findAndModify", inc),
    ("update", update_one),
    ("findAndModify", find_and_update),
    ("insert", upsert_new),
    ("update", upsert_known),
    ("update", replace),
    ("update", replace_many),
    ("delete", delete),
    ("delete", delete_one),
    ("insert", bulk),
    ("update", bulk),
    ("delete", bulk),
    ("insert", bulk_unordered),
    ("update", bulk_unordered),
    ("delete", bulk_unordered),
    ("findAndModify", in_session),
    ("commitTransaction", in_transaction),
]
EACH_WRITE = pytest.mark.parametrize(
    ("command", "write"), WRITES, ids=[f"{write.__name__}-{command}" for command, write in WRITES]
)


async def test_writes_go_through_our_collections(client, name):
    """The collections that Beanie keeps are ours."""
    await connect(client, name)
    assert isinstance(Customer.get_pymongo_collection(), AsyncRetryCollection)


async def test_motors_client(replica_set, name):
    """Beanie 2 fails with a client of Motor's, and says what the page on ODMs explains."""
    async with RetryClient(replica_set.uri) as client:
        with pytest.raises(TypeError, match="MotorDatabase object is not callable"):
            await connect(client, name)


class TestLostReplies:
    @pytest.mark.sample(3)
    @EACH_WRITE
    async def test_one_without_a_deadline(
        self, command, write, replica_set, client, name, contents
    ):
        """One lost reply: the result and the data are as without it."""
        await seed(client, f"{name}_twin")
        before = contents(f"{name}_twin")
        expected = await write()
        await seed(client, name)
        async with replica_set.faults.drop_reply(command, app_name=name) as lost:
            result = await write()
        assert (1, expected) == (lost.fired, result)
        assert before != contents(name) == contents(f"{name}_twin")

    @pytest.mark.sample(3)
    @EACH_WRITE
    async def test_two_with_a_deadline(self, command, write, replica_set, client, name, contents):
        """Two lost replies: under a deadline, the data are as without them."""
        await seed(client, f"{name}_twin")
        expected = await write()
        await seed(client, name)
        async with replica_set.faults.drop_reply(command, times=2, app_name=name) as lost:
            async with deadline(60):
                result = await write()
        assert (2, expected) == (lost.fired, result)
        assert contents(name) == contents(f"{name}_twin")


class TestErrors:
    async def test_duplicates(self, client, name, stored):
        """The driver's own error for a duplicate comes through, and tells its outcome."""
        await seed(client, name)
        with pytest.raises(DuplicateKeyError) as caught:
            await Customer(id=9, name="customer 1", address=customer(1).address).insert()
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED
        assert 2 == stored.customers.count_documents({})

    async def test_duplicates_in_a_bulk(self, replica_set, client, name, stored):
        """A bulk stops at a duplicate; a lost reply before it doubles nothing."""
        await seed(client, name)
        async with replica_set.faults.drop_reply("insert", app_name=name):
            with pytest.raises(BulkWriteError) as caught:
                await Customer.insert_many([customer(3), customer(1), customer(4)])
        assert 1 == caught.value.details["nInserted"]
        assert [1] == [error["index"] for error in caught.value.details["writeErrors"]]
        assert [1, 2, 3] == [one["_id"] for one in stored.customers.find().sort("_id")]

    async def test_update_of_many_is_sent_once(self, replica_set, client, name, stored):
        """`find(...).update` updates many: its lost reply is an error, deadline or not."""
        await seed(client, name)
        async with replica_set.faults.drop_reply("update", times=None, app_name=name) as lost:
            with pytest.raises(AutoReconnect):
                async with deadline(60):
                    await Customer.find(Customer.id > 0).update(Inc({Customer.orders: 1}))
        assert 1 == lost.seen
        assert [1, 1] == [one["orders"] for one in stored.customers.find()]

    async def test_a_stale_revision(self, client, name, stored):
        """A document that somebody else has changed is not overwritten."""
        await seed(client, name)
        mine, theirs = await Order.get(1), await Order.get(1)
        mine.state, theirs.state = "paid", "cancelled"
        await theirs.save()
        with pytest.raises(RevisionIdWasChanged) as caught:
            await mine.save()
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED
        assert "cancelled" == stored.orders.find_one({"_id": 1})["state"]


class TestStockClient:
    async def test_a_blind_retry_counts_twice(self, replica_set, stock_client, name, stored):
        """Without retryable writes PyMongo raises for an applied write; again doubles it."""
        await seed(stock_client, name)
        async with replica_set.faults.drop_reply("update", app_name=name):
            with pytest.raises(AutoReconnect):
                await update_one()
        await update_one()
        assert 2 == stored.customers.find_one({"_id": 1})["orders"]

    async def test_a_blind_retry_fails_for_its_own_revision(
        self, replica_set, stock_client, name, stored
    ):
        """There, a save whose reply was lost looks like somebody else's when it is repeated."""
        await seed(stock_client, name)
        known = await Order.get(1)
        known.state = "paid"
        async with replica_set.faults.drop_reply("findAndModify", app_name=name):
            with pytest.raises(AutoReconnect):
                await known.save()
        with pytest.raises(RevisionIdWasChanged):
            await known.save()
        assert "paid" == stored.orders.find_one({"_id": 1})["state"]


async def play(me, turn):
    """One round of a writer: every kind of write that is retried, on its own documents."""
    number = 1_000_000 * me + 10 * turn
    await Visit.find_one(Visit.id == me).upsert(
        Inc({Visit.times: 1}), on_insert=Visit(id=me, times=1)
    )
    mine = await Customer.get(me) or await customer(me).insert()
    placed = [order(number + extra, mine) for extra in range(3)]
    await Order.insert_many(placed)
    for one in placed:
        one.state = "paid"
        await one.save()
    await mine.inc({Customer.orders: 3})
    await Customer.find_one(Customer.id == me).update(Inc({Customer.points: 1}))
    async with BulkWriter() as writer:
        await Order.insert_one(order(number + 3, mine), bulk_writer=writer)
        await Order.find_one(Order.id == number + 1).delete(bulk_writer=writer)
        await Order.find_one(Order.id == number + 2).update(
            Set({Order.state: "sent"}), bulk_writer=writer
        )
    async with BulkWriter() as writer:
        for _ in range(5):
            await Customer.find_one(Customer.id == me).update(
                Inc({Customer.points: 1}), bulk_writer=writer
            )
    assert 1 == (await placed[0].delete()).deleted_count


@pytest.mark.slow
@pytest.mark.usefixtures("three_members")
async def test_failovers(client, name, through_failovers, stored):
    """Many tasks, a killed primary and a step-down: no error, and everything is there once."""
    await connect(client, name)
    turns = await through_failovers(play)
    expected = dict(enumerate(turns))
    customers = {one["_id"]: one for one in stored.customers.find()}
    assert expected == {one["_id"]: one["times"] for one in stored.visits.find()}
    assert expected == {me: one["orders"] / 3 for me, one in customers.items()}
    assert expected == {me: one["points"] / 6 for me, one in customers.items()}
    orders = {
        (1_000_000 * me + 10 * turn + extra, state)
        for me, number in expected.items()
        for turn in range(number)
        for extra, state in ((2, "sent"), (3, "new"))
    }
    assert sorted(orders) == sorted((one["_id"], one["state"]) for one in stored.orders.find())
