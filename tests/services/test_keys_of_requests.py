"""Idempotency-Key: the same in both frameworks, on a real set, through faults and failovers."""

import asyncio
import uuid

import pytest

from tests.services.apps import DATABASE

ANSWERS = f"{DATABASE}.aioretry.answers"


@pytest.fixture
def key() -> dict[str, str]:
    """The header of a key of the test's own."""
    return {"Idempotency-Key": f'"{uuid.uuid4()}"'}


class Gate:
    """Work that waits in the middle, until the test lets it go on."""

    def __init__(self, work):
        self.work = work
        self.runs = 0
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, collection, session):
        self.runs += 1
        answer = await self.work(collection, session)
        self.entered.set()
        await self.opened.wait()
        return answer


def facts(answers):
    """What is the same in all answers to one key: status and body."""
    return {(answer.status_code, answer.content) for answer in answers}


async def ten(services, key, path="/once"):
    """Ten requests at once, at all services in turn."""
    calls = [services[n % len(services)].post(path, headers=key) for n in range(10)]
    return await asyncio.gather(*calls)


class TestOnce:
    async def test_ten_at_once(self, start, key, stored):
        """Two processes get a key ten times at once: the work is done once, all answers equal."""
        services = [await start(), await start()]
        answers = await ten(services, key)
        ((status, body),) = facts(answers)
        assert status == 201
        assert [document["number"] for document in stored.find()] == [answers[0].json()["number"]]
        assert len([a for a in answers if "Idempotent-Replayed" not in a.headers]) == 1
        again = await services[0].post("/once", headers=key)
        assert (again.status_code, again.content) == (status, body)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.headers["Content-Type"] == answers[0].headers["Content-Type"]

    @pytest.mark.parametrize(
        ("command", "only"),
        [("insert", {}), ("insert", {"namespace": ANSWERS}), ("commitTransaction", {})],
        ids=["work", "record", "commit"],
    )
    async def test_with_a_lost_reply(self, start, key, stored, faults, command, only):
        """The same with the reply lost to a command of the transaction."""
        services = [await start(), await start()]
        await services[0].post("/once", headers={"Idempotency-Key": uuid.uuid4().hex})
        faults.drop_reply(command, **only)
        ((status, _),) = facts(await ten(services, key))
        assert status == 201
        assert stored.count_documents({}) == 2

    @pytest.mark.slow
    @pytest.mark.usefixtures("three_members")
    async def test_with_a_killed_primary(self, start, key, stored, scene, replica_set):
        """The same with the primary killed while the work is being done."""
        services = [await start(), await start()]
        scene.work = gate = Gate(scene.work)
        calls = asyncio.create_task(ten(services, key))
        await gate.entered.wait()
        await replica_set.kill(await replica_set.primary())
        gate.opened.set()
        ((status, _),) = facts(await calls)
        assert status == 201
        assert gate.runs > 1
        assert stored.count_documents({}) == 1

    async def test_another_request(self, service, key):
        """A key stands for one method, path, query and body."""
        assert (await service.post("/once", headers=key, content=b"a")).status_code == 201
        for path, body in ("/once", b"b"), ("/once?c", b"a"), ("/optional", b"a"):
            answer = await service.post(path, headers=key, content=body)
            assert (answer.status_code, answer.json()["reason"]) == (422, "key_reused")

    async def test_of_two_callers(self, service, key, stored):
        """The keys of two callers have nothing to do with each other."""
        answers = [
            await service.post("/once", headers={**key, "X-Caller": caller})
            for caller in ("one", "two", "one")
        ]
        assert [answer.status_code for answer in answers] == [201] * 3
        assert answers[0].content == answers[2].content != answers[1].content
        assert stored.count_documents({}) == 2

    async def test_string_and_token(self, service, stored):
        """A key in quotes is the same as without."""
        text = uuid.uuid4().hex
        answers = [
            await service.post("/once", headers={"Idempotency-Key": key})
            for key in (text, f'"{text}"')
        ]
        assert len(facts(answers)) == 1

    async def test_missing_or_wrong(self, service, stored):
        """Where a key is required, 400 says so; nothing is done."""
        answer = await service.post("/once")
        assert (answer.status_code, answer.json()["reason"]) == (400, "key_missing")
        answer = await service.post("/once", headers={"Idempotency-Key": "two words"})
        assert (answer.status_code, answer.json()["reason"]) == (400, "bad_header")
        assert stored.count_documents({}) == 0

    async def test_optional(self, service, key, stored):
        """Where it is not required, each request without one is for itself."""
        assert len(facts([await service.post("/optional") for _ in range(2)])) == 2
        assert len(facts([await service.post("/optional", headers=key) for _ in range(2)])) == 1
        assert stored.count_documents({}) == 3


