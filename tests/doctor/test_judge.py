"""What the doctor says of facts: nobody is asked."""

import json
from dataclasses import replace

import pytest

from aioretry._commands.look_alikes import look_alike_of
from aioretry._doctor import about_client
from aioretry._doctor.facts import (
    Absent,
    ClientFacts,
    Clock,
    Facts,
    Member,
    SetConfig,
    Unknown,
)
from aioretry._doctor.finding import Level
from aioretry._doctor.judge import Answer, judge
from aioretry._doctor.report import json_of, text_of
from aioretry._retry.command_execution import trusted_seconds

NOT_ALLOWED = Unknown("needs the role clusterMonitor")
CLIENT = ClientFacts(
    retry_writes=True,
    write_concern={},
    timeout=None,
    server_selection_timeout=30,
    connect_timeout=20.0,
    socket_timeout=None,
    max_pool_size=100,
    logs_in=False,
    pymongo=(4, 18, 2),
)
PRIMARY = Member(
    address="a:1",
    role="primary",
    version="6.0.27",
    wire_version=17,
    session_minutes=30,
    max_document_bytes=16 * 2**20,
    max_message_bytes=48_000_000,
    max_batch=100_000,
    clock=Clock(0.01, 0.002),
    storage_engine="wiredTiger",
    transaction_lifetime=60.0,
    record_lifetime=30,
    max_sessions=1_000_000,
    active_sessions=4,
    oplog_hours=48.0,
)
SECONDARY = replace(PRIMARY, address="b:1", role="secondary")
MONGOS = replace(PRIMARY, role="mongos", storage_engine=NOT_ALLOWED, oplog_hours=NOT_ALLOWED)
CONFIG = SetConfig(voting=3, arbiters=0, electable=3, hidden=0, majority_journals=True)
WELL = Facts(
    CLIENT,
    "replica set",
    set_name="rs0",
    members=(PRIMARY, SECONDARY),
    default_write_concern={"w": "majority"},
    config=CONFIG,
)
ALONE = replace(PRIMARY, role="standalone", session_minutes=30)


def with_client(**changes):
    """The good deployment, by another connection string."""
    return replace(WELL, client=replace(CLIENT, **changes))


def with_primary(**changes):
    """The good deployment, with another primary."""
    return replace(WELL, members=(replace(PRIMARY, **changes), SECONDARY))


