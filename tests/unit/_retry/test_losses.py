"""One line of log for the loss of a server, with a loop whose time passes when it is told to."""

import logging

from aioretry import RetryScheduled
from aioretry._retry.losses import Losses
from aioretry.events import log_retries

A, B = ("a", 1), ("b", 2)


class Loop:
    """Notes what is to be called later."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay, function, *args, context):
        timer = Timer(delay, function, args)
        self.timers.append(timer)
        return timer

    def pass_time(self):
        """Let all timers run out."""
        timers, self.timers = self.timers, []
        for timer in timers:
            if not timer.is_cancelled:
                timer.function(*timer.args)


class Timer:
    """One call that is to be made."""

    def __init__(self, delay, function, args):
        self.delay, self.function, self.args = delay, function, args
        self.is_cancelled = False

    def cancel(self):
        self.is_cancelled = True


def retry(address=A, error="AutoReconnect", code=None, attempt=1):
    """What happened to a write."""
    return RetryScheduled("update_one", "db.c", address, error, code, attempt, 0.0)


def lines(caplog, level="WARNING"):
    """What the log says."""
    return [r.getMessage() for r in caplog.records if r.levelname == level and r.name == "aioretry"]


def test_one_line_for_a_server(caplog):
    """It says how many writes met the loss, and by which errors."""
    loop = Loop()
    losses = Losses(loop)
    for _ in range(9_998):
        loss = losses.add(retry(), 1, None)
    losses.add(retry(error="NotPrimaryError", code=91), 2, None)
    assert loss is losses.add(retry(attempt=2), 1, loss)
    assert [] == lines(caplog)
    loop.pass_time()
    (line,) = lines(caplog)
    assert line == (
        "retrying 10000 operations after failures on a:1 "
        "(AutoReconnect: 9999, NotPrimaryError 91: 1), first update_one on db.c"
    )
    assert retry() == caplog.records[0].aioretry


def test_each_server_has_its_own(caplog):
    """So has what fails without a server."""
    loop = Loop()
    losses = Losses(loop)
    for address in (A, B, None):
        losses.add(retry(address), 1, None)
    loop.pass_time()
    assert [
        f"retrying 1 operation after failures on {server} (AutoReconnect: 1), "
        "first update_one on db.c"
        for server in ("a:1", "b:2", "no server")
    ] == lines(caplog)


def test_the_next_moment_has_a_line_of_its_own(caplog):
    """What goes on is told of again."""
    loop = Loop()
    losses = Losses(loop)
    loss = None
    for _ in range(3):
        loss = losses.add(retry(), 1, loss)
        loop.pass_time()
    assert 3 == len(lines(caplog))


def test_a_client_that_is_closed_tells_at_once(caplog):
    """Nothing that was gathered is lost, and nothing is told twice."""
    loop = Loop()
    losses = Losses(loop)
    losses.add(retry(), 1, None)
    losses.close()
    assert 1 == len(lines(caplog))
    loop.pass_time()
    losses.close()
    assert 1 == len(lines(caplog))


def test_each_retry_is_told_at_debug(caplog):
    """The details are for those who want them."""
    with caplog.at_level(logging.DEBUG, "aioretry"):
        log_retries(retry())
    (line,) = lines(caplog, "DEBUG")
    assert line.startswith("retrying update_one on db.c: attempt 1 on a:1 failed with AutoRec")
    assert [] == lines(caplog)
