"""The fail point `failCommand` of fake mongoses: as PyMongo meets it, and by itself."""

import socket
import threading
from types import SimpleNamespace

import pymongo
import pytest
from bson import Int64
from pymongo import monitoring
from pymongo.errors import AutoReconnect, NotPrimaryError, OperationFailure

from aioretry.testing import FakeMongoses, ReplicaSet, ScriptedServer
from aioretry.testing._mongos_fail_points import Failing, MongosFailPoint
from aioretry.testing._wire import request_of

FOR_EVER = 3_600_000  # milliseconds
RETRYABLE = ["RetryableWriteError"]
TRANSIENT = ["TransientTransactionError"]


class Heartbeats(monitoring.ServerHeartbeatListener):
    """Remembers whether a monitor lost its connection, and when one has heard of a change."""

    def __init__(self):
        self.failed_ones = []
        self.failure = threading.Event()
        self.awaited = threading.Event()

    def started(self, event):
        pass

    def succeeded(self, event):
        if event.awaited:
            self.awaited.set()

    def failed(self, event):
        self.failed_ones.append(event)
        self.failure.set()


@pytest.fixture
async def cluster(servers: ReplicaSet):
    async with FakeMongoses(servers) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: FakeMongoses):
    """A client of the first mongos that tries nothing twice."""
    with plain_client(cluster.mongoses[0]) as client:
        client.mongos.drop_collection("c")
        yield client


@pytest.fixture
def other_client(cluster: FakeMongoses):
    """The same of the second one."""
    with plain_client(cluster.mongoses[1]) as client:
        yield client


def plain_client(mongos, **options) -> pymongo.MongoClient:
    return pymongo.MongoClient(
        mongos.address, **{"retryWrites": False, "retryReads": False, **options}
    )


def configure(client: pymongo.MongoClient, mode, *commands: str, **data) -> int:
    """Set the fail point, and say how often it had struck before."""
    options = {"failCommands": list(commands), **data}
    reply = client.admin.command("configureFailPoint", "failCommand", mode=mode, data=options)
    return int(reply["count"])


def off(client: pymongo.MongoClient) -> int:
    """Turn it off, and say how often it has struck."""
    return int(client.admin.command("configureFailPoint", "failCommand", mode="off")["count"])


def test_an_error(cluster, client) -> None:
    """It is answered as often as was said, and the command is not run."""
    configure(client, {"times": 2}, "insert", "find", errorCode=13)
    for number in (1, 2):
        with pytest.raises(OperationFailure, match="failCommand") as caught:
            client.mongos.c.insert_one({"_id": number})
        assert 13 == caught.value.code
    client.mongos.c.insert_one({"_id": 3})

    assert [{"_id": 3}] == list(client.mongos.c.find())
    assert 2 == off(client)
    cluster.verify()


def test_a_closed_connection(client) -> None:
    """The client's connection is closed, and its command is not run."""
    configure(client, {"times": 1}, "insert", closeConnection=True, errorCode=13)
    with pytest.raises(AutoReconnect):
        client.mongos.c.insert_one({"_id": 1})
    client.mongos.c.insert_one({"_id": 2})
    assert [{"_id": 2}] == list(client.mongos.c.find())


@pytest.mark.parametrize("labels", [None, [], RETRYABLE])
def test_a_write_concern_error(client, labels) -> None:
    """The command is run, and its answer has the error, with no labels but those given."""
    given = {} if labels is None else {"errorLabels": labels}
    error = {"code": 91, "errmsg": "shutting down", "errorLabels": ["inner"]}
    configure(client, {"times": 1}, "insert", "ping", writeConcernError=error, **given)
    reply = client.mongos.command("insert", "c", documents=[{"_id": 1}])

    assert {"n": 1, "writeConcernError": error} == {
        key: reply[key] for key in ("n", "writeConcernError")
    }
    assert (labels or None) == reply.get("errorLabels")
    assert "writeConcernError" not in client.mongos.command("insert", "c", documents=[{"_id": 2}])
    assert 2 == client.mongos.c.count_documents({})


def test_each_mongos_has_its_own(client, other_client) -> None:
    """What is set at one mongos leaves the other one alone, and ends there alone."""
    configure(client, "alwaysOn", "ping", errorCode=13)
    assert 1 == other_client.admin.command("ping")["ok"]
    assert 0 == off(other_client)
    with pytest.raises(OperationFailure):
        client.admin.command("ping")
    off(client)
    assert 1 == client.admin.command("ping")["ok"]


