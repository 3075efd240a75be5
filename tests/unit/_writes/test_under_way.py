"""What may begin, and what is still there."""

import asyncio
import contextvars
from types import SimpleNamespace

import pytest

from aioretry import ClientDraining, Outcome, outcome_of
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

    session, gone = Session(), Session()
    under_way.transactions[id(session)] = session
    under_way.transactions[id(gone)] = gone
    assert len(under_way.blocks()) == 2
    del gone
    assert under_way.blocks() == [session]
    session.in_transaction = False
    assert not under_way.blocks()
