"""The measuring's pure parts, the floor, and one small run of the command."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from xml.etree import ElementTree as ET

import pytest
from pymongo import MongoClient

from aioretry.testing import ReplicaSet
from tests.benchmarks.__main__ import parse
from tests.benchmarks.figures import Spread
from tests.benchmarks.throughput.clients import (
    COALESCED,
    FLOOR,
    MOTOR,
    OURS,
    PYMONGO,
    TITLES,
    concern,
)
from tests.benchmarks.throughput.compare import keys
from tests.benchmarks.throughput.floor import Floor, FloorError
from tests.benchmarks.throughput.growth import RSS, THREADS, Held, judge
from tests.benchmarks.throughput.memory import Idle
from tests.benchmarks.throughput.operations import OPERATIONS, STATEMENTS, stored
from tests.benchmarks.throughput.picture import COLOURS, decades, draw
from tests.benchmarks.throughput.ratios import RATIOS, TARGETS, Case, judged, spreads
from tests.benchmarks.throughput.rounds import Sample, Series, measure, take_turns
from tests.benchmarks.throughput.storm import Losses
from tests.lengths import FULL

SVG = "{http://www.w3.org/2000/svg}"


def series_of(*rates: float, cpu: float = 1e-4) -> Series:
    """A client that did so many operations a second, round by round."""
    return Series([Sample(100, 100 / rate, cpu * 100, 1 / rate, 2 / rate) for rate in rates])


class TestSample:
    def test_figures(self):
        """A sample becomes operations a second, milliseconds, and microseconds of CPU time."""
        series = Series([Sample.of([0.001] * 99 + [0.5], seconds=0.5, cpu=0.02)])
        assert series.per_second == [200]
        assert series.cpu_us == pytest.approx([200])
        assert series.p50_ms == [1.0]
        assert 1.0 < series.p99_ms[0] < 500
        assert series.medians().keys() == {"per_second", "p50_ms", "p99_ms", "cpu_us"}

    async def test_every_call_is_counted(self):
        """Each caller calls at least once, and what it began is waited for."""
        called = Counter[int]()

        def call_of(me: int):
            async def call() -> None:
                await asyncio.sleep(0)
                called[me] += 1

            return call

        sample = await measure([call_of(me) for me in range(5)], 0.01)
        assert set(called) == set(range(5))
        assert sample.operations == called.total()
        assert sample.seconds >= 0.01

    async def test_an_error_is_raised(self):
        """A call that fails ends the measurement: what can't be measured has no figures."""

        async def call() -> None:
            raise FloorError

        with pytest.raises(FloorError):
            await measure([call], 10.0)

    async def test_turns(self):
        """Each is measured in each round, in another order; the first round does not count."""
        turns: list[str] = []

        def measure_of(name: str):
            async def measure(seconds: float) -> Sample:
                turns.append(name)
                return Sample(1, seconds, seconds, seconds, seconds)

            return measure

        series = await take_turns({name: measure_of(name) for name in "abc"}, 2, 0.5)
        assert "".join(turns) == "bcacababc"
        assert [len(one.samples) for one in series.values()] == [2, 2, 2]


class TestRatios:
    def test_are_of_neighbours(self):
        """Each round's two are compared; a slow round of both is no difference."""
        found = spreads({OURS: series_of(300, 30), MOTOR: series_of(100, 10)})
        assert found["by_motor"] == Spread(3.0, 3.0, 3.0)
        assert found["p50_by_motor"].middle == pytest.approx(1 / 3)
        assert "by_pymongo" not in found

    def test_the_better_peer(self):
        """CPU time is compared with the peer that needs less of it."""
        series = {
            OURS: series_of(1, cpu=0.8),
            MOTOR: series_of(1, cpu=2.0),
            PYMONGO: series_of(1, cpu=1.0),
        }
        assert spreads(series)["cpu_by_better_peer"].middle == pytest.approx(0.8)

    def test_targets(self):
        """A target is judged where it was measured."""
        case = Case("insert_one", "majority", 200)
        results = {
            case: {MOTOR: series_of(10), OURS: series_of(20), COALESCED: series_of(110)},
            Case("insert_one", "majority", 50): {MOTOR: series_of(1), COALESCED: series_of(1)},
        }
        [(target, value)] = judged(results)
        assert target.case == case
        assert value == pytest.approx(11)
        assert not target.met_by(value)
        assert target.met_by(12.0)
        assert "coalesced by Motor >= 12" in str(target)

    def test_targets_are_of_what_is_measured(self):
        """Each target is of a ratio and a case that a whole run has."""
        options = parse([])
        for target in TARGETS:
            assert target.ratio in {ratio.key for ratio in RATIOS}
            assert target.case.operation in options.only
            assert target.case.w in options.w
            assert target.case.writers in options.writers