def test_one_application(cluster, client) -> None:
    """Only clients that gave the name when they connected are struck."""
    configure(client, "alwaysOn", "ping", errorCode=13, appName="named")
    assert 1 == client.admin.command("ping")["ok"]
    with plain_client(cluster.mongoses[0], appname="other") as other:
        assert 1 == other.admin.command("ping")["ok"]
    with plain_client(cluster.mongoses[0], appname="named") as named:
        with pytest.raises(OperationFailure):
            named.admin.command("ping")


def test_one_collection(client) -> None:
    """Only commands on the collection are struck."""
    configure(client, "alwaysOn", "insert", errorCode=13, namespace="mongos.other")
    client.mongos.c.insert_one({})
    with pytest.raises(OperationFailure):
        client.mongos.other.insert_one({})


def test_a_lost_handshake(cluster, client) -> None:
    """Authentication can be lost; a retryable write outlives it."""
    client.mongos.command("dropAllUsersFromDatabase")
    client.mongos.command("createUser", "user", pwd="secret", roles=["readWrite"])
    options = {"username": "user", "password": "secret", "authSource": "mongos"}
    with plain_client(cluster.mongoses[0], retryWrites=True, **options) as user:
        user.admin.command("hello")
        configure(user, {"times": 2}, "ping", "saslContinue", closeConnection=True)
        with pytest.raises(AutoReconnect):
            user.mongos.command("ping")
        user.mongos.c.insert_one({"_id": 1})
    assert 2 == off(client)
    assert 1 == client.mongos.c.count_documents({})


def test_a_hello_that_is_lost(cluster, client) -> None:
    """The stream of answers that a monitor waits for meets the fail point, too."""
    heartbeats = Heartbeats()
    with plain_client(
        cluster.mongoses[0],
        appname="watched",
        heartbeatFrequencyMS=500,
        event_listeners=[heartbeats],
    ) as watched:
        watched.admin.command("ping")
        assert heartbeats.awaited.wait(20)
        configure(client, "alwaysOn", "hello", closeConnection=True, appName="watched")
        assert heartbeats.failure.wait(20)
        assert off(client)
        assert 1 == watched.admin.command("ping")["ok"]


def test_a_state_change_is_an_answer_and_nothing_else(cluster) -> None:
    """No monitor loses its connection by it, and the server behind stays the primary."""
    heartbeats = Heartbeats()
    with plain_client(
        cluster.mongoses[0], heartbeatFrequencyMS=500, event_listeners=[heartbeats]
    ) as client:
        configure(client, {"times": 1}, "ping", errorCode=10107)
        with pytest.raises(NotPrimaryError):
            client.admin.command("ping")
        assert 1 == client.admin.command("ping")["ok"]  # once the next heartbeat has come
    assert [] == heartbeats.failed_ones


def test_a_client_that_does_not_wait(cluster, client, eventually) -> None:
    """A command that is held up is run after all, although its client has gone."""
    block = {"blockConnection": True, "blockTimeMS": 500}
    configure(client, "alwaysOn", "insert", **block)
    with socket.create_connection((cluster.mongoses[0].host, cluster.mongoses[0].port), 5) as gone:
        gone.sendall(request_of(1, {"insert": "c", "documents": [{"_id": 1}], "$db": "mongos"}))
        eventually(lambda: configure(client, "alwaysOn", "insert", **block) == 1)
    eventually(lambda: client.mongos.c.count_documents({}) == 1)


def test_a_time_limit_ends_the_wait(client) -> None:
    """A command whose time is over while it is held up is not run."""
    configure(client, "alwaysOn", "insert", blockConnection=True, blockTimeMS=FOR_EVER)
    with pytest.raises(OperationFailure) as caught:
        client.mongos.command("insert", "c", documents=[{"_id": 1}], maxTimeMS=20)
    assert 50 == caught.value.code
    off(client)
    assert 0 == client.mongos.c.count_documents({})


def test_unacknowledged_writes(client) -> None:
    """One that fails is neither run nor answered, and the next answer is the next command's."""
    configure(client, {"times": 1}, "insert", errorCode=13)
    collection = client.mongos.get_collection("c", write_concern=pymongo.WriteConcern(w=0))
    collection.insert_one({"_id": 1})
    collection.insert_one({"_id": 2})
    assert 1 == off(client)
    assert [{"_id": 2}] == list(client.mongos.c.find())


