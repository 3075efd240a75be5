"""What may begin, and what is still there."""

import asyncio
import contextvars
from types import SimpleNamespace

import pytest

from aioretry import ClientDraining, Outcome, outcome_of
from aioretry._writes import under_way as under_way_module
from aioretry._writes.under_way import UnderWay, Whole


def refuse(under_way, session=None):
    """See that nothing may begin."""
    with pytest.raises(ClientDraining) as excinfo:
        under_way.admit(session)
    assert outcome_of(excinfo.value) is Outcome.NOT_APPLIED


@pytest.fixture
def under_way():
    return UnderWay()


def test_all_may_begin(under_way):
    """Nothing is kept of it."""
    under_way.admit()
    under_way.admit(SimpleNamespace(in_transaction=True))
    assert not under_way.blocks()


def test_nothing_new(under_way):
    """Only transactions go on, whose sessions may belong to a client that is a proxy of ours."""
    under_way.is_draining = True
    refuse(under_way)
    refuse(under_way, SimpleNamespace(in_transaction=False))
    refuse(under_way, object())
    under_way.admit(SimpleNamespace(in_transaction=True))


def test_a_block_goes_on(under_way):
    """What it does next may begin until it ends."""
    with Whole():
        under_way.admit()
        under_way.is_draining = True
        under_way.admit()
        assert len(under_way.blocks()) == 1
    assert not under_way.blocks()
    refuse(under_way)


def test_a_block_that_had_not_begun(under_way):
    """It has done nothing with this client: it is refused."""
    other = UnderWay()
    with Whole():
        other.admit()
        under_way.is_draining = True
        refuse(under_way)


def test_blocks_in_each_other(under_way):
    """The inner one is there as long as the outer one began before."""
    with Whole():
        under_way.admit()
        under_way.is_draining = True
        with Whole():
            under_way.admit()
        under_way.admit()
    refuse(under_way)


def test_all_blocks_around_are_of_the_client(under_way):
    """The outer one goes on when the inner one, in which all has begun, has ended."""
    with Whole():
        with Whole():
            under_way.admit()
        under_way.is_draining = True
        under_way.admit()
        with Whole():
            under_way.admit()
        assert len(under_way.blocks()) == 1
    refuse(under_way)


def test_an_inner_block_outlives_the_outer_one(under_way):
    """It was begun in it, and by a task of its own goes on without it."""
    outer, inner = Whole(), Whole()
    outer.__enter__()
    under_way.admit()
    inner.__enter__()
    under_way.admit()
    under_way.is_draining = True
    outer.__exit__()
    under_way.admit()
    assert under_way.blocks() == [inner]
    inner.__exit__()
    refuse(under_way)


def test_a_block_that_has_begun(under_way):
    """It goes on though it has done nothing yet; another one may not begin."""
    with under_way.begin():
        under_way.is_draining = True
        under_way.admit()
    with pytest.raises(ClientDraining):
        under_way.begin()
    with under_way.end():
        under_way.admit()
    refuse(under_way)


def test_what_lasts(under_way):
    """It ends though its block goes on."""
    with under_way.begin():
        under_way.go_on()
        under_way.is_draining = True
        under_way.admit()
        with pytest.raises(ClientDraining):
            under_way.go_on()


def test_nothing_is_kept_of_blocks(under_way):
    """However many begin in tasks of each other, or are left in another order."""

    def generation(number):
        with Whole():
            under_way.admit()
            left = contextvars.copy_context()
        if number:
            left.run(generation, number - 1)
        return left

    def wholes():
        with Whole():
            return len(under_way_module._wholes.get())

    assert generation(100).run(wholes) == 1
    for _ in range(100):
        first, second = Whole(), Whole()
        first.__enter__()
        second.__enter__()
        first.__exit__()
        under_way.is_draining = False
        under_way.admit()
        under_way.is_draining = True
        under_way.admit()
        second.__exit__()
    assert not under_way_module._wholes.get()


def test_what_is_left(under_way):
    """Once it was given up nothing may begin, and the first word counts."""
    operation, session = object(), SimpleNamespace(in_transaction=True)
    with Whole() as whole:
        under_way.admit()
        under_way.operations.add(operation)
        under_way.is_draining = True
        under_way.leave(2)
        refuse(under_way)
        refuse(under_way, session)
    assert whole.has_ended
    under_way.operations.clear()
    under_way.leave(0)
    assert (under_way.left, under_way.blocks_left) == ([operation], 3)


def test_a_task_that_is_left_running(under_way):
    """It has the block's context, and is no part of it any more; nothing waits for it."""
    with Whole():
        under_way.admit()
        left = contextvars.copy_context()
    left.run(under_way.admit)
    assert not under_way.blocks()
    under_way.is_draining = True
    left.run(refuse, under_way)


async def test_a_block_that_is_left_in_another_task(under_way):
    """It ends all the same."""
    whole = Whole()

    async def enter():
        whole.__enter__()
        under_way.admit()

    await asyncio.create_task(enter())
    assert len(under_way.blocks()) == 1
    whole.__exit__(None, None, None)
    assert not under_way.blocks()


def test_transactions(under_way):
    """One that is in progress is a block; a session that is gone has none."""

    class Session:
        in_transaction = True
        __hash__ = None

    session, gone, inner = Session(), Session(), Session()
    under_way.begin_transaction(session)
    under_way.begin_transaction(gone)
    with Whole():
        under_way.begin_transaction(inner)
        assert len(under_way.blocks()) == 3  # the block and its transaction are one
        assert len(under_way.transactions()) == 3
    assert len(under_way.blocks()) == 3
    del inner
    assert len(under_way.blocks()) == 2
    del gone
    assert under_way.blocks() == [session]
    session.in_transaction = False
    assert not under_way.blocks()
    under_way.is_draining = True
    with pytest.raises(ClientDraining):
        under_way.begin_transaction(session)
