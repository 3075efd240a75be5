"""The runner of the official tests: what it does not understand, or what differs, fails."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure, WTimeoutError

from tests.spec.data import VARIABLE, OfficialTest, official_tests, parsed
from tests.spec.deployments import Deployment
from tests.spec.failures import check_error
from tests.spec.kinds import KINDS
from tests.spec.matching import MISSING, MismatchError, match
from tests.spec.runner import Runner
from tests.spec.sdist import FetchError
from tests.spec.unsupported import UnsupportedError, what_driver_lacks

FAIL_ONCE = {
    "name": "failPoint",
    "object": "testRunner",
    "arguments": {
        "client": "client0",
        "failPoint": {
            "configureFailPoint": "failCommand",
            "mode": {"times": 1},
            "data": {"failCommands": ["insert"], "closeConnection": True},
        },
    },
}
INSERT = {
    "name": "insertOne",
    "object": "collection0",
    "arguments": {"document": {"_id": 1}},
    "expectResult": {"insertedId": 1},
}
STARTED = {
    "commandStartedEvent": {
        "command": {"insert": "c", "lsid": {"$$exists": True}, "txnNumber": {"$$type": "long"}},
        "commandName": "insert",
        "databaseName": "spec-runner",
    }
}
FILE = {
    "description": "a retried insert",
    "schemaVersion": "1.4",
    "runOnRequirements": [{"minServerVersion": "4.0", "topologies": ["replicaset"]}],
    "createEntities": [
        {
            "client": {
                "id": "client0",
                "useMultipleMongoses": False,
                "observeEvents": ["commandStartedEvent"],
            }
        },
        {"database": {"id": "database0", "client": "client0", "databaseName": "spec-runner"}},
        {"collection": {"id": "collection0", "database": "database0", "collectionName": "c"}},
    ],
    "initialData": [{"databaseName": "spec-runner", "collectionName": "c", "documents": []}],
    "tests": [
        {
            "description": "once",
            "operations": [FAIL_ONCE, INSERT],
            "expectEvents": [{"client": "client0", "events": [STARTED, STARTED]}],
            "outcome": [
                {
                    "databaseName": "spec-runner",
                    "collectionName": "c",
                    "documents": [{"_id": 1}],
                }
            ],
        }
    ],
}

UNKNOWN: dict[str, tuple[list[Any], Any]] = {
    "schema version": (["schemaVersion"], "2.0"),
    "newer schema version": (["schemaVersion"], "1.99"),
    "field of the file": (["createThings"], []),
    "field of a test": (["tests", 0, "expectLogMessages"], []),
    "entity": (["createEntities", 2], {"thread": {"id": "thread0"}}),
    "field of a client": (["createEntities", 0, "client", "serverApi"], {"version": "1"}),
    "field of a database": (["createEntities", 1, "database", "databaseThings"], {}),
    "database option": (["createEntities", 1, "database", "databaseOptions"], {"x": 1}),
    "field of a collection": (["createEntities", 2, "collection", "encrypted"], True),
    "collection option": (["createEntities", 2, "collection", "collectionOptions"], {"x": 1}),
    "observed event": (["createEntities", 0, "client", "observeEvents", 0], "somethingEvent"),
    "operation": (["tests", 0, "operations", 1, "name"], "insertTwo"),
    "operation of the runner": (["tests", 0, "operations", 0, "name"], "assertSomething"),
    "object": (["tests", 0, "operations", 1, "object"], "collection7"),
    "argument": (["tests", 0, "operations", 1, "arguments", "commentary"], "x"),
    "argument of another method": (["tests", 0, "operations", 1, "arguments", "upsert"], True),
    "argument of the runner's": (["tests", 0, "operations", 0, "arguments", "comment"], "x"),
    "field of an operation": (["tests", 0, "operations", 1, "saveErrorAsEntity"], "x"),
    "operator": (["tests", 0, "operations", 1, "expectResult", "insertedId"], {"$$matchesX": 1}),
    "type": (
        ["tests", 0, "expectEvents", 0, "events", 0, "commandStartedEvent", "command", "lsid"],
        {"$$type": "lsid"},
    ),
    "event": (["tests", 0, "expectEvents", 0, "events", 0], {"somethingEvent": {}}),
    "field of an event": (
        ["tests", 0, "expectEvents", 0, "events", 0, "commandStartedEvent", "hasServiceId"],
        False,
    ),
    "type of events": (["tests", 0, "expectEvents", 0, "eventType"], "sdam"),
    "field of expected events": (["tests", 0, "expectEvents", 0, "sometimes"], True),
    "client of events": (["tests", 0, "expectEvents", 0, "client"], "client7"),
    "field of the outcome": (["tests", 0, "outcome", 0, "indexes"], []),
}
WRONG: dict[str, tuple[list[Any], Any]] = {
    "result": (["tests", 0, "operations", 1, "expectResult", "insertedId"], 2),
    "field of the result": (["tests", 0, "operations", 1, "expectResult", "insertedCount"], 1),
    "no error": (["tests", 0, "operations", 1, "expectError"], {"isError": True}),
    "an event less": (["tests", 0, "expectEvents", 0, "events"], [STARTED]),
    "an event more": (["tests", 0, "expectEvents", 0, "events"], [STARTED] * 3),
    "name of an event": (
        ["tests", 0, "expectEvents", 0, "events", 1, "commandStartedEvent", "commandName"],
        "update",
    ),
    "number": (
        ["tests", 0, "expectEvents", 0, "events", 0, "commandStartedEvent", "command", "txnNumber"],
        {"$$exists": False},
    ),
    "outcome": (["tests", 0, "outcome", 0, "documents"], []),
    "more failures than retries": (
        ["tests", 0, "operations", 0, "arguments", "failPoint", "mode", "times"],
        2,
    ),
}
IN_TRANSACTION = {
    "insert": "c",
    "lsid": {"$$sessionLsid": "session0"},
    "startTransaction": True,
    "autocommit": False,
}
COMMITTED = {"commitTransaction": 1, "lsid": {"$$sessionLsid": "session0"}}
INSERT_IN_SESSION = {**INSERT, "arguments": {"document": {"_id": 1}, "session": "session0"}}
TRANSACTION = {
    **FILE,
    "createEntities": [
        *FILE["createEntities"],
        {"session": {"id": "session0", "client": "client0"}},
        {"session": {"id": "session1", "client": "client0"}},
    ],
    "tests": [
        {
            "description": "an insert in a transaction",
            "operations": [
                {
                    "name": "withTransaction",
                    "object": "session0",
                    "arguments": {"callback": [INSERT_IN_SESSION]},
                },
                {
                    "name": "assertSessionTransactionState",
                    "object": "testRunner",
                    "arguments": {"session": "session0", "state": "committed"},
                },
                {
                    "name": "assertSameLsidOnLastTwoCommands",
                    "object": "testRunner",
                    "arguments": {"client": "client0"},
                },
                {
                    "name": "assertSessionNotDirty",
                    "object": "testRunner",
                    "arguments": {"session": "session0"},
                },
                {
                    "name": "assertSessionUnpinned",
                    "object": "testRunner",
                    "arguments": {"session": "session0"},
                },
                {
                    "name": "assertCollectionExists",
                    "object": "testRunner",
                    "arguments": {"databaseName": "spec-runner", "collectionName": "c"},
                },
                {
                    "name": "assertIndexExists",
                    "object": "testRunner",
                    "arguments": {
                        "databaseName": "spec-runner",
                        "collectionName": "c",
                        "indexName": "_id_",
                    },
                },
            ],
            "expectEvents": [
                {
                    "client": "client0",
                    "events": [
                        {"commandStartedEvent": {"command": IN_TRANSACTION}},
                        {"commandStartedEvent": {"command": COMMITTED}},
                    ],
                }
            ],
        }
    ],
}
WRONG_IN_TRANSACTION: dict[str, tuple[list[Any], Any]] = {
    "result in the callback": (
        ["tests", 0, "operations", 0, "arguments", "callback", 0, "expectResult"],
        {"insertedId": 2},
    ),
    "result in a callback that is to fail": (
        ["tests", 0, "operations", 0],
        {
            "name": "withTransaction",
            "object": "session0",
            "arguments": {"callback": [INSERT_IN_SESSION | {"expectResult": {"insertedId": 2}}]},
            "expectError": {"isError": True},
        },
    ),
    "session": (
        ["tests", 0, "expectEvents", 0, "events", 1, "commandStartedEvent", "command", "lsid"],
        {"$$sessionLsid": "session1"},
    ),
    "state": (["tests", 0, "operations", 1, "arguments", "state"], "aborted"),
    "ids": (["tests", 0, "operations", 2, "name"], "assertDifferentLsidOnLastTwoCommands"),
    "dirty": (["tests", 0, "operations", 3, "name"], "assertSessionDirty"),
    "pinned": (["tests", 0, "operations", 4, "name"], "assertSessionPinned"),
    "collection": (["tests", 0, "operations", 5, "arguments", "collectionName"], "d"),
    "no collection": (["tests", 0, "operations", 5, "name"], "assertCollectionNotExists"),
    "index": (["tests", 0, "operations", 6, "arguments", "indexName"], "x"),
    "no index": (["tests", 0, "operations", 6, "name"], "assertIndexNotExists"),
}


def changed(path: list[Any], value: Any, file: dict[str, Any] = FILE) -> dict[str, Any]:
    """A file with one thing changed."""
    content = copy.deepcopy(file)
    place: Any = content
    for step in path[:-1]:
        place = place[step]
    if isinstance(place, list) and path[-1] == len(place):
        place.append(value)
    else:
        place[path[-1]] = value
    return content


async def run(content: dict[str, Any], deployment: Deployment) -> None:
    """Run the only test of a file."""
    [test] = parsed(content, "own", "file")
    with MongoClient(deployment.uri_of_one) as internal:
        await Runner(test, deployment, KINDS["aioretry"], internal).run()


async def test_what_is_right_passes(official_set: Deployment) -> None:
    """Without a change the test passes, on which the others are built."""
    await run(FILE, official_set)


@pytest.mark.parametrize("what", UNKNOWN)
async def test_what_is_unknown_fails(what: str, official_set: Deployment) -> None:
    """A test is not passed over what it says and the runner does not know."""
    with pytest.raises(UnsupportedError):
        await run(changed(*UNKNOWN[what]), official_set)


@pytest.mark.parametrize("what", WRONG)
async def test_what_differs_fails(what: str, official_set: Deployment) -> None:
    """Each thing that a test may check is checked."""
    with pytest.raises(MismatchError):
        await run(changed(*WRONG[what]), official_set)


@pytest.mark.parametrize("what", WRONG_IN_TRANSACTION)
async def test_what_differs_in_a_transaction_fails(what: str, official_set: Deployment) -> None:
    """The same of sessions and transactions; unchanged, that test passes."""
    await run(TRANSACTION, official_set)
    with pytest.raises(MismatchError):
        await run(changed(*WRONG_IN_TRANSACTION[what], TRANSACTION), official_set)


@pytest.mark.parametrize(
    ("requirement", "lack"),
    [
        ({"minServerVersion": "99.0"}, "a server from 99.0 on"),
        ({"maxServerVersion": "4.0"}, "a server up to 4.0"),
        ({"topologies": ["sharded"]}, "one of sharded"),
        ({"serverless": "require"}, "a serverless deployment"),
        ({"auth": False}, "a deployment where nobody can log in"),
        ({"minServerVersion": "4.0", "maxServerVersion": "6.0", "auth": True}, None),
    ],
)
def test_requirements(requirement: dict[str, Any], lack: str | None) -> None:
    """Only what a test requires can skip it, and one of several is enough."""
    deployment = Deployment("replicaset", "", "", (6, 0, 27), "")
    assert lack == deployment.why_not([requirement])
    assert deployment.why_not([requirement, {"minServerVersion": "3.6"}]) is None


@pytest.mark.parametrize(
    ("operation", "lack"),
    [
        ({"name": "mapReduce"}, "a driver with mapReduce"),
        ({"name": "count", "arguments": {"filter": {"x": 1}}}, "a driver with count"),
        ({"name": "count", "arguments": {"filter": {}}}, None),
        ({"name": "find", "arguments": {"filter": {}}}, None),
    ],
)
def test_what_the_driver_lacks(operation: dict[str, Any], lack: str | None) -> None:
    """Helpers that PyMongo doesn't have skip a test."""
    assert lack == what_driver_lacks("crud/x", {"operations": [{"name": "find"}, operation]})