PROBLEMS = {
    "standalone": (Facts(CLIENT, "standalone", members=(ALONE,)), "topology"),
    "no sessions": (with_primary(session_minutes=None), "sessions"),
    "too old": (with_primary(wire_version=5), "wire-version"),
    "MMAPv1": (with_primary(storage_engine="mmapv1"), "storage-engine"),
    "retryWrites=false": (with_client(retry_writes=False), "retry-writes"),
    "w: 0": (with_client(write_concern={"w": 0}), "write-concern"),
    "nobody takes writes": (Facts(CLIENT, "unknown", members=(PRIMARY,)), "topology"),
}
WARNINGS = {
    "w: 1 in the URI": (with_client(write_concern={"w": 1}), "write-concern"),
    "only j in the URI, w: 1 by default": (
        replace(with_client(write_concern={"j": True}), default_write_concern={"w": 1}),
        "write-concern",
    ),
    "w: 2 of 5": (
        replace(with_client(write_concern={"w": 2}), config=replace(CONFIG, voting=5)),
        "write-concern",
    ),
    "a majority without journals": (
        with_client(write_concern={"w": "majority", "j": False}),
        "write-concern",
    ),
    "one that can be elected": (
        replace(WELL, config=replace(CONFIG, electable=1)),
        "electable-members",
    ),
    "w: 1 by default": (replace(WELL, default_write_concern={"w": 1}), "write-concern"),
    "no primary": (replace(WELL, members=(SECONDARY,)), "topology"),
    "short sessions": (with_primary(session_minutes=5), "sessions"),
    "direct connection": (replace(WELL, is_direct=True), "direct-connection"),
    "a member is away": (replace(WELL, absent=(Absent("c:1", "refused"),)), "member-absent"),
    "two versions": (with_primary(version="5.0.4"), "versions"),
    "two members": (replace(WELL, config=replace(CONFIG, voting=2)), "voting-members"),
    "an arbiter": (replace(WELL, config=replace(CONFIG, arbiters=1)), "arbiters"),
    "no journals": (
        replace(WELL, config=replace(CONFIG, majority_journals=False)),
        "majority-journals",
    ),
    "a wrong clock": (with_primary(clock=Clock(-60.0, 0.01)), "clock"),
    "clocks that differ": (
        replace(
            WELL,
            members=(
                replace(PRIMARY, clock=Clock(1.9, 0.01)),
                replace(SECONDARY, clock=Clock(-1.9, 0.01)),
            ),
        ),
        "clock-skew",
    ),
    "many sessions": (with_primary(active_sessions=900_000), "session-count"),
    "timeoutMS=0": (with_client(timeout=0), "deadline"),
    "a socket timeout": (with_client(socket_timeout=3.0), "socket-timeout"),
    "an old PyMongo": (with_client(pymongo=(4, 18, 1)), "pymongo"),
    "another aioretry": (with_client(has_other=True), "installed"),
    "an option that is ignored": (with_client(ignored=("Unknown option: x",)), "option-ignored"),
    "a short selection": (with_client(server_selection_timeout=3), "server-selection"),
}
UNKNOWNS = {
    "default write concern": (replace(WELL, default_write_concern=NOT_ALLOWED), "write-concern"),
    "storage engine": (with_primary(storage_engine=NOT_ALLOWED), "storage-engine"),
    "the rest of a write concern": (
        replace(with_client(write_concern={"j": True}), default_write_concern=NOT_ALLOWED),
        "write-concern",
    ),
    "configuration": (replace(WELL, config=NOT_ALLOWED), "set-config"),
    "version": (replace(WELL, members=(replace(PRIMARY, version=NOT_ALLOWED),)), "versions"),
    "oplog": (replace(WELL, members=(replace(PRIMARY, oplog_hours=NOT_ALLOWED),)), "oplog"),
}


REFUSING, PERHAPS = (
    look_alike_of(["a.docdb.amazonaws.com"], wire_version) for wire_version in (13, 25)
)
FERRET = look_alike_of(["a"], 21, {}, {"ferretdb": {}})


def findings(facts, level):
    """The ids of what is said at one level."""
    return [finding.id for finding in judge(facts).findings if finding.level is level]


def test_a_good_deployment():
    """Writes can be retried, and there is nothing to change."""
    judgement = judge(WELL)
    assert Answer.CAN is judgement.answer
    assert {Level.OK, Level.NOTE} == {finding.level for finding in judgement.findings}
    assert not [finding for finding in judgement.findings if finding.advice]


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name):
    """Each makes it impossible."""
    facts, finding = PROBLEMS[name]
    assert [finding] == findings(facts, Level.PROBLEM)
    assert Answer.CANNOT is judge(facts).answer


@pytest.mark.parametrize("name", WARNINGS)
def test_warnings(name):
    """Each is a warning by itself, with advice."""
    facts, finding = WARNINGS[name]
    assert [finding] == findings(facts, Level.WARNING)
    judgement = judge(facts)
    assert Answer.CAN_WITH_WARNINGS is judgement.answer
    assert all(each.advice for each in judgement.findings if each.level is Level.WARNING)


@pytest.mark.parametrize("name", UNKNOWNS)
def test_what_is_unknown_is_said(name):
    """It says why, and makes nothing worse."""
    facts, finding = UNKNOWNS[name]
    assert [finding] == findings(facts, Level.UNKNOWN)
    assert Answer.CAN is judge(facts).answer
    assert "needs the role clusterMonitor" in text_of(facts, judge(facts))


@pytest.mark.parametrize(
    "concern", [{"j": True}, {"wtimeout": 5000}, {"w": 2}, {"w": 3}, {"w": "majority", "j": True}]
)
def test_good_write_concerns(concern):
    """The w that is not named is the deployment's default; a count may be a majority."""
    facts = with_client(write_concern=concern)
    assert "write-concern" in findings(facts, Level.OK)
    assert Answer.CAN is judge(facts).answer


