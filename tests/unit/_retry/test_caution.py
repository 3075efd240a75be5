"""The warning of writes that can't be retried."""

from dataclasses import replace

import pytest

from aioretry._commands.command import CommandLimits
from aioretry._drivers.port import ServerKind, ServerView
from aioretry._retry.caution import Caution, why_not

LIMITS = CommandLimits(16 * 2**20, 48_000_000, 100_000)
WELL = ServerView(("a", 1), ServerKind.PRIMARY, 17, True, None, 0.0, LIMITS, lambda: 0, object())
ALONE = replace(WELL, kind=ServerKind.STANDALONE)
AMAZON = replace(WELL, max_wire_version=13, hosts={("a.docdb.amazonaws.com", 27017)})
ONCE = "each is sent once, and where its answer is lost its outcome stays unknown"


def lines(caplog):
    """What the log says."""
    return [(r.name, r.levelname, r.getMessage()) for r in caplog.records]


@pytest.mark.parametrize(
    "server",
    [
        WELL,
        replace(WELL, kind=ServerKind.MONGOS),
        replace(WELL, kind=ServerKind.LOAD_BALANCER, has_sessions=False, max_wire_version=0),
        replace(AMAZON, max_wire_version=25),
        replace(WELL, address=("a.mongo.cosmos.azure.com", 10255)),
    ],
)
def test_nothing_is_said(server, caplog):
    """Of what can retry writes, nor of what may be able to: that refuses them by itself."""
    Caution(retry_writes=True).look(server)
    assert [] == lines(caplog)


@pytest.mark.parametrize(
    ("server", "retry_writes", "why", "means", "advice"),
    [
        (ALONE, True, "a:1 is a standalone server", ONCE, "as a replica set"),
        (ALONE, True, "a:1 is a standalone server", ONCE, "(FerretDB), have retryWrites=false."),
        (ALONE, False, "the client has retryWrites=false", ONCE, "out, if this is MongoDB."),
        (WELL, False, "the client has retryWrites=false", ONCE, "out, if this is MongoDB."),
        (AMAZON, False, "the client has retryWrites=false", ONCE, "Have retryWrites=false"),
        (AMAZON, True, "a:1 is Amazon DocumentDB", "are refused", "Have retryWrites=false"),
        (
            replace(WELL, address=("a.mongocluster.cosmos.azure.com", 10260)),
            True,
            "a.mongocluster.cosmos.azure.com:10260 is Azure Cosmos DB for MongoDB (vCore)",
            "applied twice",
            "Have retryWrites=false",
        ),
        (replace(WELL, has_sessions=False), True, "a:1 has no sessions", ONCE, "4.2 or newer"),
        (replace(WELL, max_wire_version=5), True, "a:1 has no sessions", ONCE, "4.2 or newer"),
        (replace(WELL, kind=ServerKind.OTHER), True, "a:1 is no primary", ONCE, "directConnection"),
    ],
)
def test_what_is_said(server, retry_writes, why, means, advice, caplog):
    """Why, what it means, and what to do: once, however often it looks and at whatever."""
    caution = Caution(retry_writes=retry_writes)
    for _ in range(3):
        caution.look(server)
        caution.look(replace(server, source=object()))
    [(name, level, text)] = lines(caplog)
    assert ("aioretry", "WARNING") == (name, level)
    assert text.startswith(f"writes can't be retried: {why}")
    assert means in text
    assert advice in text


def test_one_that_comes_later(caplog):
    """It is said when the first write gets to it, which need not be the first write."""
    caution = Caution(retry_writes=True)
    caution.look(WELL)
    assert [] == lines(caplog)
    caution.look(replace(ALONE, source=object()))
    assert 1 == len(lines(caplog))


def test_a_server_is_judged_once(monkeypatch):
    """As long as the driver hears nothing new of it, looking costs a comparison."""
    judged = []

    def judge(server, **kwargs):
        judged.append(server)
        return why_not(server, **kwargs)

    monkeypatch.setattr("aioretry._retry.caution.why_not", judge)
    caution = Caution(retry_writes=True)
    other = replace(WELL, address=("b", 1), source=object())
    for _ in range(3):
        caution.look(WELL)
        caution.look(other)  # as routers are, in turn
    assert [WELL, other] == judged