class TestGrowth:
    @staticmethod
    def samples(rss: list[float], objects: list[int]) -> list[Held]:
        """What a process held."""
        return [
            Held(float(at), {RSS: size, THREADS: 40.0}, Counter({"builtins.dict": count}))
            for at, (size, count) in enumerate(zip(rss, objects, strict=True))
        ]

    def test_steady(self):
        """What comes and goes, or came in the beginning only, does not grow."""
        rss = [20.0, 40.0, *([60.0, 61.0, 59.0, 60.5] * 2)]
        found = judge(self.samples(rss, [100, 900] * 5), callers=200)
        assert [one.name for one in found] == [RSS, THREADS]
        assert not any(one.is_growth for one in found)

    def test_a_leak(self):
        """Objects that stay are found, and memory that does."""
        rss = [60.0 + 5 * number for number in range(10)]
        found = judge(self.samples(rss, [1000 * number for number in range(10)]), callers=100)
        assert {one.name for one in found if one.is_growth} == {RSS, "objects: builtins.dict"}

    def test_too_few(self):
        """Halves need a sample each."""
        with pytest.raises(ValueError, match="too few"):
            judge(self.samples([1.0], [1]), callers=1)


def test_idle_memory():
    """The difference is that of each round; where nobody tells the memory, nothing is wrong."""
    threads = {key: [1.0] for key in (OURS, MOTOR, PYMONGO)}
    assert Idle({OURS: [54.0], MOTOR: [50.0], PYMONGO: [39.0]}, threads).is_small
    assert not Idle({OURS: [56.0], MOTOR: [50.0], PYMONGO: [39.0]}, threads).is_small
    unknown = {key: [float("nan")] for key in threads}
    assert Idle(unknown, threads).is_small


def test_losses():
    """So large a share of the replies is lost, and all that passes is counted."""
    losses = Losses(seed=1)
    assert not any(losses.take({}) for _ in range(100))
    losses.share = 0.1
    lost = sum(losses.take({}) for _ in range(10_000))
    assert lost == losses.lost
    assert losses.passed == 10_100
    assert 900 < lost < 1100


class TestPicture:
    def test_has_a_panel_for_each(self):
        """Each operation has two panels for each write concern, with a line for each client."""
        results = {
            Case(operation, w, writers): {OURS: series_of(100, 200), MOTOR: series_of(50, 90)}
            for operation in ("update_one", "insert_one")
            for w in ("1", "majority")
            for writers in (1, 50)
        }
        root = ET.fromstring(draw(results, "Writes"))
        lines = [mark for mark in root.iter(f"{SVG}g") if mark.get("class") == "client"]
        assert len(lines) == 2 * 2 * 2 * 2
        texts = {element.text for element in root.iter(f"{SVG}text")}
        assert {"aioretry", "Motor", "insert_one, w: 1: operations a second"} <= texts
        assert "AsyncMongoClient" not in texts

    def test_scale(self):
        """The scale's powers of ten enclose all values."""
        assert decades([20.0, 3000.0]) == (1, 4)
        assert decades([100.0]) == (2, 3)
        assert decades([0.5, 2.0]) == (0, 1)

    def test_every_client_has_a_colour(self):
        """None is drawn in another one's."""
        assert TITLES.keys() == COLOURS.keys()
        assert len(set(COLOURS.values())) == len(COLOURS)


class TestOptions:
    def test_depend_on_the_mode(self):
        """What is not said is what suits the mode."""
        assert parse([]).mode == "compare"
        assert parse(["--soak"]).soak == 10.0
        assert parse(["--soak", "2"]).writers == [200]
        assert parse(["--storm", "--writers", "20"]).writers == [20]
        assert parse(["--costs"]).w == ["1"]

    def test_one_mode_only(self):
        """Two modes at once are none."""
        with pytest.raises(SystemExit):
            parse(["--costs", "--storm"])

    def test_coalesced_is_for_some(self):
        """Only those travel together that gain by it."""
        assert COALESCED in keys("insert_one", list(TITLES))
        assert COALESCED in keys("counter", list(TITLES))
        assert COALESCED not in keys("update_one", list(TITLES))

    def test_floor_is_of_one_command(self):
        """A transaction has none."""
        assert FLOOR in keys("find_one", list(TITLES))
        assert FLOOR not in keys("transfer", list(TITLES))