def test_what_an_older_driver_lacks() -> None:
    """So do the few files that are newer than the oldest PyMongo."""
    files = ["crud/find", "crud/findOne", "transactions/backpressure-x", "transactions/commit-x"]
    for version, lack in [((4, 9, 2), "a newer PyMongo"), ((4, 20, 0), None)]:
        found = [what_driver_lacks(file, {"operations": []}, version) for file in files]
        assert [lack, None, lack, None] == found


@pytest.mark.parametrize(
    ("word", "lacking", "having"),
    [
        ("secondary", {"is_alone": True}, {}),
        ("recoveryToken", {"topology": "sharded"}, {}),
        ("errorCodeName", {"topology": "sharded"}, {}),
        ("blockConnection", {"version": (4, 2, 6)}, {"version": (4, 2, 9)}),
    ],
)
def test_what_is_not_required_and_lacking(
    word: str, lacking: dict[str, Any], having: dict[str, Any]
) -> None:
    """What a test's requirements don't say, and not every deployment here has."""
    deployment = Deployment("replicaset", "", "", (6, 0), "")
    test = {"operations": [{"x": word}]}
    assert replace(deployment, **lacking).why_not_in_spite(test) is not None
    assert replace(deployment, **lacking).why_not_in_spite({"operations": []}) is None
    assert replace(deployment, **having).why_not_in_spite(test) is None


