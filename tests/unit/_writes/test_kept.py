"""What is asked for by name again and again is made once, and copied for each caller."""

import enum
import gc
import weakref

import pytest
from bson.codec_options import CodecOptions

from aioretry import RetryClient
from aioretry._writes import kept
from aioretry.pymongo import AsyncRetryClient

NOWHERE = "mongodb://127.0.0.1:1/?connect=false"


class Name(enum.StrEnum):
    """Names of the user's."""

    SHOP = "shop"


class Old(str, enum.Enum):  # noqa: UP042 - says another thing of itself than StrEnum
    """The same, as it was before Python 3.11."""

    SHOP = "shop"


class Unhashable(str):  # noqa: PLW1641 - on purpose
    """A text that can't be looked up."""

    __slots__ = ()

    def __eq__(self, other):
        return NotImplemented


@pytest.fixture(params=[RetryClient, AsyncRetryClient])
async def client(request):
    made = request.param(NOWHERE)
    yield made
    closed = made.close()
    if closed is not None:
        await closed


def is_made_once(ask):
    """Tell whether what is asked for twice is the same but for the object that a caller has."""
    first, second = ask(), ask()
    assert first == second
    assert first is not second
    return first._target() is second._target()


async def test_made_once(client):
    assert is_made_once(lambda: client.shop.stock)
    assert is_made_once(lambda: client["shop"]["stock"])
    assert client.shop.stock != client.shop.orders
    assert "shop.stock" == client.shop.stock.full_name
    assert type(client.shop.stock) is type(client.get_database("shop").get_collection("stock"))


async def test_whose_it_is(client):
    shop = client.shop
    assert shop.stock.database is shop
    assert shop.client is client


async def test_names_of_attributes(client):
    """They are collections where they are looked up as such."""
    assert "shop" == client.shop.name
    assert "shop.name" == client.shop["name"].full_name


async def test_options_of_its_own(client):
    """Whoever gives some gets another one, which keeps nothing."""
    own = client.get_database("shop", codec_options=CodecOptions(tz_aware=True))
    assert own.stock.codec_options.tz_aware
    assert not client.shop.stock.codec_options.tz_aware
    assert not is_made_once(lambda: own.stock)


async def test_those_that_are_kept(client, monkeypatch):
    """No more than some, or each tenant's would stay for ever."""
    monkeypatch.setattr(kept, "_MOST", 2)
    assert is_made_once(lambda: client.a.x)
    assert is_made_once(lambda: client.b.x)
    assert not is_made_once(lambda: client.c.x)
    assert is_made_once(lambda: client.a.y)
    assert not is_made_once(lambda: client.a.z)


async def test_what_a_caller_does_to_his(client):
    """It is nothing to others."""
    mine = client.shop
    mine.orders, mine.stock.find_one = [], None
    assert "shop.orders" == client.shop.orders.full_name
    assert client.shop.stock.find_one is not None


@pytest.mark.parametrize("name", [Name.SHOP, Old.SHOP, Unhashable("shop")])
async def test_texts_of_a_kind_of_their_own(client, name):
    """They name what the driver says, for whoever has them, and for nobody else."""
    theirs = client[name].stock.full_name, client.shop[name].full_name
    assert ("shop.stock", "shop.shop") == (
        client.shop.stock.full_name,
        client.shop["shop"].full_name,
    )
    plain = client.get_database(name).stock.full_name, client.shop.get_collection(name).full_name
    assert theirs == plain


async def test_garbage(client):
    """What a call was given is gone when nobody has it."""
    own = client.get_database("shop")
    shop = client.shop  # the first to ask for it, and for its collection
    stock = shop.stock
    gone = [weakref.ref(one) for one in (own, own.stock, shop, stock)]
    gc.disable()
    try:
        del own, shop, stock
        assert [None] * 4 == [one() for one in gone]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", [5, [], None, b"x"])
async def test_no_name(client, name):
    for owner in (client, client.shop):
        with pytest.raises(TypeError, match="must be an instance of"):
            owner[name]