@pytest.mark.parametrize("w", [{"dc": 1}, "disks"])
def test_write_concerns_by_tags(w):
    """Nobody knows whether they are majorities; as a default too."""
    for facts in (
        replace(WELL, default_write_concern={"w": w}),
        with_client(write_concern={"w": w}),
    ):
        assert ["write-concern"] == findings(facts, Level.UNKNOWN)
        assert Answer.CAN is judge(facts).answer


def test_hidden_members():
    """They are noted, because nobody asked them."""
    facts = replace(WELL, config=replace(CONFIG, hidden=1))
    assert "hidden-members" in findings(facts, Level.NOTE)
    assert Answer.CAN is judge(facts).answer


def test_routers():
    """Of a sharded cluster the routers are judged, and the shards are not forgotten."""
    facts = Facts(
        CLIENT, "sharded", members=(MONGOS,), default_write_concern={"w": "majority"}, config=None
    )
    assert Answer.CAN is judge(facts).answer
    assert "shards" in findings(facts, Level.NOTE)


def test_unreachable():
    """Then nothing else is said."""
    facts = Facts(CLIENT, "unknown", problem="refused")
    judgement = judge(facts)
    assert (Answer.UNREACHABLE, 1) == (judgement.answer, len(judgement.findings))


@pytest.mark.parametrize("error", [0.5, 100.0])
def test_a_clock_is_judged_by_what_is_sure(error):
    """A slow answer makes no wrong clock."""
    facts = with_primary(clock=Clock(2.2, error))
    assert [] == findings(facts, Level.WARNING)


def test_look_alikes():
    """One that can't retry writes is a problem, one that may is a warning; neither is MongoDB."""
    facts = with_primary(look_alike=REFUSING)
    assert ["look-alike"] == findings(facts, Level.PROBLEM)
    assert "a:1: primary, Amazon DocumentDB, as MongoDB 6.0.27" in text_of(facts, judge(facts))
    assert "MongoDB 6.0.27" not in [finding.text for finding in judge(facts).findings]
    assert "resolving" not in findings(facts, Level.NOTE)  # nobody knows for how long
    told = json.loads(json_of(facts, judge(facts)))
    assert [REFUSING.name, None] == [
        each["look_alike"] and each["look_alike"]["name"] for each in told["deployment"]["members"]
    ]
    facts = with_primary(look_alike=PERHAPS)
    assert ["look-alike"] == findings(facts, Level.WARNING)
    assert Answer.CAN_WITH_WARNINGS is judge(facts).answer


def test_advice_that_would_be_wrong_for_a_look_alike():
    """It is not told to become a replica set, nor to let writes be retried."""
    member = replace(ALONE, look_alike=FERRET)
    client = replace(CLIENT, retry_writes=False)
    facts = Facts(client, "standalone", members=(member,))
    problems = [each for each in judge(facts).findings if each.level is Level.PROBLEM]
    assert {"topology": None, "look-alike": FERRET.advice, "retry-writes": None} == {
        each.id: each.advice for each in problems
    }


def test_json_and_text():
    """Both tell the same findings, the worst first."""
    facts, _ = WARNINGS["an arbiter"]
    judgement = judge(facts)
    told = json.loads(json_of(facts, judgement))
    names = {"schema", "verdict", "exit_code", "findings", "deployment", "client"}
    assert names == set(told)
    assert (1, "can_with_warnings", 1) == (told["schema"], told["verdict"], told["exit_code"])
    assert "arbiters" == told["findings"][0]["id"]
    text = text_of(facts, judgement)
    assert all(finding["text"] in text for finding in told["findings"])
    unknown, _ = UNKNOWNS["configuration"]
    told = json.loads(json_of(unknown, judge(unknown)))
    assert {"unknown": NOT_ALLOWED.why} == told["deployment"]["config"]


def test_it_relies_on_transaction_ids_as_long_as_writes_do():
    """What it says of resolving holds of what resolves."""
    assert about_client._TRUSTED_MINUTES * 60 == trusted_seconds(None) == trusted_seconds(30)