def test_a_held_command_ends_with_its_mongos(servers: ReplicaSet, eventually) -> None:
    """The end of the mongoses waits for nobody."""
    with FakeMongoses(servers, 1) as cluster:
        [mongos] = cluster.mongoses
        with socket.create_connection((mongos.host, mongos.port), 5) as connection:
            block = {"blockConnection": True, "blockTimeMS": FOR_EVER}
            with plain_client(mongos) as client:
                configure(client, "alwaysOn", "ping", **block)
                connection.sendall(request_of(1, {"ping": 1, "$db": "admin"}))
                eventually(lambda: configure(client, "alwaysOn", "ping", **block) == 1)
            cluster.close()
            assert b"" == connection.recv(1)


async def test_the_servers_behind_hear_nothing() -> None:
    """The fail point is the mongos's: neither it nor what it strikes is passed on."""
    async with ScriptedServer() as server:
        deployed = SimpleNamespace(members=[SimpleNamespace(direct_address=server.address)])
        with FakeMongoses(deployed, 1) as cluster, plain_client(cluster.mongoses[0]) as client:
            configure(client, {"times": 1}, "insert", "configureFailPoint", errorCode=13)
            with pytest.raises(OperationFailure):
                client.mongos.c.insert_one({})
            with pytest.raises(OperationFailure, match="not found"):
                client.admin.command("configureFailPoint", "other", mode="off")
            assert 1 == off(client)
        assert () == server.requests


async def test_it_counts_as_a_server_does(servers: ReplicaSet, client) -> None:
    """In every mode the same commands fail as at a mongod, and the answers count alike."""
    primary = await servers.primary()
    with pymongo.MongoClient(primary.direct_uri, appname="counting") as direct:
        assert counted(direct, off(direct)) == counted(client, off(client))


def counted(client: pymongo.MongoClient, before: int) -> list[tuple[int, list[bool]]]:
    """How often the fail point had struck when a mode began, and which pings failed in it."""
    app_name = client.options.pool_options.appname
    only = {} if app_name is None else {"appName": app_name}
    seen = []
    for mode in ("alwaysOn", {"times": 0}, {"times": 2}, {"skip": 2.0}, {"times": Int64(9)}):
        count = configure(client, mode, "ping", errorCode=13, **only) - before
        seen.append((count, [fails(client) for _ in range(4)]))
    off(client)
    return seen


def fails(client: pymongo.MongoClient) -> bool:
    """Whether a ping does."""
    try:
        client.admin.command("ping")
    except OperationFailure as exc:
        return exc.code == 13
    return False


