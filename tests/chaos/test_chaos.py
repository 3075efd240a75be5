"""The chaos run: its schedule, its judge, its picture, and a short run that must be clean."""

import asyncio
import itertools
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest
from pymongo.errors import ConfigurationError, PyMongoError

from aioretry import Outcome, deadline
from aioretry.testing import Ledger
from tests.chaos.__main__ import parse
from tests.chaos.book import Book, Failed, Figures, Tickets, Unit
from tests.chaos.calls import Caller, Habits, Way
from tests.chaos.clients import ASYNCIO, OURS, Side
from tests.chaos.judge import (
    Verdict,
    judge,
    judge_ledger,
    judge_tickets,
    judge_units,
    too_hot,
    unexplained,
)
from tests.chaos.picture import LOOKS, draw
from tests.chaos.run import Options, Result, run
from tests.chaos.schedule import CALM, Kind, schedule
from tests.chaos.sessions import most_left
from tests.chaos.timeline import Happened, Timeline
from tests.chaos.truth import counted
from tests.lengths import FULL, in_full

SVG = "{http://www.w3.org/2000/svg}"
SEEDS = range(200)
SECONDS = in_full(50.0, otherwise=15.0)
# Every kind of fault in so short a time; or a kill, lost connections, and a command that breaks
# them.
SEED = in_full(11419, otherwise=149977)


class TestSchedule:
    def test_is_decided_by_the_seed(self):
        """A seed gives the same schedule each time, and each seed another one."""
        assert schedule(7, 600.0, 3) == schedule(7, 600.0, 3)
        assert len({tuple(schedule(seed, 600.0, 3)) for seed in SEEDS}) == len(SEEDS)

    @pytest.mark.parametrize("seconds", [0.0, 5.0, 50.0, 600.0])
    def test_heals_every_fault(self, seconds):
        """Each fault lasts a while and ends, before the calm at the end."""
        for seed in SEEDS:
            for planned in schedule(seed, seconds, 3):
                assert planned.lasts > 0.0
                assert 0.0 < planned.at < planned.until <= seconds - CALM

    def test_is_in_order(self):
        """The faults come in the order of their beginnings."""
        for seed in SEEDS:
            begins = [planned.at for planned in schedule(seed, 600.0, 3)]
            assert begins == sorted(begins)

    def test_has_all_kinds(self):
        """Ten minutes have every kind, and a few short runs have them all between them."""
        kinds = set(Kind) - {Kind.ISOLATE}
        for seed in SEEDS:
            assert {planned.kind for planned in schedule(seed, 600.0, 3)} == kinds
        short = itertools.chain.from_iterable(schedule(seed, 50.0, 3) for seed in SEEDS)
        assert {planned.kind for planned in short} == kinds

    def test_parts_members_where_that_is_wanted(self):
        """It does so more often than anything else."""
        plans = [schedule(seed, 600.0, 3, isolates=True) for seed in SEEDS]
        counts = Counter(planned.kind for plan in plans for planned in plan)
        assert set(counts) == set(Kind)
        assert counts.most_common(1)[0][0] is Kind.ISOLATE

    def test_breaks_two_at_once_now_and_then(self):
        """Some faults begin while another one lasts, and never more than one."""
        for seed in SEEDS:
            plan = schedule(seed, 600.0, 3)
            at_once = [sum(one.at <= other.at < one.until for one in plan) for other in plan]
            assert max(at_once) == 2

    def test_values_make_sense(self):
        """Members exist, and a fault has commands to strike, and strikes at least once."""
        for members, seed in itertools.product((1, 3, 5), range(20)):
            for planned in schedule(seed, 600.0, members):
                assert 0 <= planned.member < members
                assert planned.commands
                assert planned.times is None or planned.times >= 1
                assert planned.wait > 0.0


def ledger_of(*writes: tuple[int, Outcome]) -> Ledger:
    """A ledger with these writes."""
    ledger = Ledger()
    for key, outcome in writes:
        ledger.record(key, outcome)
    return ledger


