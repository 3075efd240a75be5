"""The services that the README and the pages show."""

import importlib
import uuid

import pytest

from tests.services.conftest import aiohttp_client, asgi_client

CLIENTS = {"fastapi_app": asgi_client, "aiohttp_app": aiohttp_client}


@pytest.fixture
def example(replica_set, monkeypatch):
    """What imports an example anew, with the set as its deployment."""
    monkeypatch.setenv("MONGODB_URI", f"{replica_set.uri}&w=majority&journal=true")

    def example(name):
        return importlib.reload(importlib.import_module(f"examples.{name}"))

    yield example
    replica_set.faults.clear()


@pytest.mark.parametrize("name", CLIENTS)
async def test_counts(name, example, replica_set, plain):
    """An event is counted once, also when the reply is lost."""
    module = example(name)
    day = uuid.uuid4().hex
    async with CLIENTS[name](module.app) as service:
        with replica_set.faults.drop_reply("update"):
            assert (await service.post(f"/events/{day}")).status_code == 204
        assert (await service.post(f"/events/{day}")).status_code == 204
    assert plain.metrics.events.find_one({"_id": day})["counter"] == 2


class TestUnknownOutcome:
    """The service that finds out what became of a write in doubt."""

    async def test_finds_out(self, example, replica_set, plain, monkeypatch):
        """The answer to the write hangs until its time is over; the one to the question comes."""
        module, event = example("unknown_outcome"), uuid.uuid4().hex
        monkeypatch.setattr(module, "FOR_THE_WRITE", 0.5)
        async with asgi_client(module.app) as service:
            with replica_set.faults.hang("findAndModify", applied=True) as lost:
                answer = await service.post(f"/events/{event}/tickets")
        assert lost.fired
        assert (answer.status_code, answer.json()) == (201, {"ticket": 1})
        assert plain.box_office.tickets.find_one({"_id": event})["drawn"] == 1

    @pytest.mark.parametrize(
        ("arm", "status", "outcome"),
        [
            (lambda faults: faults.hang("findAndModify", applied=True, times=None), 504, "unknown"),
            (
                lambda faults: faults.error(
                    10107, "findAndModify", labels=["NoWritesPerformed"], times=None
                ),
                503,
                "not applied",
            ),
        ],
        ids=["unknown", "not-applied"],
    )
    async def test_says_what_is_known(self, example, replica_set, arm, status, outcome):
        """The caller is told what is known of the write: no more, and no less."""
        module, limits = example("unknown_outcome"), {"X-Request-Timeout": "1"}
        async with asgi_client(module.app) as service:
            with arm(replica_set.faults):
                answer = await service.post(f"/events/{uuid.uuid4().hex}/tickets", headers=limits)
        assert (answer.status_code, answer.json()["outcome"]) == (status, outcome)
