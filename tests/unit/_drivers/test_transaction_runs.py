"""Marks of runs, without a server: who has one, and for how long."""

import asyncio
import threading

import pytest
from pymongo.errors import InvalidOperation

from aioretry._drivers.transaction_runs import Runs, _marks


async def test_what_a_run_has_started_is_refused_after_it():
    """Tasks that a run has started are its own, and those of its caller are not."""
    runs = Runs()
    over = asyncio.Event()

    async def later():
        await over.wait()
        runs.require()

    with runs.run():
        left = asyncio.create_task(later())
        runs.require()
    runs.require()
    over.set()
    with pytest.raises(InvalidOperation):
        await left
    await asyncio.create_task(later())


async def test_of_nested_runs_of_two_sessions():
    """What an inner run has started is refused for either session, once its run has ended."""
    outer, inner, other = Runs(), Runs(), Runs()
    refused = []
    over = asyncio.Event()

    async def later():
        await over.wait()
        for runs in (outer, inner, other):
            try:
                runs.require()
            except InvalidOperation:
                refused.append(runs)

    with outer.run():
        with inner.run():
            left = asyncio.create_task(later())
        outer.require()
    over.set()
    await left
    assert [outer, inner] == refused


async def test_a_chain_of_runs_keeps_nothing():
    """A run that was started by a run that was started by a run has no marks of sessions gone."""
    lengths = []

    async def link(left):
        runs = Runs()
        with runs.run():
            lengths.append(len(_marks.get()))
            following = asyncio.create_task(link(left - 1)) if left else None
        del runs
        if following is not None:
            await following

    await link(20)
    assert [1] * 21 == lengths


def test_a_run_ends_after_what_is_being_sent():
    """While something is made ready to be sent, its run does not end."""
    runs = Runs()
    ready, ended = threading.Event(), threading.Event()

    def run():
        with runs.run():
            ready.set()
        ended.set()

    def make(thread):
        thread.start()
        assert ready.wait(10)
        assert not ended.is_set()
        return thread

    runs.make_ready(make, threading.Thread(target=run)).join()
    assert ended.is_set()
