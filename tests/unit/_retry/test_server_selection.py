"""Choosing a server, without one, and waiting for one."""

import asyncio

from aioretry._commands.command import CommandLimits
from aioretry._drivers.port import ServerKind, ServerView, TopologyView
from aioretry._retry.lookout import Lookout
from aioretry._retry.server_selection import Selection, choose

LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)


def view(*servers):
    """A deployment with these servers: name, round trip in seconds, operations under way."""
    return TopologyView(
        {
            (name, 1): ServerView(
                (name, 1),
                ServerKind.MONGOS,
                17,
                True,
                None,
                rtt,
                LIMITS,
                lambda busy=busy: busy,
                None,
            )
            for name, rtt, busy in servers
        },
        0.015,
        None,
    )


class TestChoosing:
    def test_nobody(self):
        """Without servers there is nothing to choose."""
        assert choose(view(), frozenset()) is None

    def test_the_only_one_even_if_it_failed(self):
        """If all are deprioritized, any may be used."""
        only = view(("a", 0.0, 0))
        assert ("a", 1) == choose(only, frozenset({("a", 1)})).address
        both = view(("a", 0.0, 0), ("b", 0.0, 0))
        assert choose(both, frozenset(both.writable)) is not None

    def test_never_a_deprioritized_one_while_there_is_another(self):
        """Fifty choices, none of them the server to avoid, however slow the other is."""
        both = view(("a", 0.001, 0), ("b", 5.0, 99))
        assert {("b", 1)} == {choose(both, frozenset({("a", 1)})).address for _ in range(50)}

    def test_the_near_ones(self):
        """Servers outside the latency window are not chosen."""
        three = view(("a", 0.001, 0), ("b", 0.010, 0), ("far", 0.017, 0))
        assert {("a", 1), ("b", 1)} == {choose(three, frozenset()).address for _ in range(200)}

    def test_the_less_busy_one(self):
        """Of two, the one with fewer operations under way."""
        both = view(("a", 0.001, 5), ("b", 0.001, 4))
        assert {("b", 1)} == {choose(both, frozenset()).address for _ in range(50)}


class Driver:
    """Knows no server, and is made to look for one."""

    def __init__(self):
        self.is_probing = asyncio.Event()

    def view(self):
        return TopologyView({}, 0.015, None)

    def start_probing(self):
        self.is_probing.set()

    def stop_probing(self):
        self.is_probing.clear()


async def test_one_that_ends_ends_nobody_elses_search():
    """Whoever still waits has the driver look again, which one who waited for less has ended."""
    driver, loop = Driver(), asyncio.get_running_loop()
    lookout = Lookout(driver, loop)
    reads, writes = Selection(driver, loop, lookout), Selection(driver, loop, lookout)
    waits = asyncio.create_task(writes.wait_for_server(loop.time() + 60))
    assert not await reads.wait_for_server(loop.time() + 0.01)
    await driver.is_probing.wait()
    waits.cancel()
    await asyncio.wait([waits])
    assert not driver.is_probing.is_set()
