"""Simulated runs: many of them, and whether they are the same each time and find mistakes."""

import asyncio
import logging
import os
import re
import subprocess
import sys
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest

import aioretry
from aioretry._drivers.engine.sessions import ImplicitSession
from aioretry._drivers.transaction_runs import Runs
from aioretry._retry import pending
from aioretry._retry.attempt import PendingAttempt
from aioretry._retry.command_execution import Execution
from aioretry._retry.pending import PendingAttempts
from aioretry._retry.sessions import CommandNumber
from aioretry._retry.verdict import RetryState
from aioretry._writes import keyed
from aioretry._writes.aborts import Aborting
from aioretry._writes.bulk_result import BulkResult
from tests.lengths import in_full
from tests.simulation.clock import Clocks, StuckError, VirtualLoop
from tests.simulation.driver import Network
from tests.simulation.mutations import MUTATIONS
from tests.simulation.plan import Fault, Plan
from tests.simulation.run import Run
from tests.simulation.shrink import shrunk
from tests.simulation.transfers import STYLES

EACH = in_full(60, otherwise=20)
QUICK, MORE = 5, 15


@pytest.fixture(autouse=True)
def quiet():
    """Retries are no news here."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def findings(seeds):
    """Return what is wrong in the runs of some seeds, by the seed."""
    found = {seed: Run(Plan.of(seed)).verdict().wrong for seed in seeds}
    return {
        f"python -m tests.simulation --replay {seed} --shrink": wrong
        for seed, wrong in found.items()
        if wrong
    }


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(QUICK))
def test_runs(part):
    """Whatever happens to servers, network and clients, nothing is told wrongly, lost or left."""
    assert {} == findings(range(part * EACH, (part + 1) * EACH))


@pytest.mark.sample(6)
@pytest.mark.long
@pytest.mark.more
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(QUICK, QUICK + MORE))
def test_more_runs(part):
    """The same."""
    assert {} == findings(range(part * EACH, (part + 1) * EACH))


class TestReplaying:
    """The same happens each time."""

    @pytest.mark.parametrize("seed", [1, 2, 3])
    def test_twice(self, seed):
        """Bit by bit, also after other runs."""
        first, second = (Run(Plan.of(seed)).verdict() for _ in range(2))
        assert first.trace
        assert first.trace == second.trace
        assert first.counts == second.counts

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("seed", [7, 8])
    def test_in_another_process(self, seed):
        """However hashes are made there."""
        digests = {
            subprocess.run(
                [sys.executable, "-m", "tests.simulation", "--replay", str(seed), "--digest"],
                capture_output=True,
                check=True,
                env={**os.environ, "PYTHONHASHSEED": hashes},
            ).stdout
            for hashes in ("1", "2")
        }
        assert 1 == len(digests)


class TestMistakes:
    """What is wrong on purpose is found; tests.simulation.mutations has more of these."""

    @pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
    def test_a_place(self, mutation):
        """What each of those changes is there, once."""
        path = Path(aioretry.__file__).parent / mutation.path
        assert 1 == path.read_text().count(mutation.right)

    def test_how_many_there_are(self):
        """The page says so."""
        page = Path(aioretry.__file__).parent.parent / "docs" / "simulation.md"
        assert f"puts {len(MUTATIONS)} mistakes" in page.read_text()

    @pytest.mark.parametrize("has_coroutines", [False, True])
    def test_a_write_done_twice(self, monkeypatch, has_coroutines):
        """Each attempt takes a number of its own; a few steps are enough to show it."""
        monkeypatch.setattr(CommandNumber, "take", lambda _, session: session.next_number())
        plan = plan_of("update", Network(unanswered=0.5))
        plan = shrunk(replace(plan, has_coroutines=has_coroutines))
        wrong = Run(plan).verdict().wrong
        assert any(re.search(r"done ([2-9]|\d\d+) times", line) for line in wrong)
        assert len(plan.operations) <= 3

    def test_what_a_run_has_left(self, monkeypatch):
        """It is sent in the next transaction, or in none."""
        monkeypatch.setattr(Runs, "require", lambda _: None)
        how = [STYLES.index("left") + len(STYLES) * number for number in range(30)]
        wrong = Run(plan_of_transfers(Network(opening=0.0, unanswered=0.1), how)).verdict().wrong
        assert any("transaction" in line for line in wrong)

    def test_a_transaction_that_nobody_aborts(self, monkeypatch):
        """It bars others for a minute or more, and nothing of it is in doubt."""
        monkeypatch.setattr(Aborting, "_try", ended)
        wrong = Run(plan_of_many_runs()).verdict().wrong
        assert any("was not served" in line for line in wrong)

    def test_nothing_is_wrong_with_a_commit_that_is_lost(self):
        """Nobody resolves it, and whoever comes after it is barred all the while."""
        run = Run(plan_of_a_lost_commit())
        assert [] == run.verdict().wrong
        assert 1 == len(run.set.expired)
        assert any("op 5 ends with DeadlineExceeded" in line for line in run.trace)
        assert [] == Run(plan_of_many_runs()).verdict().wrong

    def test_a_read_of_what_is_rolled_back(self, monkeypatch):
        """It is answered by a primary that nobody follows any more."""
        monkeypatch.setattr(ImplicitSession, "stamp_read", lambda *_: None)
        wrong = Run(plan_of_reads()).verdict().wrong
        assert any("rolled back" in line for line in wrong)

    def test_nothing_is_wrong_with_transfers_and_reads(self):
        """Without the mistakes."""
        network = Network(opening=0.0, slow=0.1, unanswered=0.1)
        for cancelled in (None, 0.1):
            assert [] == Run(plan_of_transfers(network, range(30), cancelled)).verdict().wrong
        how = [STYLES.index("left") + len(STYLES) * number for number in range(30)]
        plan = plan_of_transfers(Network(opening=0.0, unanswered=0.1), how)
        assert [] == Run(plan).verdict().wrong
        assert [] == Run(plan_of_reads()).verdict().wrong

    def test_no_retry(self, monkeypatch):
        """What could be sent again is given up."""
        monkeypatch.setattr(RetryState, "_limit", lambda _: 0)
        wrong = Run(plan_of("update", Network(unanswered=0.1))).verdict().wrong
        assert any("before its time" in line for line in wrong)

    def test_no_pause(self, monkeypatch):
        """What breaks each time is sent without end."""
        monkeypatch.setattr(RetryState, "_pause", lambda *_: 0.0)
        wrong = Run(plan_of("update", Network(unanswered=0.99), count=1)).verdict().wrong
        assert any("was sent" in line for line in wrong)

    @pytest.mark.parametrize(
        ("kind", "words"), [("update", "for too short a time"), ("update_many", "is not told that")]
    )
    def test_a_deadline_that_is_not_told(self, monkeypatch, kind, words):
        """What ends at the deadline is told of what it has waited for."""
        monkeypatch.setattr(Execution, "time_left", lambda it: it.deadline.remaining())
        wrong = Run(plan_of_deadlines(kind)).verdict().wrong
        assert any(words in line for line in wrong)

    def test_nothing_is_wrong_with_deadlines(self):
        """Each is told of its own."""
        for kind in ("update", "update_many"):
            verdict = Run(plan_of_deadlines(kind)).verdict()
            assert [] == verdict.wrong
            assert 30 == sum("DeadlineExceeded" in line for line in verdict.trace)

    def test_who_fails_fast(self):
        """While there is no primary all fail that were never sent, and later ones are served."""
        plan = replace(plan_of("insert", Network(), count=200), fail_fast_after=3.0)
        verdict = Run(replace(plan, faults=(Fault(1.0, "outage", None, 12.0),))).verdict()
        assert [] == verdict.wrong
        ends = [line for line in verdict.trace if re.search(r" op \d+ ends", line)]
        assert 30 < sum("WritesUnavailableError" in line for line in ends) < 199
        assert ends[-1].endswith("ends well")

    def test_nothing_is_wrong_at_the_beginning(self):
        """What is there before all else is not rolled back with a primary that is cut off."""
        faults = (Fault(0.0, "cut_off", None, 12.0),)
        plan = replace(plan_of("update", Network()), faults=faults)
        assert [] == Run(plan).verdict().wrong

    def test_a_wrong_outcome(self, monkeypatch):
        """What was refused is told as applied."""
        right = BulkResult._note_outcomes
        monkeypatch.setattr(
            BulkResult,
            "_note_outcomes",
            lambda self, batch, reply, applied, _: right(self, batch, reply, applied, applied),
        )
        wrong = Run(plan_of("insert_many", Network(), refused=1)).verdict().wrong
        assert any("was told APPLIED" in line for line in wrong)

    def test_an_empty_place(self, monkeypatch):
        """Routers find no primary, and one of two places is never taken by those who wait."""
        right = PendingAttempts.__init__
        monkeypatch.setattr(
            PendingAttempts,
            "__init__",
            lambda self, loop, lookout, _, *given: right(self, loop, lookout, 1, *given),
        )
        wrong = Run(plan_without_a_primary()).verdict().wrong
        assert any("although all was well" in line for line in wrong)

    def test_nothing_is_wrong_without_a_primary(self):
        """The last of those who wait for one of two places have their turn after minutes."""
        verdict = Run(plan_without_a_primary()).verdict()
        assert [] == verdict.wrong
        ends = [float(line.split()[0]) for line in verdict.trace if "ends with" in line]
        assert max(ends) > 20 + 200

    def test_nothing_is_wrong_where_inserts_travel_in_line(self):
        """One command at a time, of two of them each, although there are places for ten."""
        plan = plan_without_a_primary()
        operations = tuple(replace(one, kind="coalesced") for one in plan.operations)
        plan = replace(plan, operations=operations, together=(2, 2**24), connections=10, at_once=10)
        verdict = Run(plan).verdict()
        assert [] == verdict.wrong
        ends = [float(line.split()[0]) for line in verdict.trace if "ends with" in line]
        assert max(ends) > 20 + 200

    def test_a_line_that_stands_still(self, monkeypatch):
        """What is not answered is sent again after minutes, and others wait for that."""
        monkeypatch.setattr(RetryState, "_pause", lambda *_: 250.0)
        wrong = Run(plan_of_a_line()).verdict().wrong
        assert any("although all was well" in line for line in wrong)

    def test_attempts_without_end(self, monkeypatch):
        """A run ends that would make attempts for ever, also if they send nothing."""
        monkeypatch.setattr("tests.simulation.run.MOST_ATTEMPTS", 5)
        verdict = Run(plan_of("update", Network(opening=0.0))).verdict()
        assert "5 attempts were made, and there is no end" in verdict.wrong
        assert verdict.counts["sent"] < 10

    def test_nothing_is_wrong_in_a_line(self):
        """Who has no deadline waits for minutes for those who have, and are not answered."""
        verdict = Run(plan_of_a_line()).verdict()
        assert [] == verdict.wrong
        ends = [float(line.split()[0]) for line in verdict.trace if " ends " in line]
        assert max(ends) > 5 + 200

    def test_a_turn_that_never_comes(self, monkeypatch):
        """Who came last is sent first."""
        monkeypatch.setattr(pending, "OrderedDict", Stack)
        wrong = Run(plan_of_a_crowd()).verdict().wrong
        assert any("was not served" in line for line in wrong)

    def test_nothing_is_wrong_with_a_crowd(self):
        """One connection, and statements for more than a minute."""
        verdict = Run(plan_of_a_crowd()).verdict()
        assert [] == verdict.wrong
        assert any("DeadlineExceeded" in line for line in verdict.trace)

    def test_only_one_that_is_opened(self, monkeypatch):
        """After an outage each statement opens a connection, and two of them could at a time."""
        right = PendingAttempts.__init__
        monkeypatch.setattr(
            PendingAttempts,
            "__init__",
            lambda self, loop, lookout, _, *given: right(self, loop, lookout, 1, *given),
        )
        wrong = Run(plan_after_an_outage()).verdict().wrong
        assert any("was not served" in line for line in wrong)

    def test_nothing_is_wrong_after_an_outage(self):
        """Who waits for those that are opened has a turn, and is not served."""
        verdict = Run(plan_after_an_outage()).verdict()
        assert [] == verdict.wrong
        assert any("DeadlineExceeded" in line for line in verdict.trace)

    def test_a_key_that_is_sent_for_too_long(self, monkeypatch):
        """A router that is awake sends its write again after the servers have forgotten it."""
        monkeypatch.setattr(keyed, "trusted_seconds", lambda _: 1e9)
        wrong = Run(plan_of_long_sleep("keyed")).verdict().wrong
        assert any("done 2 times" in line for line in wrong)

    def test_nothing_is_wrong_with_a_long_sleep(self):
        """Without a key and with a deadline of hours it is sent for as long: a limit."""
        for kind, comes_late in (("keyed", False), ("update", True)):
            run = Run(plan_of_long_sleep(kind))
            assert [] == run.verdict().wrong
            assert comes_late == bool(run.set.belated)

    @pytest.mark.slow
    def test_nothing_is_wrong_where_retries_wait_long_for_their_place(self):
        """They are not sent any more when it is free at last."""
        for routers in (None, 0.0):
            plan = replace(plan_of_long_sleep("update", count=12), at_once=2, routers=routers)
            assert [] == Run(plan).verdict().wrong

    def test_a_router_that_is_never_lost(self, monkeypatch):
        """What was sent to it while it slept waits there, although the other one is well."""
        monkeypatch.setattr(PendingAttempt, "lose_server", lambda _: None)
        wrong = Run(plan_of_sleeping_routers(0)).verdict().wrong
        assert any("was not served" in line for line in wrong)

    def test_nothing_is_wrong_with_sleeping_routers(self):
        """One that is well is enough; while both of them sleep for minutes, nobody is served."""
        assert [] == Run(plan_of_sleeping_routers(0)).verdict().wrong
        verdict = Run(plan_of_sleeping_routers(0, 1)).verdict()
        assert [] == verdict.wrong
        assert any("DeadlineExceeded" in line for line in verdict.trace)

    def test_nothing_is_wrong_with_these(self):
        """Without the mistakes."""
        for kind in ("update", "insert_many"):
            for has_coroutines in (False, True):
                plan = plan_of(kind, Network(unanswered=0.5), refused=1)
                assert [] == Run(replace(plan, has_coroutines=has_coroutines)).verdict().wrong


class Stack(OrderedDict):
    """A lane whose last one is the first."""

    def __setitem__(self, attempt, context):
        super().__setitem__(attempt, context)
        self.move_to_end(attempt, last=False)


def plan_of(kind, network, *, count=30, refused=None):
    """Patient operations of one kind, one after the other, on a set that is well."""
    plan = Plan.of(1)
    operation = replace(
        plan.operations[0], kind=kind, deadline=60.0, cancelled=None, count=4, refused=refused
    )
    return replace(
        plan,
        operations=tuple(replace(operation, index=n, at=n * 0.1) for n in range(count)),
        faults=(),
        network=network,
        routers=None,
        closed_at=None,
        fail_fast_after=None,
        retry_budget=None,
    )


def plan_of_transfers(network, how, cancelled=None):
    """Transactions of all the ways that are asked for."""
    plan = plan_of("with_transaction", network, count=len(how))
    operations = zip(plan.operations, how, strict=True)
    return replace(
        plan,
        operations=tuple(replace(one, how=way, cancelled=cancelled) for one, way in operations),
    )


def plan_of_many_runs():
    """Transactions that are run again, over a network that loses little."""
    plan = plan_of_transfers(Network(opening=0.0, lost=0.05), range(8))
    operations = tuple(replace(one, kind="run_transaction") for one in plan.operations)
    return replace(plan, operations=operations)


def plan_of_a_lost_commit():
    """Two transfers from one account: of the first one the commit never arrives."""
    plan = plan_of_transfers(Network(opening=0.0, lost=0.09), [0, 0])
    first, second = (replace(one, kind="run_transaction") for one in plan.operations)
    operations = replace(first, deadline=0.5, resolved=None), replace(second, index=5, at=0.6)
    return replace(plan, seed=5, operations=operations)


async def ended(_):
    """Tell that a transaction has ended, whatever has become of it."""
    return True


def plan_of_reads():
    """Reads of what a majority has, and writes, at a primary that is cut off."""
    plan = plan_of("find_one", Network(opening=0.0), count=60)
    kinds = ("update", "find_one")
    return replace(
        plan,
        operations=tuple(
            replace(one, kind=kinds[one.index % 2], how=5, ordered=True, at=one.index * 0.2)
            for one in plan.operations
        ),
        faults=(Fault(3.0, "cut_off", None, 30.0),),
    )


def plan_without_a_primary():
    """Writes without a deadline through routers, two at once, while no member sees a majority."""
    plan = plan_of("update", Network(), count=40)
    return replace(
        plan,
        operations=tuple(
            replace(one, at=20 + one.at, deadline=None, resolved=None) for one in plan.operations
        ),
        faults=tuple(Fault(1.0, "cut_off", member, 2400.0) for member in (0, 1)),
        routers=0.0,
        connections=2,
        at_once=2,
    )


def plan_of_a_line():
    """Writes that travel one by one, every second with hours, of which nearly none is answered."""
    plan = plan_of("together", Network(opening=0.0, unanswered=0.95), count=120)
    operations = tuple(
        replace(one, deadline=(None, 7200.0)[one.index % 2], resolved=None, how=0)
        for one in plan.operations
    )
    return replace(plan, operations=operations, together=(1, 2**24))


def plan_of_deadlines(kind):
    """Writes without a server, or over a network that keeps the answers to itself.

    Of some of them the timers are early, by what is lost where seconds are rounded.
    """
    plan = plan_of(kind, Network(silent=1.0))
    return replace(
        plan,
        operations=tuple(
            replace(one, at=1.1 + one.at, deadline=1 / (1 + one.index), resolved=None)
            for one in plan.operations
        ),
        faults=() if kind == "update_many" else (Fault(0.5, "outage", None, 2400.0),),
    )


def plan_of_a_crowd():
    """Operations of several statements over one connection, which takes a while to be opened."""
    plan = plan_of("operation", Network(opening=1.0, unopened=0.3), count=150)
    return replace(plan, connections=1, at_once=10)


def plan_after_an_outage():
    """Operations of several statements, each of which opens a connection, of ten that may be."""
    plan = plan_of("operation", Network(opening=1.0, unopened=0.3), count=150)
    return replace(plan, connections=10, at_once=10, faults=(Fault(0.5, "outage", None, 12.0),))


def plan_of_long_sleep(kind, *, count=5):
    """Writes through routers, of which no answer comes, before a primary that nobody succeeds."""
    plan = plan_of(kind, Network(opening=0.0, unanswered=1.0), count=count)
    return replace(
        plan,
        operations=tuple(replace(one, at=1.17, deadline=7200.0) for one in plan.operations),
        faults=(
            Fault(1.187, "freeze", None, 2400.0),  # the first answers are lost by then
            *(Fault(1.2, "cut_off", member, 2300.0) for member in range(3)),
        ),
        routers=0.0,
    )


def plan_of_sleeping_routers(*asleep):
    """Inserts that travel together through two routers, some of which fall asleep."""
    return replace(
        plan_of("coalesced", Network(opening=0.0)),
        faults=tuple(Fault(1.0, "freeze_router", number, 2400.0) for number in asleep),
        routers=0.0,
    )


class TestClock:
    """Time that passes at once."""

    def test_a_day(self):
        """It takes no time, and all clocks agree about it."""
        loop = VirtualLoop()
        clocks = Clocks(loop)

        async def sleep():
            began = time.monotonic(), time.time()
            await asyncio.sleep(86_400)
            return time.monotonic() - began[0], time.time() - began[1]

        with clocks.in_force(1):
            assert (86_400, 86_400) == loop.run_until_complete(sleep())
        loop.close()

    def test_whoever_waits_for_ever_is_found(self):
        """Nothing is scheduled, and somebody waits."""
        loop = VirtualLoop()
        waiting = loop.create_future()
        with pytest.raises(StuckError):
            loop.run_until_complete(waiting)
        loop.close()
