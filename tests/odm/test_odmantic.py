"""ODMantic on a `RetryClient`: what its engine writes is there exactly once."""

import asyncio
from datetime import datetime

import pytest
from odmantic import AIOEngine, EmbeddedModel, Field, Index, Model, Reference
from odmantic.config import ODMConfigDict
from odmantic.exceptions import DuplicateKeyError
from pymongo.errors import AutoReconnect, PyMongoError

from aioretry import Outcome, RetryMotorCollection, deadline, outcome_of


class Address(EmbeddedModel):
    street: str
    city: str


class Item(EmbeddedModel):
    sku: str
    quantity: int = 1


class Customer(Model):
    id: int = Field(primary_field=True)
    name: str = Field(unique=True)
    address: Address
    orders: int = 0
    points: int = 0

    model_config = ODMConfigDict(collection="customers")


class Order(Model):
    id: int = Field(primary_field=True)
    customer: Customer = Reference()
    items: list[Item]
    placed: datetime = datetime(2026, 11, 20)  # noqa: DTZ001 - ODMantic takes naive ones
    state: str = "new"

    model_config = ODMConfigDict(
        collection="orders",
        indexes=lambda: [Index(Order.state, Order.placed, name="by_state")],
    )


def customer(number):
    """A customer, not saved yet."""
    return Customer(
        id=number, name=f"customer {number}", address=Address(street="Short St", city="Ghent")
    )


def order(number, of):
    """An order of a customer, not saved yet."""
    return Order(id=number, customer=of, items=[Item(sku="a"), Item(sku="b", quantity=2)])


async def seed(engine):
    """Two customers, and an order of the first."""
    await engine.configure_database([Customer, Order])
    first, second = customer(1), customer(2)
    await engine.save_all([first, second])
    await engine.save(order(1, first))


async def save_new(engine):
    return await engine.save(customer(3))


async def save_known(engine):
    known = await engine.find_one(Order, Order.id == 1)
    known.state = "paid"
    known.customer.orders += 1
    return await engine.save(known)


async def save_all(engine):
    customers = await engine.find(Customer, sort=Customer.id)
    for one in customers:
        one.orders += 1
    return await engine.save_all([*customers, customer(3)])


async def remove_one(engine):
    return await engine.remove(Order, Order.id == 1, just_one=True)


async def increment(engine):
    result = await engine.get_collection(Customer).update_one(
        {+Customer.id: 1}, {"$inc": {+Customer.orders: 1}}
    )
    return result.matched_count, result.modified_count


async def save_in_session(engine):
    async with engine.session() as session:
        known = await session.find_one(Customer, Customer.id == 1)
        known.orders += 1
        await session.save(known)
        return await session.find_one(Customer, Customer.id == 1)


async def remove_in_session(engine):
    async with engine.session() as session:
        return await session.remove(Order, Order.id == 1, just_one=True)


async def save_in_transaction(engine):
    async with engine.session() as session, session.transaction() as transaction:
        known = await transaction.find_one(Customer, Customer.id == 1)
        known.orders += 1
        await transaction.save(order(2, known))
        return known


async def commit(engine):
    transaction = engine.transaction()
    await transaction.start()
    await transaction.save(customer(3))
    await transaction.commit()


WRITES = {
    "save, new": ("update", save_new),
    "save, known": ("update", save_known),
    "save_all": ("update", save_all),
    "remove, just one": ("delete", remove_one),
    "raw $inc": ("update", increment),
    "session.save": ("update", save_in_session),
    "session.remove": ("delete", remove_in_session),
    "transaction": ("commitTransaction", save_in_transaction),
    "transaction.commit": ("commitTransaction", commit),
}


@pytest.fixture
def engine(client, name):
    """An engine on our client."""
    return AIOEngine(client=client, database=name)


def test_writes_go_through_our_collections(engine):
    """The engine's collections are ours."""
    assert isinstance(engine.get_collection(Order), RetryMotorCollection)


def sets_one_point(command):
    """Whether an update sets the points to one."""
    return command["updates"][0]["u"]["$set"].get("points") == 1


class TestLostReplies:
    @pytest.mark.parametrize("write", WRITES)
    async def test_one_without_a_deadline(self, write, replica_set, client, engine, name, contents):
        """One lost reply: the result and the data are as without it."""
        command, call = WRITES[write]
        twin = AIOEngine(client=client, database=f"{name}_twin")
        await seed(twin)
        before = contents(f"{name}_twin")
        expected = await call(twin)
        await seed(engine)
        async with replica_set.faults.drop_reply(command, app_name=name) as lost:
            result = await call(engine)
        assert (1, expected) == (lost.fired, result)
        assert before != contents(name) == contents(f"{name}_twin")

    @pytest.mark.parametrize("write", WRITES)
    async def test_two_with_a_deadline(self, write, replica_set, client, engine, name, contents):
        """Two lost replies: under a deadline, the data are as without them."""
        command, call = WRITES[write]
        twin = AIOEngine(client=client, database=f"{name}_twin")
        await seed(twin)
        expected = await call(twin)
        await seed(engine)
        async with replica_set.faults.drop_reply(command, times=2, app_name=name) as lost:
            async with deadline(60):
                result = await call(engine)
        assert (2, expected) == (lost.fired, result)
        assert contents(name) == contents(f"{name}_twin")

    async def test_each_save_of_a_save_all(self, replica_set, engine, name, stored):
        """The reply to every single document of a save_all is lost once."""
        customers = [customer(number) for number in range(5)]
        # A command that is sent for the first time has a number that was not seen before.
        seen = set()

        def is_new(command):
            key = bytes(command["lsid"]["id"]), command["txnNumber"]
            is_first = key not in seen
            seen.add(key)
            return is_first

        async with replica_set.faults.drop_reply(
            "update", times=None, app_name=name, where=is_new
        ) as lost:
            await engine.save_all(customers)
        assert 5 == lost.fired
        assert [one.name for one in customers] == [
            one["name"] for one in stored.customers.find().sort("_id")
        ]

    async def test_a_retry_does_not_undo_what_others_wrote(self, replica_set, engine, name, stored):
        """Between a save and its retry another task saves: its value stays."""
        await engine.save(customer(1))
        mine = await engine.find_one(Customer, Customer.id == 1)
        theirs = await engine.find_one(Customer, Customer.id == 1)
        mine.points, theirs.points = 1, 2
        faults, is_mine = replica_set.faults, {"app_name": name, "where": sets_one_point}
        async with (
            faults.watch("update", **is_mine) as sent,
            faults.hang("update", applied=True, **is_mine) as held,
            faults.drop_reply("update", **is_mine) as lost,
        ):
            save = asyncio.ensure_future(engine.save(mine))
            await held.wait_until_fired()
            await engine.save(theirs)
            assert (False, 1) == (save.done(), sent.seen)
            held.disarm()
            await save
        assert (1, 2) == (lost.fired, sent.seen)
        assert 2 == stored.customers.find_one()["points"]