def test_an_unknown_requirement_fails() -> None:
    """It is no reason to skip."""
    with pytest.raises(UnsupportedError, match="csfle"):
        Deployment("replicaset", "", "", (6, 0), "").why_not([{"csfle": True}])


NETWORK = AutoReconnect("lost", {"errorLabels": ["RetryableWriteError"]})
SERVER = OperationFailure("no", 91, {"errorLabels": ["NoWritesPerformed"]})


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ({"isError": True}, None),
        ({"isError": False}, SERVER),
        ({"isClientError": True}, SERVER),
        ({"isClientError": True}, NotPrimaryError("no", {"code": 10107})),
        ({"isClientError": False}, NETWORK),
        ({"isTimeoutError": True}, SERVER),
        ({"isTimeoutError": False}, WTimeoutError("late")),
        ({"errorCode": 90}, SERVER),
        ({"errorCodeName": "NotPrimary"}, SERVER),
        ({"errorCodeName": "NotPrimary"}, ValueError("NotPrimary")),
        ({"errorContains": "yes"}, SERVER),
        ({"errorResponse": {"code": 90}}, SERVER),
        ({"errorLabelsContain": ["RetryableWriteError"]}, SERVER),
        ({"errorLabelsOmit": ["NoWritesPerformed"]}, SERVER),
        ({"writeConcernErrors": []}, SERVER),
        ({"expectResult": {}}, SERVER),
    ],
)
def test_errors_that_differ(expected: dict[str, Any], error: Exception | None) -> None:
    """Each thing that is said of an error is checked."""
    with pytest.raises(MismatchError):
        check_error(expected, error, lambda _: None)


