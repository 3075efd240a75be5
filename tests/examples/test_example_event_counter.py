"""The event counter, while its primary is killed."""

from collections import Counter

import pytest

from tests.examples.services import Count, serving, through_a_failover

SERVICE = "examples/event_counter/event_counter.py"
KINDS = ("login", "logout", "search")


@pytest.mark.usefixtures("three_members")
async def test_each_event_is_stored_once(uri, replica_set, stored_database, tmp_path):
    """What was answered with 201 is there once, and nothing that was refused is."""
    accepted: dict[str, str] = {}
    unsure: Counter[str] = Counter()
    count = Count()

    async with serving(tmp_path, "/events", SERVICE, uri, "--port") as web:

        async def post(client: int) -> None:
            kind = KINDS[client % len(KINDS)]
            status, answer = await web.post("/events", {"kind": kind})
            if status == 201:
                accepted[answer["id"]] = kind
                count.add()
            else:
                assert 504 == status, web.process.log
                unsure[kind] += answer["outcome"] != "not applied"

        await through_a_failover(replica_set, count, post)
        shown = await web.get("/events")

    stored = {str(event["_id"]): event["kind"] for event in stored_database.events.find()}
    assert accepted.items() <= stored.items()
    by_kind = Counter(stored.values())
    assert by_kind == shown
    assert by_kind - Counter(accepted.values()) <= unsure


WRONG = (
    None,
    {},
    [],
    "login",
    {"kind": {"a": 1}},
    {"kind": None},
    {"kind": ""},
    {"kind": "\ud800"},
    {"kind": "x" * 101},
)


async def test_what_is_no_event(uri, replica_set, stored_database, tmp_path):
    """What is no event is refused, and does not get in the way of the others."""
    async with serving(tmp_path, "/events", SERVICE, uri, "--port") as web:
        for document in WRONG:
            status, answer = await web.post("/events", document)
            assert (400, "bad_event") == (status, answer["reason"])
        async with web.session.post("/events", data=b"{") as response:
            assert 400 == response.status
        assert 201 == (await web.post("/events", {"kind": "login"}))[0]
        assert {"login": 1} == await web.get("/events")
    assert 1 == stored_database.events.count_documents({})