class TestTransactions:
    async def test_a_lost_reply_inside_is_for_the_caller(self, replica_set, engine, name, stored):
        """In a transaction nothing is retried; it is the whole that can be done again."""
        await seed(engine)
        async with replica_set.faults.drop_reply("update", times=None, app_name=name) as lost:
            with pytest.raises(AutoReconnect) as caught:
                await save_in_transaction(engine)
        assert 1 == lost.fired
        assert caught.value.has_error_label("TransientTransactionError")
        assert 1 == stored.orders.count_documents({})
        await save_in_transaction(engine)
        assert 2 == stored.orders.count_documents({})
        assert 1 == stored.customers.find_one({"_id": 1})["orders"]


class TestErrors:
    async def test_duplicates(self, engine, stored):
        """ODMantic's own error for a duplicate tells that nothing was written."""
        await seed(engine)
        with pytest.raises(DuplicateKeyError) as caught:
            await engine.save(Customer(id=9, name="customer 1", address=customer(1).address))
        assert outcome_of(caught.value) is Outcome.NOT_APPLIED
        assert 2 == stored.customers.count_documents({})

    async def test_delete_is_sent_once(self, replica_set, engine, name, stored):
        """`engine.delete` deletes many, so that its lost reply is an error, deadline or not."""
        await seed(engine)
        known = await engine.find_one(Order, Order.id == 1)
        async with replica_set.faults.drop_reply("delete", times=None, app_name=name) as lost:
            with pytest.raises(AutoReconnect):
                async with deadline(60):
                    await engine.delete(known)
        assert 1 == lost.fired
        assert 0 == stored.orders.count_documents({})


async def test_stock_motor_and_a_blind_retry_count_twice(
    replica_set, stock_client, engine, name, stored
):
    """Motor without retryable writes raises for a write that was applied; again is once more."""
    await seed(engine)
    stock = AIOEngine(client=stock_client, database=name)
    async with replica_set.faults.drop_reply("update", app_name=name):
        with pytest.raises(AutoReconnect):
            await increment(stock)
    await increment(stock)
    assert 2 == stored.customers.find_one({"_id": 1})["orders"]


async def transact(engine, work):
    """Do some work in a transaction, again if the server says that it left no trace."""
    while True:
        try:
            async with engine.session() as session, session.transaction() as transaction:
                await work(transaction)
        except PyMongoError as exc:
            if not exc.has_error_label("TransientTransactionError"):
                raise
        else:
            return


@pytest.mark.slow
@pytest.mark.usefixtures("three_members")
async def test_failovers(engine, through_failovers, stored):
    """Many tasks, a killed primary and a step-down: no error, and everything is there once."""
    await engine.configure_database([Customer, Order])

    async def play(me, turn):
        number = 1_000_000 * me + 10 * turn
        mine = await engine.find_one(Customer, Customer.id == me) or customer(me)
        mine.orders += 2
        placed = [order(number, mine), order(number + 1, mine)]
        await engine.save_all(placed)
        await engine.get_collection(Customer).update_one(
            {+Customer.id: me}, {"$inc": {+Customer.points: 1}}
        )
        async with engine.session() as session:
            placed[0].state = "paid"
            await session.save(placed[0])
        assert 1 == await engine.remove(Order, Order.id == number + 1, just_one=True)

        async def order_more(transaction):
            buyer = await transaction.find_one(Customer, Customer.id == me)
            buyer.orders += 1
            await transaction.save(order(number + 2, buyer))

        await transact(engine, order_more)

    turns = await through_failovers(play)
    customers = {one["_id"]: one for one in stored.customers.find()}
    assert dict(enumerate(turns)) == {me: one["points"] for me, one in customers.items()}
    assert [3 * turn for turn in turns] == [customers[me]["orders"] for me in sorted(customers)]
    expected = {
        (1_000_000 * me + 10 * turn + extra, me, state)
        for me, number in enumerate(turns)
        for turn in range(number)
        for extra, state in ((0, "paid"), (2, "new"))
    }
    found = [(one["_id"], one["customer"], one["state"]) for one in stored.orders.find()]
    assert sorted(expected) == sorted(found)