def test_an_unknown_assertion_on_an_error_fails() -> None:
    """It is not passed over."""
    with pytest.raises(UnsupportedError, match="writeErrors"):
        check_error({"writeErrors": {}}, SERVER, lambda _: None)


def test_errors_that_match() -> None:
    """What a server says of an error is compared as a document by itself, its text in any case."""
    error = OperationFailure("Not Now", 91, {"code": 91, "codeName": "Shutdown", "ok": 0})
    expected = {
        "errorCodeName": "Shutdown",
        "errorContains": "not NOW",
        "errorResponse": {"code": 91},
    }
    check_error(expected, error, lambda _: None)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, 1.0),
        ({"a": 1}, {"a": 1, "b": 2}),
        ([{"a": 1}], [{"a": 1, "b": 2}]),
        ({"a": {"$$exists": True}}, {"a": None}),
        ({"a": {"$$exists": False}}, {}),
        ({"a": {"$$type": ["int", "long"]}}, {"a": Int64(1)}),
        ({"a": {"$$unsetOrMatches": 1}}, {}),
        ({"a": {"$$unsetOrMatches": 1}}, {"a": 1}),
        ({"$$unsetOrMatches": {"a": 1}}, {"a": 1, "b": 2}),
        ({"$$matchesHexBytes": "00ff"}, b"\x00\xff"),
    ],
)
def test_what_matches(expected: Any, actual: Any) -> None:
    """Documents by themselves may have more fields, and numbers are compared by value."""
    match(expected, actual, "it")


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1, True),
        (1, "1"),
        (None, MISSING),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}),
        ([1], [1, 2]),
        ([1], {"0": 1}),
        ({"a": {"$$exists": False}}, {"a": None}),
        ({"a": {"$$type": "long"}}, {"a": 1}),
        ({"a": {"$$type": "int"}}, {}),
        ({"a": {"$$unsetOrMatches": 1}}, {"a": 2}),
        ({"$$matchesHexBytes": "00ff"}, b"\x00"),
    ],
)
def test_what_does_not_match(expected: Any, actual: Any) -> None:
    """Documents inside others, lists and types are compared to the letter."""
    with pytest.raises(MismatchError):
        match(expected, actual, "it")


