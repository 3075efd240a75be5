"""What is asked for by name again and again is made once, by clients and their databases."""

import gc
import weakref

import pytest
from bson.codec_options import CodecOptions

from aioretry import RetryClient
from aioretry._writes import kept
from aioretry.pymongo import AsyncRetryClient

NOWHERE = "mongodb://127.0.0.1:1/?connect=false"


@pytest.fixture(params=[RetryClient, AsyncRetryClient])
async def client(request):
    made = request.param(NOWHERE, connect=False)
    yield made
    closed = made.close()
    if closed is not None:
        await closed


async def test_made_once(client):
    assert client.shop is client["shop"]
    assert client.shop.stock is client.shop["stock"]
    assert client.shop.stock is not client.shop.orders
    assert client.shop is not client.store
    assert "stock" == client.shop.stock.name


async def test_names_of_attributes(client):
    """They are collections where they are looked up as such."""
    assert "shop" == client.shop.name
    assert "shop.name" == client.shop["name"].full_name


async def test_options_of_its_own(client):
    """Whoever gives some gets another one, which keeps nothing."""
    own = client.get_database("shop", codec_options=CodecOptions(tz_aware=True))
    assert own is not client.shop
    assert own.stock.codec_options.tz_aware
    assert not client.shop.stock.codec_options.tz_aware
    assert own.stock is not own.stock


async def test_those_that_are_kept(client, monkeypatch):
    """No more than some, or each tenant's would stay for ever."""
    monkeypatch.setattr(kept, "_MOST", 2)
    assert client.a is client.a
    assert client.b is client.b
    assert client.c is not client.c
    assert client.c.x is not client.c.x
    assert client.a.x is client.a.x


async def test_garbage(client):
    """What is not kept is gone when nobody has it."""
    own = client.get_database("shop")
    gone = weakref.ref(own), weakref.ref(own.stock)
    gc.disable()
    try:
        del own
        assert [None, None] == [one() for one in gone]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", [5, [], None, b"x"])
async def test_no_name(client, name):
    for owner in (client, client.shop):
        with pytest.raises(TypeError, match="must be an instance of"):
            owner[name]
