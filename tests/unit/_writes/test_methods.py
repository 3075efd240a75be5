"""Which writes of a collection are ours, and which the driver's own; a driver that only notes."""

import asyncio
from types import SimpleNamespace

import pytest
from bson.codec_options import CodecOptions
from pymongo.write_concern import WriteConcern

from aioretry import ClientDraining
from aioretry._writes.methods import WriteMethods
from aioretry._writes.under_way import UnderWay

WRITES = {
    "insert_one": ({},),
    "insert_many": ([{}],),
    "bulk_write": ([],),
    "update_one": ({}, {"$set": {"n": 1}}),
    "update_many": ({}, {"$set": {"n": 1}}),
    "replace_one": ({}, {}),
    "delete_one": ({},),
    "delete_many": ({},),
    "find_one_and_delete": ({},),
    "find_one_and_replace": ({}, {}),
    "find_one_and_update": ({}, {"$set": {"n": 1}}),
}


class Drivers:
    """A driver's own collection: notes what it is asked for."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(collection, *args, **options):
            self.calls.append((name, args, options))
            return f"the driver's {name}"

        return call


class Path:
    """What the writes of a client share, as far as it is asked; none is begun."""

    encrypts = False
    makes_transactions = False

    def __init__(self):
        self.under_way = UnderWay()

    def coordinator(self):
        raise AssertionError("it was to be the driver's")


class Collection(WriteMethods):
    """A collection of some driver."""

    name, codec_options = "c", CodecOptions()

    def __init__(self, write_concern=WriteConcern(), bound=None):  # noqa: B008 - it is immutable
        self._driver_methods = Drivers()
        self._write_path = Path()
        self.database = SimpleNamespace(name="db")
        self.write_concern = write_concern
        self._bound = bound

    def _session_of_call(self, session):
        return session or self._bound


@pytest.mark.parametrize("name", WRITES)
class TestTheDriversOwn:
    def test_of_a_client_that_is_drained(self, name):
        """It is refused, as ours is."""
        collection = Collection(WriteConcern(w=0))
        collection._write_path.under_way.is_draining = True
        with pytest.raises(ClientDraining):
            getattr(collection, name)(*WRITES[name])
        assert not collection._driver_methods.calls

    def test_unacknowledged(self, name):
        """With w: 0, the driver gets the arguments as they are."""
        collection = Collection(WriteConcern(w=0))
        result = getattr(collection, name)(*WRITES[name], comment="x")
        assert f"the driver's {name}" == result
        ((called, args, options),) = collection._driver_methods.calls
        assert (name, WRITES[name], "x") == (called, args, options["comment"])

    def test_in_a_transaction(self, name):
        """Behind routers, all of a transaction has to go to the same one."""
        session = SimpleNamespace(in_transaction=True)
        collection = Collection()
        getattr(collection, name)(*WRITES[name], session=session)
        ((_, _, options),) = collection._driver_methods.calls
        assert session is options["session"]

    def test_in_a_transaction_of_the_context(self, name):
        """The session of the context counts, and the driver is told of it."""
        session = SimpleNamespace(in_transaction=True)
        collection = Collection(bound=session)
        getattr(collection, name)(*WRITES[name])
        ((_, _, options),) = collection._driver_methods.calls
        assert session is options["session"]

    def test_in_a_transaction_of_a_replica_set(self, name):
        """Its single writes are ours."""
        session = SimpleNamespace(in_transaction=True)
        collection = Collection()
        collection._write_path.makes_transactions = True
        if name in {"insert_many", "bulk_write"}:
            getattr(collection, name)(*WRITES[name], session=session)
        else:
            with pytest.raises(AssertionError, match="the driver's"):
                getattr(collection, name)(*WRITES[name], session=session)

    def test_otherwise_not(self, name):
        """A plain write, with or without a session, is ours."""
        for session in (None, SimpleNamespace(in_transaction=False)):
            with pytest.raises(AssertionError, match="the driver's"):
                getattr(Collection(), name)(*WRITES[name], session=session)


@pytest.mark.parametrize("own", [{"w": 0}, {"w": 0, "j": False}])
def test_a_write_concern_of_the_call(own):
    """That of a `find_one_and_...` counts before the collection's."""
    collection = Collection()
    collection.find_one_and_delete({}, writeConcern=own)
    assert 1 == len(collection._driver_methods.calls)
    with pytest.raises(AssertionError, match="the driver's"):
        Collection(WriteConcern(w=0)).find_one_and_delete({}, writeConcern={"w": 1})


async def test_inserts_of_a_session_travel_alone():
    """Whether the session is the call's or the context's."""
    collection = Collection(bound=SimpleNamespace(in_transaction=True))
    collection._coalescing = object()
    assert "the driver's insert_one" == collection.insert_one({})
    assert not isinstance(collection.insert_one({}), asyncio.Future)
