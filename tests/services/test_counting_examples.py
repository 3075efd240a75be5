"""The services that the README shows."""

import importlib
import uuid

import pytest

from tests.services.conftest import aiohttp_client, asgi_client

CLIENTS = {"fastapi_app": asgi_client, "aiohttp_app": aiohttp_client}


@pytest.mark.parametrize("name", CLIENTS)
async def test_counts(name, replica_set, plain, monkeypatch):
    """An event is counted once, also when the reply is lost."""
    monkeypatch.setenv("MONGODB_URI", f"{replica_set.uri}&w=majority&journal=true")
    module = importlib.reload(importlib.import_module(f"examples.{name}"))
    day = uuid.uuid4().hex
    async with CLIENTS[name](module.app) as service:
        with replica_set.faults.drop_reply("update"):
            assert (await service.post(f"/events/{day}")).status_code == 204
        assert (await service.post(f"/events/{day}")).status_code == 204
    assert plain.metrics.events.find_one({"_id": day})["counter"] == 2
