"""Relays of an outbox meet something at each of their commands, in the simulated world."""

import itertools
import logging

import pytest

from tests.simulation.relays import BLOWS, World


@pytest.fixture(autouse=True)
def quiet():
    """Leases that are lost are no news here."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.sample(4)
@pytest.mark.parametrize("has_coroutines", [False, True])
@pytest.mark.parametrize("blow", BLOWS.values(), ids=[*BLOWS])
def test_each_command(blow, has_coroutines):
    """Nothing is lost, order is kept, what is told twice has one id, and what is dead is so."""
    for at in itertools.count(1):
        world = World(blow, at, has_coroutines)
        world.run()
        assert [] == [*world.wrong()], at
        if not world.was_struck:
            break
    assert at > 50