class TestStillRunning:
    async def test_ends_too_late(self, start, key, scene, stored):
        """A request whose time is over before another one has ended gets that one's answer later.

        In the same process it says that its key is in use; another one has begun the work itself.
        """
        services = [await start(), await start()]
        scene.work = gate = Gate(scene.work)
        first = asyncio.create_task(services[0].post("/once", headers=key))
        await gate.entered.wait()
        ends = (409, "key_in_use"), (504, "deadline_exceeded")
        for service, end in zip(services, ends, strict=True):
            answer = await service.post("/once", headers={**key, "X-Request-Timeout": "1"})
            assert (answer.status_code, answer.json()["reason"]) == end
        gate.opened.set()
        assert len(facts([await first, await services[1].post("/once", headers=key)])) == 1
        assert (gate.runs, stored.count_documents({})) == (3, 1)

    async def test_hung_work(self, start, key, scene, stored):
        """Work that does not end is given up with the request, and its key can be used again."""
        service = await start()
        good, scene.work = scene.work, Gate(scene.work)
        answer = await service.post("/once", headers={**key, "X-Request-Timeout": "2"})
        assert (answer.status_code, answer.json()["reason"]) == (504, "deadline_exceeded")
        scene.work = good
        assert (await service.post("/once", headers=key)).status_code == 201
        assert stored.count_documents({}) == 1

    async def test_unknown_commit(self, start, key, faults, stored):
        """A commit that is not answered in time leaves it open; the key tells later."""
        service = await start()
        await service.post("/once", headers={"Idempotency-Key": uuid.uuid4().hex})
        with faults.hang("commitTransaction", applied=True, times=None):
            answer = await service.post("/once", headers={**key, "X-Request-Timeout": "2"})
        members = answer.json()
        assert (answer.status_code, members["reason"]) == (504, "deadline_exceeded")
        assert members["outcome"] == "unknown"
        answer = await service.post("/once", headers=key)
        assert answer.status_code == 201
        assert stored.count_documents({}) == 2


class TestFailures:
    async def test_work_that_raises(self, service, key, scene, stored):
        """Nothing is applied or stored, and the key is as good as new."""
        good = scene.work

        async def bad(collection, session):
            await good(collection, session)
            raise ZeroDivisionError

        scene.work = bad
        assert (await service.post("/once", headers=key)).status_code == 500
        assert stored.count_documents({}) == 0
        scene.work = good
        answers = [await service.post("/once", headers=key, content=b"other") for _ in range(2)]
        assert answers[0].status_code == 201
        assert len(facts(answers)) == 1
        assert stored.count_documents({}) == 1

    async def test_answer_that_cannot_be_stored(self, service, key, scene, stored):
        """What can't be an answer is refused before anything is applied."""
        good = scene.work

        async def strange(collection, session):
            await good(collection, session)
            return object()

        scene.work = strange
        assert (await service.post("/once", headers=key)).status_code == 500
        assert stored.count_documents({}) == 0


class TestOperation:
    async def test_ten_at_once(self, start, key, stored):
        """A single write needs no transaction: the servers know its key themselves."""
        services = [await start(), await start()]
        assert facts(await ten(services, key, "/counted")) == {(200, b"1")}
        other = {"Idempotency-Key": uuid.uuid4().hex}
        assert facts(await ten(services, other, "/counted")) == {(200, b"2")}
        assert stored.find_one()["n"] == 2

    async def test_with_a_lost_reply(self, start, key, faults, stored):
        """The same with a reply lost."""
        services = [await start(), await start()]
        faults.drop_reply("findAndModify", namespace=f"{stored.database.name}.{stored.name}")
        assert facts(await ten(services, key, "/counted")) == {(200, b"1")}