def damage(verdict: Verdict) -> tuple[int, int, int]:
    """What a verdict counts: lost, doubled, wrong."""
    return verdict.lost, verdict.doubled, verdict.wrong


class TestJudge:
    def test_finds_nothing_where_all_is_true(self):
        """One of each outcome, and what is unknown may be there or not."""
        ledger = ledger_of(
            (1, Outcome.APPLIED),
            (2, Outcome.NOT_APPLIED),
            (3, Outcome.UNKNOWN),
            (4, Outcome.UNKNOWN),
        )
        verdict = judge_ledger("inserts", ledger, {1: 1, 3: 1})
        assert verdict.is_true
        assert verdict.late == 1
        assert verdict.writes == 4
        assert verdict.details == ""

    @pytest.mark.parametrize(
        ("outcome", "found", "expected"),
        [
            pytest.param(Outcome.APPLIED, 0, (1, 0, 0), id="lost"),
            pytest.param(Outcome.APPLIED, 2, (0, 1, 0), id="doubled"),
            pytest.param(Outcome.UNKNOWN, 3, (0, 2, 0), id="unknown, and doubled"),
            pytest.param(Outcome.NOT_APPLIED, 1, (0, 0, 1), id="wrong"),
        ],
    )
    def test_finds_damage(self, outcome, found, expected):
        """A lost write, a doubled one and a falsely NOT_APPLIED one are each found."""
        verdict = judge_ledger("inserts", ledger_of((1, outcome)), {1: found})
        assert damage(verdict) == expected
        assert not verdict.is_true
        assert verdict.details

    def test_finds_what_nobody_wrote(self):
        """A write that nobody recorded is one too many."""
        verdict = judge_ledger("inserts", ledger_of((1, Outcome.APPLIED)), {1: 1, 2: 1})
        assert damage(verdict) == (0, 1, 0)
        assert verdict.details

    @pytest.mark.parametrize(
        ("found", "expected"), [(2, (1, 0, 0)), (3, (0, 0, 0)), (4, (0, 0, 0)), (5, (0, 0, 1))]
    )
    def test_counts_a_shared_counter(self, found, expected):
        """A counter is at least what was acknowledged, and at most what is unknown besides."""
        outcomes = [Outcome.APPLIED] * 3 + [Outcome.UNKNOWN, Outcome.NOT_APPLIED]
        verdict = judge_ledger("increments", ledger_of(*((7, one) for one in outcomes)), {7: found})
        assert damage(verdict) == expected

    @pytest.mark.parametrize(
        ("given", "outcomes", "last", "expected"),
        [
            pytest.param([1, 2, 3], {}, 3, (0, 0, 0), id="all given"),
            pytest.param([1, 3], {Outcome.UNKNOWN: 1}, 3, (0, 0, 0), id="explained by an unknown"),
            pytest.param(
                [1, 2], {Outcome.UNKNOWN: 1}, 2, (0, 0, 0), id="an unknown that did nothing"
            ),
            pytest.param([1, 3], {Outcome.APPLIED: 1}, 3, (0, 0, 0), id="applied, number unheard"),
            pytest.param([1, 2], {Outcome.APPLIED: 1}, 2, (1, 0, 0), id="applied, and no number"),
            pytest.param([1, 1, 2], {}, 2, (0, 1, 0), id="given twice"),
            pytest.param([1, 2, 3], {}, 2, (1, 0, 0), id="acknowledged and rolled back"),
            pytest.param([1, 3], {}, 3, (0, 0, 1), id="nobody's"),
            pytest.param([1, 3], {Outcome.NOT_APPLIED: 1}, 3, (0, 0, 1), id="wrong"),
        ],
    )
    def test_counts_tickets(self, given, outcomes, last, expected):
        """No number is given twice, and one that nobody got is somebody's unknown write."""
        verdict = judge_tickets(Tickets(given, Counter(outcomes)), last)
        assert damage(verdict) == expected
        assert verdict.is_true == (expected == (0, 0, 0))
        assert bool(verdict.details) == (not verdict.is_true)

    def test_reads_documents(self):
        """What the documents say is what the ledgers are asked about."""
        found = counted(
            [
                {"_id": "ticket", "n": 5},
                {"_id": "counter-3", "n": 17},
                {"_id": "insert-8"},
                {"_id": "sheet-0", "marks": [100, 200, 100]},
                {"_id": "coalesced-4"},
                {"_id": "keyed-7", "marks": [107]},
                {"_id": "transactions-2-9-0"},
                {"_id": "transactions-2-9-late"},
                {"_id": "done once-0-3-1"},
                {"_id": "victim-1"},
            ],
            victims=3,
        )
        assert found.tickets == 5
        assert found.applied == {
            "increments": {3: 17},
            "inserts": {8: 1},
            "pushes": {100: 2, 200: 1},
            "coalesced": {4: 1},
            "keyed": {107: 1},
            "deletes": {0: 1, 2: 1},
        }
        assert found.units == {
            "transactions": {2: {9: ["0", "late"]}},
            "done once": {0: {3: ["1"]}},
        }

    def test_judges_deletes(self):
        """An acknowledged delete that is not gone is lost, a refused one that is gone is wrong."""
        book = Book(OURS.outcome_of)
        book.ledgers["deletes"].record(0, Outcome.APPLIED)
        book.ledgers["deletes"].record(1, Outcome.NOT_APPLIED)
        found = counted([{"_id": "victim-0"}, {"_id": "ticket", "n": 0}], victims=2)
        verdicts = {verdict.kind: verdict for verdict in judge(book, found)}
        assert damage(verdicts["deletes"]) == (1, 0, 1)
        assert all(one.is_true for kind, one in verdicts.items() if kind != "deletes")

    @pytest.mark.parametrize(
        ("told", "run", "found", "expected"),
        [
            pytest.param([Outcome.APPLIED], 5, {5: ["0", "1"]}, (0, 0, 0), id="all of it"),
            pytest.param([Outcome.NOT_APPLIED], None, {}, (0, 0, 0), id="nothing"),
            pytest.param([Outcome.UNKNOWN], None, {5: ["1", "0"]}, (0, 0, 0), id="unknown, there"),
            pytest.param([Outcome.UNKNOWN], None, {}, (0, 0, 0), id="unknown, not there"),
            pytest.param(
                [Outcome.UNKNOWN, Outcome.NOT_APPLIED], None, {5: ["1", "0"]}, (0, 0, 0), id="once"
            ),
            pytest.param(
                [Outcome.APPLIED], 5, {5: ["0", "1", "late"]}, (0, 0, 0), id="with a late one"
            ),
            pytest.param([Outcome.APPLIED], 5, {}, (1, 0, 0), id="lost"),
            pytest.param([Outcome.APPLIED], 5, {4: ["0", "1"]}, (1, 0, 0), id="another run"),
            pytest.param(
                [Outcome.APPLIED], 5, {4: ["0", "1"], 5: ["0", "1"]}, (0, 1, 0), id="two runs"
            ),
            pytest.param([Outcome.UNKNOWN], None, {5: ["1"]}, (0, 0, 1), id="torn"),
            pytest.param(
                [Outcome.APPLIED], 5, {4: ["1"], 5: ["0", "1"]}, (0, 1, 1), id="of an aborted run"
            ),
            pytest.param([Outcome.NOT_APPLIED], None, {5: ["0", "1"]}, (0, 0, 1), id="wrong"),
            pytest.param(
                [Outcome.APPLIED], 5, {5: ["0", "1", "no"]}, (0, 0, 1), id="there, though refused"
            ),
        ],
    )
    def test_judges_transactions(self, told, run, found, expected):
        """All of one run is there, and it is the one that was acknowledged; or nothing is."""
        unit = Unit("transactions", 3, 2, set(told), run, {"transactions-3-5-no"})
        verdict = judge_units("transactions", [unit], {3: found})
        assert damage(verdict) == expected
        assert bool(verdict.details) == (not verdict.is_true)

    @pytest.mark.parametrize(
        ("began", "ended", "is_limited", "is_explained"),
        [
            pytest.param(9.0, 10.5, True, True, id="met a fault"),
            pytest.param(14.0, 16.0, True, True, id="soon after it"),
            pytest.param(17.5, 18.0, True, False, id="nothing was broken"),
            pytest.param(20.5, 21.5, False, False, id="cut once"),
            pytest.param(20.5, 22.5, False, True, id="cut twice, and retried once"),
            pytest.param(20.5, 22.5, True, False, id="cut twice under a deadline"),
        ],
    )
    def test_finds_failures_without_a_reason(self, began, ended, is_limited, is_explained):
        """Lost connections alone are no reason to fail, unless the only retry is lost too."""
        faults = [
            Happened(Kind.KILL, "", 10.0, 12.0),
            Happened(Kind.HALF_DEAD, "", 20.0, 23.0, strokes=(20.0, 21.0, 22.0, 23.0)),
        ]
        found = unexplained([Failed(began, ended, is_limited, "")], faults)
        assert bool(found) is not is_explained

    @pytest.mark.parametrize(("fired", "is_found"), [(500, False), (50_000, True)])
    @pytest.mark.parametrize("kind", [Kind.HOT_BREAK, Kind.DROP_REQUEST])
    def test_finds_what_is_sent_without_measure(self, fired, is_found, kind):
        """A command that breaks every connection is sent some times by each call."""
        fault = Happened(kind, "", 10.0, 14.0, fired)
        assert bool(too_hot([fault], 40)) is (is_found and kind is Kind.HOT_BREAK)

    def test_explains_sessions(self):
        """More may be left where more was lost or is in doubt, and fewer once all is closed."""
        book = Book(outcome_of)
        closed = most_left(book, [], writers=0)
        assert most_left(book, [], writers=40) == closed + 80
        shared = LostError(Outcome.UNKNOWN)
        for error in (shared, shared, LostError(Outcome.UNKNOWN), LostError(Outcome.APPLIED)):
            book.ledgers["inserts"].record(1, Outcome.UNKNOWN, error)
        assert most_left(book, [], writers=40) == closed + 82
        book.abandoned = 3
        assert most_left(book, [], writers=0) == closed + 3
        assert most_left(book, [Happened(Kind.DELAY, "", 1.0, 2.0)], writers=0) == closed + 3
        assert most_left(book, [Happened(Kind.KILL, "", 1.0, 2.0)], writers=0) > closed + 3