DATA = {"failCommands": ["insert"], "errorCode": 91}


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"$db": "test"}, 13, "admin"),
        ({"configureFailPoint": "onPrimaryTransactionalWrite"}, 266, "not found"),
        ({"configureFailPoint": 1}, 266, "not found"),
        ({"mode": None}, 2, "'mode'"),
        ({"mode": "on"}, 2, "'mode'"),
        ({"mode": {}}, 2, "'mode'"),
        ({"mode": {"times": -1}}, 2, "'mode'"),
        ({"mode": {"times": 1.5}}, 2, "'mode'"),
        ({"mode": {"times": True}}, 2, "'mode'"),
        ({"mode": {"times": 1, "skip": 1}}, 2, "'mode'"),
        ({"mode": {"activationProbability": 0.5}}, 2, "'mode'"),
        ({"data": None}, 2, "failCommands"),
        ({"data": {"errorCode": 91}}, 2, "failCommands"),
        ({"data": {**DATA, "threadName": "conn1"}}, 2, "no option 'threadName'"),
        ({"data": {**DATA, "failCommands": "insert"}}, 14, "'failCommands'"),
        ({"data": {**DATA, "failCommands": [1]}}, 14, "'failCommands'"),
        ({"data": {**DATA, "errorCode": "91"}}, 14, "'errorCode'"),
        ({"data": {**DATA, "errorLabels": "label"}}, 14, "'errorLabels'"),
        ({"data": {**DATA, "closeConnection": 1}}, 14, "'closeConnection'"),
        ({"data": {**DATA, "writeConcernError": 91}}, 14, "'writeConcernError'"),
        ({"data": {**DATA, "appName": None}}, 14, "'appName'"),
        ({"data": {**DATA, "namespace": 1}}, 14, "'namespace'"),
        ({"data": {**DATA, "blockConnection": True}}, 72, "'blockTimeMS'"),
        ({"data": {**DATA, "blockConnection": True, "blockTimeMS": -1}}, 14, "'blockTimeMS'"),
    ],
)
def test_what_is_refused(changes, code, text) -> None:
    """What it can't do is an error, and what was set before stays."""
    fail_point = MongosFailPoint()
    command = {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": DATA}
    assert {"count": 0, "ok": 1} == fail_point.configure({**command, "$db": "admin"})

    reply = fail_point.configure({**command, "$db": "admin", **changes})

    assert (0, code) == (reply["ok"], reply["code"])
    assert text in reply["errmsg"]
    assert fail_point.is_on


def test_a_mode_is_needed() -> None:
    """Without a mode the error is that of a server."""
    command = {"configureFailPoint": "failCommand", "data": DATA, "$db": "admin"}
    assert 20 == MongosFailPoint().configure(command)["code"]


def failing(command: dict, wire_version: int = 9, **data) -> Failing | None:
    """What becomes of a command where all are to fail."""
    fail_point = MongosFailPoint()
    options = {"failCommands": ["insert", "commitTransaction", "hello", "getMore"], **data}
    declared = {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": options}
    assert fail_point.configure({**declared, "$db": "admin"})["ok"]
    return fail_point.before_run(request_of(1, {**command, "$db": "d"}), None, wire_version)


NUMBERED = {"insert": "c", "txnNumber": Int64(1)}
IN_TRANSACTION = {**NUMBERED, "autocommit": False}
COMMIT = {"commitTransaction": 1, "txnNumber": Int64(1), "autocommit": False}


@pytest.mark.parametrize(
    ("command", "code", "wire_version", "labels"),
    [
        (NUMBERED, 91, 8, None),
        (NUMBERED, 91, 9, RETRYABLE),
        (NUMBERED, 91, 13, None),
        (NUMBERED, 13, 9, None),
        ({"insert": "c"}, 91, 9, None),
        (COMMIT, 91, 9, RETRYABLE),
        (IN_TRANSACTION, 91, 8, TRANSIENT),
        (IN_TRANSACTION, 91, 17, TRANSIENT),
        (IN_TRANSACTION, 112, 17, TRANSIENT),
        (COMMIT, 251, 8, TRANSIENT),
        (NUMBERED, 112, 9, None),
    ],
)
def test_labels(command, code, wire_version, labels) -> None:
    """An error has the labels of a mongos of that version, or those that were given."""
    found = failing(command, wire_version, errorCode=code)
    assert labels == found.error.get("errorLabels")
    for given in ([], ["NoWritesPerformed"]):
        found = failing(command, wire_version, errorCode=code, errorLabels=given)
        assert (given or None) == found.error.get("errorLabels")


def test_the_order() -> None:
    """A command is held up first; then a closed connection comes before an error."""
    block = {"blockConnection": True, "blockTimeMS": 250}
    assert Failing(0.25, True, None) == failing(
        NUMBERED, closeConnection=True, errorCode=13, **block
    )
    error = failing(NUMBERED, closeConnection=False, errorCode=13, **block)
    assert (0.25, False, 13) == (error.seconds, error.hangs_up, error.error["code"])
    assert Failing(0.25, False, None) == failing(NUMBERED, **block)
    assert Failing(0.0, False, None) == failing(NUMBERED, errorCode=0)


def test_time_limits() -> None:
    """One that ends before the wait is an error then; that of a `getMore` is none."""
    block = {"blockConnection": True, "blockTimeMS": 250, "closeConnection": True}
    found = failing({**NUMBERED, "maxTimeMS": 50}, errorLabels=["Label"], **block)
    assert (0.05, False, 50, ["Label"]) == (
        found.seconds,
        found.hangs_up,
        found.error["code"],
        found.error["errorLabels"],
    )
    for command in ({**NUMBERED, "maxTimeMS": 251}, {"getMore": Int64(1), "maxTimeMS": 50}):
        assert Failing(0.25, True, None) == failing(command, **block)


def test_names() -> None:
    """Older spellings are the same name; `hello` and `isMaster` are two commands."""
    assert failing({"INSERT": "c"}, errorCode=13) is not None
    assert failing({"hello": 1}, errorCode=13) is not None
    assert failing({"isMaster": 1}, errorCode=13) is None
    assert failing({"update": "c"}, errorCode=13) is None
    assert failing(NUMBERED) is None
