"""The model of storms: it does the work that it is given, and no more at once than it can."""

import sys
from dataclasses import replace

import pytest

from tests.benchmarks.storms import __main__ as storms
from tests.benchmarks.storms.model import Behaviour, Server, storm

SERVER = Server(cores=2, opening=0.01, writing=0.001, latency=0.005)
AT_ONCE = Behaviour("at once", heard_within=0.0)


def test_one_write():
    """It needs a connection, and goes over that."""
    seen = storm(1, 1, SERVER, AT_ONCE)
    assert (1, 1, 0) == (seen.opened, seen.done, seen.failed)
    assert seen.calm_after == pytest.approx(0.01 + 0.001 + 2 * 0.005)


def test_no_more_at_once_than_there_are_cores():
    """A hundred connections, for one write each."""
    seen = storm(100, 1, SERVER, AT_ONCE)
    work = 100 * (SERVER.opening + SERVER.writing)
    assert work / SERVER.cores <= seen.calm_after <= work / SERVER.cores + 0.05
    assert seen.most_asked == 1000
    assert seen.longest_queue == pytest.approx(100 * SERVER.opening / SERVER.cores)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_pool(most):
    """A client opens no more connections than it may have, and all writes go over those."""
    seen = storm(10, 8, SERVER, replace(AT_ONCE, most_at_once=most, opened_at_once=9))
    assert (10 * most, 80) == (seen.opened, seen.done)


def test_together():
    """All of a client go in one command, over one connection."""
    seen = storm(10, 8, SERVER, replace(AT_ONCE, travel_together=True))
    assert (10, 80) == (seen.opened, seen.done)
    assert seen.most_writes * 0.1 <= 10


def test_jitter():
    """It spreads what is asked for."""
    calm = storm(1000, 1, SERVER, replace(AT_ONCE, jitter=10.0, retries=99, lasts=60.0))
    rush = storm(1000, 1, SERVER, replace(AT_ONCE, retries=99, lasts=60.0))
    assert calm.longest_queue < rush.longest_queue / 4
    assert calm.most_asked < rush.most_asked / 10


def test_too_late():
    """Whoever gets no connection in time tries again, or gives up; nothing is lost sight of."""
    impatient = replace(AT_ONCE, patience=2.0)
    seen = storm(1000, 1, SERVER, impatient)
    assert seen.failed
    assert seen.done + seen.failed == 1000
    stubborn = storm(1000, 1, SERVER, replace(impatient, retries=99, lasts=60.0))
    assert (1000, 0) == (stubborn.done, stubborn.failed)
    assert stubborn.opened > 1000


def test_the_same_each_time():
    how = replace(AT_ONCE, jitter=1.0)
    assert storm(50, 3, SERVER, how) == storm(50, 3, SERVER, how)
    assert storm(50, 3, SERVER, how) != storm(50, 3, SERVER, how, seed=2)


def test_the_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["storms", "--clients", "3", "--writes", "2"])
    storms.main()
    printed = capsys.readouterr().out
    assert "3 clients with 2 writes each" in printed
    assert all(how.name in printed for how in storms.BEHAVIOURS)