@pytest.mark.parametrize("inside", ["unified", "."])
def test_files_are_read(inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a checkout that is named; the tests of a file are its own, with what they share."""
    path = tmp_path / "source" / "crud" / "tests" / inside / "file.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"description": "x", "schemaVersion": "1.0", "tests": [{"description": "y"}]}')
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    [test] = official_tests()
    assert ("crud/file[0] y", []) == (str(test), test.requirements)


def test_another_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a name that is wrong would leave the tests out."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(FetchError, match="no checkout"):
        official_tests()


def test_where_a_test_may_run() -> None:
    """Of each list of requirements one has to allow it."""
    shared = {"runOnRequirements": [{"topologies": ["single", "sharded"]}, {"auth": True}]}
    own = {"runOnRequirements": [{"topologies": ["single"]}, {"topologies": ["sharded"]}]}
    test = OfficialTest("folder", "file", 0, own, shared)
    assert [True, True, False] == list(map(test.may_run_on, ["single", "sharded", "replicaset"]))


def test_longer_times() -> None:
    """A server is blocked for longer than a socket waits still; other tests are as they were."""
    options, block = {"socketTimeoutMS": 100}, {"data": [{"blockTimeMS": 125}]}
    given = OfficialTest("a folder", "retryability-legacy-timeouts", 0, block, options)
    slowed = given.slowed(4)
    assert ({"socketTimeoutMS": 400}, {"data": [{"blockTimeMS": 500}]}) == (
        slowed.shared,
        slowed.content,
    )
    other = replace(given, file="another")
    assert other is other.slowed(4)
