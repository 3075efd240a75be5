"""The service on Motor and the same on aioretry, under the same faults."""

import difflib
from collections import Counter

import pytest

from tests.examples.services import ROOT, Count, serving, through_a_failover

FOLDER = ROOT / "examples" / "migration"
CALM, DOUBTFUL = "calm", "doubtful"
POINTS = {"points": 1}


@pytest.fixture
def start(uri, tmp_path):
    """Start one of the two services."""

    def start(name: str):
        return serving(tmp_path, f"/customers/{CALM}/points", str(FOLDER / name), uri, "--port")

    return start


async def points_after_lost_replies(web, replica_set, stored_database) -> int:
    """Give a customer a point, and have the answers to the first two commands get lost."""
    path = f"/customers/{DOUBTFUL}/points"
    assert (200, POINTS) == await web.post(path, POINTS)
    namespace = f"{stored_database.name}.customers"
    with replica_set.faults.drop_reply("findAndModify", times=2, namespace=namespace):
        assert 200 == (await web.post(path, POINTS))[0]
    return (await web.get(path))["points"]


@pytest.mark.slow
@pytest.mark.usefixtures("three_members")
async def test_before_doubles(start, replica_set, stored_database):
    """Two lost replies and one blind retry make two points of one; a failover can add to them."""
    accepted = Count()

    async with start("before.py") as web:
        assert 3 == await points_after_lost_replies(web, replica_set, stored_database)

        async def give(client: int) -> None:
            status, _answer = await web.post(f"/customers/{DOUBTFUL}/points", POINTS)
            if status == 200:
                accepted.add()

        await through_a_failover(replica_set, accepted, give)
    assert stored_points(stored_database)[DOUBTFUL] >= accepted.number + 3


@pytest.mark.usefixtures("three_members")
async def test_after_counts_once(start, replica_set, stored_database):
    """Neither lost replies nor a failover add a point or lose one, and nobody gets an error."""
    accepted: Counter[str] = Counter()
    count = Count()

    async with start("after.py") as web:
        assert 2 == await points_after_lost_replies(web, replica_set, stored_database)

        async def give(client: int) -> None:
            status, _answer = await web.post(f"/customers/{client}/points", POINTS)
            assert 200 == status, web.process.log
            accepted[str(client)] += 1
            count.add()

        await through_a_failover(replica_set, count, give)
    assert stored_points(stored_database) == {DOUBTFUL: 2, **accepted}


def test_the_difference_is_small():
    """The retries go, and ten lines are others, two of them in the docstring."""
    before, after = ((FOLDER / name).read_text().splitlines() for name in ("before.py", "after.py"))
    changes = Counter(line[0] for line in difflib.ndiff(before, after))
    assert changes["+"] <= 10
    assert len(after) < len(before)


def stored_points(database) -> dict[str, int]:
    """The points of each customer."""
    return {customer["_id"]: customer["points"] for customer in database.customers.find()}