class TestTimeline:
    def test_measures_pauses(self):
        """The longest time without an acknowledged call counts from the start and to the end."""
        now = 100.0
        timeline = Timeline(lambda: now)
        timeline.start()
        now = 104.0
        timeline.acknowledge()
        assert timeline.longest_pause == 4.0
        now = 105.0
        timeline.acknowledge()
        assert timeline.longest_pause == 4.0
        now = 111.5
        timeline.stop()
        assert timeline.longest_pause == 6.5
        assert timeline.seconds == 11.5
        assert timeline.acknowledged == {4: 1, 5: 1}


class LostError(PyMongoError):
    """An error that says how its write ended."""

    def __init__(self, outcome: Outcome | None) -> None:
        super().__init__("lost")
        self.outcome = outcome


def outcome_of(exc: BaseException) -> Outcome | None:
    """What a made-up error says."""
    return getattr(exc, "outcome", None)


async def raising(exc: BaseException):
    """A write, or a resolution, that raises."""
    raise exc


def caller_of(book: Book, habits: Habits, resolve=None) -> Caller:
    """A caller of a client that resolves in this way."""
    side = replace(OURS, outcome_of=outcome_of, resolve=resolve)
    return Caller(side, book, Timeline(), habits)


class TestCaller:
    @pytest.mark.parametrize("way", Way)
    async def test_cancels(self, way):
        """In each of the three ways, a call that hangs ends, and is counted."""
        book = Book(outcome_of)
        caller = caller_of(book, Habits(timeout=60.0, cancels=1.0))
        rng = Random(1)
        rng.choice = lambda _: way  # type: ignore[method-assign]
        call = asyncio.get_running_loop().create_future
        with pytest.raises(TimeoutError if way is Way.TIMEOUT else asyncio.CancelledError):
            await caller.call(call, rng)
        assert book.figures.cancelled == 1

    async def test_cancellation_of_the_caller_goes_through(self):
        """A caller that is itself cancelled does not take that for the end of its call."""
        book = Book(outcome_of)
        caller = caller_of(book, Habits(timeout=60.0, cancels=0.0))
        call = asyncio.get_running_loop().create_future
        running = asyncio.create_task(caller.call(call, Random(1)))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert book.figures.cancelled == 0

    @pytest.mark.parametrize(
        ("habits", "noted"),
        [
            pytest.param(Habits(60.0, cancels=0.0), [True], id="with a deadline"),
            pytest.param(Habits(60.0, cancels=0.0, unlimited=1.0), [False], id="without one"),
            pytest.param(Habits(60.0, cancels=0.0, shortest=30.0), [], id="with a short one"),
            pytest.param(Habits(60.0, cancels=1.0, moments=(60.0, 60.0)), [], id="cancelled"),
        ],
    )
    async def test_notes_failures(self, habits, noted):
        """Those that have to be explained are of calls that nobody cancelled or hurried."""
        book = Book(outcome_of)
        with pytest.raises(LostError):
            await caller_of(book, habits).call(
                lambda: asyncio.ensure_future(raising(LostError(Outcome.UNKNOWN))), Random(1)
            )
        assert [failed.is_limited for failed in book.failures] == noted

    async def test_draws_deadlines(self):
        """Each call has its own, between the shortest and the longest."""
        seen = []

        async def send() -> None:
            with deadline(None) as limit:
                seen.append(limit.remaining())

        caller = caller_of(Book(outcome_of), Habits(9.0, cancels=0.0, shortest=3.0))
        for seed in range(50):
            await caller.call(send, Random(seed))
        assert 2.0 < min(seen) < 4.0 < 7.0 < max(seen) <= 9.0

    async def test_a_fault_taken_for_configuration_is_found(self):
        """What servers can do is the same before and after all faults."""
        book = Book(lambda _: Outcome.NOT_APPLIED)
        side = replace(OURS, outcome_of=book.outcome_of)
        caller = Caller(side, book, Timeline(), Habits(timeout=60.0, cancels=0.0))
        with pytest.raises(ConfigurationError):
            await caller.call(lambda: raising(ConfigurationError("no sessions")), Random(1))
        assert len(book.findings) == 1

    @pytest.mark.parametrize("outcome", [*Outcome, None])
    async def test_an_error_without_outcome_is_found(self, outcome):
        """A driver's error has to say how the write ended."""
        book = Book(outcome_of)
        caller = caller_of(book, Habits(timeout=60.0, cancels=0.0))
        with pytest.raises(LostError):
            await caller.call(lambda: raising(LostError(outcome)), Random(1))
        assert len(book.findings) == (outcome is None)

    @pytest.mark.parametrize(
        ("resolved_to", "recorded"),
        [
            pytest.param(None, Outcome.APPLIED, id="to the result"),
            pytest.param(LostError(Outcome.NOT_APPLIED), Outcome.NOT_APPLIED, id="to an error"),
            pytest.param(LostError(Outcome.UNKNOWN), Outcome.UNKNOWN, id="not yet"),
        ],
    )
    async def test_resolves(self, resolved_to, recorded):
        """What counts for the ledger is what the resolution says."""
        asked = []

        async def resolve(exc: BaseException, *, timeout: float) -> str:
            asked.append((exc, timeout))
            if resolved_to is not None:
                raise resolved_to
            return "result"

        book, ledger, doubt = Book(outcome_of), Ledger(outcome_of), LostError(Outcome.UNKNOWN)
        caller = caller_of(book, Habits(60.0, cancels=0.0, resolves=1.0), resolve)
        call = caller.call_to_the_end(lambda: raising(doubt), Random(1))
        with nullcontext() if resolved_to is None else pytest.raises(LostError):
            assert await ledger.write(1, call) == "result"
        assert asked == [(doubt, 30.0)]
        assert [entry.outcome for entry in ledger.entries] == [recorded]
        assert book.figures.resolved.total() == 1

    @pytest.mark.parametrize("outcome", [Outcome.APPLIED, Outcome.NOT_APPLIED, None])
    async def test_resolves_only_what_is_unknown(self, outcome):
        """Where the outcome is known, or nothing is said, there is nothing to resolve."""
        caller = caller_of(Book(outcome_of), Habits(60.0, cancels=0.0, resolves=1.0), raising)
        with pytest.raises(LostError) as caught:
            await caller.call_to_the_end(lambda: raising(LostError(outcome)), Random(1))
        assert caught.value.outcome is outcome