@pytest.fixture(scope="module")
def one_member():
    """A replica set of one member, for what needs a server."""
    with ReplicaSet(members=1) as servers:
        yield servers


class TestFloor:
    @pytest.mark.parametrize(
        "operation", [one for one in OPERATIONS.values() if one.body and not one.is_read], ids=str
    )
    async def test_sends_what_the_clients_send(self, one_member, operation):
        """The commands by hand leave the same behind as a client's calls."""
        address = (one_member.members[0].host, one_member.members[0].port)
        with MongoClient(one_member.uri) as client:
            collections = [client.floor[f"{operation}_{side}"] for side in ("floor", "client")]
            for collection in collections:
                collection.drop()
            with Floor(address, "floor", 1) as floor:
                body = operation.body(collections[0].name, 3)
                floor.write(body())
                reply = floor.write(body())
            for _ in range(2):
                operation.call(collections[1], 3)()
            stored = [list(one.find().sort("_id")) for one in collections]
        assert reply["ok"] == 1
        assert len(stored[0]) == (STATEMENTS if operation.name == "bulk_write" else 1) + (
            operation.name == "insert_one"
        )
        if operation.name == "insert_one":
            stored = [[{**each, "_id": None} for each in one] for one in stored]
        assert stored[0] == stored[1]

    def test_sends_a_transaction_id(self, one_member):
        """Its writes are retryable ones: the same number again answers from the record."""
        address = (one_member.members[0].host, one_member.members[0].port)
        with Floor(address, "floor", concern("majority")) as floor:
            body = OPERATIONS["update_one"].body("numbered", 1)
            floor.write(body())
            floor._number -= 1
            assert floor.write(body())["retriedStmtIds"] == [0]

    def test_reads(self, one_member):
        """What is read by hand is what was stored."""
        address = (one_member.members[0].host, one_member.members[0].port)
        with MongoClient(one_member.uri) as client, Floor(address, "floor", 1) as floor:
            client.floor.read.drop()
            client.floor.read.insert_many(stored(1))
            reply = floor.read(OPERATIONS["find_one"].body("read", 0)())
            assert [client.floor.read.find_one({"_id": 0})] == reply["cursor"]["firstBatch"]

    def test_an_error_is_raised(self, one_member):
        """What did not go well has no figures."""
        address = (one_member.members[0].host, one_member.members[0].port)
        with Floor(address, "floor", 1) as floor:
            with pytest.raises(FloorError):
                floor.write({"noSuchCommand": 1})


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "update_one", "transfer", "insert_one", "--writers", "3", "--no-peaks"],
        ["--only", "insert_one", "--writers", "3"],
        ["--costs", "--writers", "3"],
        ["--instrumented", "--writers", "3"],
        ["--storm", "--writers", "3"],
        ["--memory"],
        ["--soak", "0.05", "--writers", "8"],
    ],
    ids=["compare", "peaks", "costs", "instrumented", "storm", "memory", "soak"],
)
@pytest.mark.parametrize("client", ["motor", "asyncio"] if FULL else ["motor"])
@pytest.mark.server
def test_runs(arguments, client, tmp_path):
    """The command runs to its end in each mode, and prints figures."""
    picture = tmp_path / "picture.svg"
    tiny = ["--client", client, "--members", "1", "--rounds", "1", "--seconds", "0.05", "--json"]
    child = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *arguments, *tiny, "--picture", str(picture)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    told = json.loads(child.stdout)
    if "--only" not in arguments:
        assert told
        return
    assert child.returncode == 0
    insert = told["cases"][-1]
    assert insert["ratios"].keys() == {ratio.key for ratio in RATIOS}
    if "--no-peaks" in arguments:
        update = told["cases"][0]
        assert update["clients"].keys() == {OURS, MOTOR, PYMONGO, FLOOR}
    peaks = {one["client"] for one in told["peak_kib"]}
    assert peaks == (set() if "--no-peaks" in arguments else {OURS, COALESCED, MOTOR, PYMONGO})
    assert ET.parse(picture).getroot().tag == f"{SVG}svg"