def result_of(name: str, faults: int, seconds: float) -> Result:
    """A made-up run with so many faults, of all kinds, some of them at once."""
    timeline = Timeline()
    timeline.seconds = seconds
    timeline.acknowledged = Counter({second: 100 + second for second in range(int(seconds))})
    timeline.failed = Counter({3: 5})
    kinds = itertools.cycle(Kind)
    timeline.faults = [
        Happened(next(kinds), f"<{number} & more>", number * 2.0, number * 2.0 + 3.0)
        for number in range(faults)
    ]
    return Result(name, timeline, Figures(), (), ())


class TestPicture:
    def test_has_a_mark_for_each_fault(self):
        """It is well-formed, and each fault is marked once and says what it was."""
        results = [result_of("aioretry", 30, 90.0), result_of("Motor", 17, 60.0)]
        root = ET.fromstring(draw(results, Options(1, 90.0)))
        marks = [group for group in root.iter(f"{SVG}g") if group.get("class") == "fault"]
        assert len(marks) == 47
        titles = [group.findtext(f"{SVG}title") or "" for group in marks]
        assert "0.0 to 3.0 s: <0 & more>" in titles
        bars = [path for path in root.iter(f"{SVG}path") if path.get("class") == "acknowledged"]
        assert len(bars) == 2

    def test_brings_its_own_background(self):
        """The first thing drawn covers all of it, so that it reads in dark surroundings too."""
        root = ET.fromstring(draw([result_of("aioretry", 1, 10.0)], Options(1, 10.0)))
        (first, *_) = root.iter(f"{SVG}rect")
        _, _, width, height = map(float, (root.get("viewBox") or "").split())
        assert (float(first.get("width", 0)), float(first.get("height", 0))) == (width, height)

    def test_tells_the_kinds_apart(self):
        """Each kind of fault has a letter and a colour of its own, and stands in the legend."""
        assert set(LOOKS) == set(Kind)
        letters, colours = zip(*LOOKS.values(), strict=True)
        assert len({*letters}) == len({*colours}) == len(Kind)
        text = draw([result_of("aioretry", 0, 10.0)], Options(1, 10.0))
        assert all(kind.value in text for kind in Kind)


def test_the_command_line():
    """The documented options are there."""
    given = parse(["--minutes", "2", "--seed", "3", "--server", "4.4", "--picture", "a.svg"])
    assert (given.minutes, given.seed, given.server) == (2.0, 3, "4.4")
    assert given.picture == Path("a.svg")
    assert not given.without_motor
    assert not given.isolate
    assert (given.client, parse(["--client", "asyncio"]).client) == ("motor", "asyncio")


@pytest.mark.slow
@pytest.mark.parametrize("side", [OURS, ASYNCIO] if FULL else [OURS], ids=lambda side: side.name)
@pytest.mark.long
@pytest.mark.server
async def test_a_short_run_is_clean(side: Side):
    """In a minute of faults nothing is lost, doubled, told wrongly or left behind."""
    said: list[str] = []
    result = await run(side, Options(SEED, SECONDS), said.append)
    assert list(result.findings) == [], "\n".join(said)
    details = [verdict.details for verdict in result.verdicts]
    assert all(verdict.is_true for verdict in result.verdicts), "\n".join(details)
    assert all(verdict.writes for verdict in result.verdicts)
