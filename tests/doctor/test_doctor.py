"""The command `python -m aioretry doctor`, on real deployments."""

import json
import os
import re
import socket
import subprocess
import sys
import uuid
import warnings

import pytest
from pymongo import MongoClient

from aioretry.__main__ import main
from aioretry._doctor import command
from aioretry.testing import FakeMongoses, ScriptedServer, Standalone, find_mongod
from tests.forks import Fork

PASSWORD = "hush/hush:hush"
QUOTED = "hush%2Fhush%3Ahush"
CAN, WARNINGS, USAGE, CANNOT, UNREACHABLE = range(5)


class Told:
    """What the command told, and its exit code."""

    def __init__(self, code, text, complaint):
        self.code = code
        self.text = text
        self.complaint = complaint
        assert "Traceback" not in complaint, complaint

    @property
    def data(self):
        """What it told as JSON."""
        return json.loads(self.text)

    def of(self, level):
        """The ids of what it found at one level."""
        return {each["id"] for each in self.data["findings"] if each["level"] == level}


async def doctor(uri, *options, env=None):
    """Run the command in a process of its own, where every warning is an error."""
    return await run("doctor", uri, *options, env=env)


async def run(*arguments, env=None):
    """Run any command likewise."""
    fork = Fork("tests.doctor.test_doctor:main_with_errors", arguments, env=env)
    try:
        code = await fork.wait()
    finally:
        fork.kill()
        out, err = fork.close()
    return Told(code, out, err)


def main_with_errors(arguments):
    """What the process does: as with ``-Werror``."""
    warnings.simplefilter("error")
    sys.argv[:] = ["aioretry", *arguments]
    sys.exit(main(arguments))


def test_no_command(capsys):
    """Who asks for nothing is told what there is."""
    assert 0 == main([])
    told = capsys.readouterr().out
    assert all(f"    {name} " in told for name in ("doctor", "stream", "outbox"))


def with_options(uri, options):
    """A connection string with more options."""
    return f"{uri}{'&' if '?' in uri else '/?'}{options}"


@pytest.mark.usefixtures("three_members")
class TestReplicaSet:
    async def test_can(self, replica_set):
        """Each member is told, and nothing is wrong."""
        told = await doctor(replica_set.uri, "--json", "--timeout", "30")
        deployment = told.data["deployment"]
        assert ("replica set", 3) == (deployment["topology"], len(deployment["members"]))
        assert ["primary", "secondary", "secondary"] == sorted(
            each["role"] for each in deployment["members"]
        )
        assert {"wiredTiger"} == {each["storage_engine"] for each in deployment["members"]}
        config = {"voting": 3, "arbiters": 0, "electable": 3, "hidden": 0}
        assert config | {"majority_journals": True} == deployment["config"]
        assert {30} == {each["session_minutes"] for each in deployment["members"]}
        assert set() == told.of("problem")
        is_old = deployment["members"][0]["version"] < "5"  # whose default is w: 1
        expected = (WARNINGS, {"write-concern"}) if is_old else (CAN, set())
        assert expected == (told.code, told.of("warning"))

    async def test_for_people(self, replica_set):
        """Without --json it is text, the answer first."""
        told = await doctor(replica_set.uri, "--timeout", "30")
        assert told.text.startswith("Writes can be retried here")
        assert "replica set (" in told.text

    async def test_options_of_the_connection_string(self, replica_set):
        """What the connection string gets wrong is told."""
        options = "retryWrites=false&w=1&serverSelectionTimeoutMS=2000&socketTimeoutMS=20000"
        told = await doctor(with_options(replica_set.uri, options), "--json", "--timeout", "30")
        assert (CANNOT, {"retry-writes"}) == (told.code, told.of("problem"))
        warnings = {"write-concern", "server-selection", "socket-timeout"}
        assert warnings <= told.of("warning")

    async def test_a_direct_connection(self, replica_set):
        """One member of a set is known for that."""
        primary = await replica_set.primary()
        uri = f"mongodb://{primary.address}/?directConnection=true"
        told = await doctor(uri, "--json", "--timeout", "30")
        assert "replica set" == told.data["deployment"]["topology"]
        assert (WARNINGS, True) == (told.code, "direct-connection" in told.of("warning"))

    async def test_a_member_is_frozen(self, replica_set):
        """It is told that it does not answer; the others are."""
        secondary, _ = await replica_set.secondaries()
        await replica_set.freeze(secondary)
        told = await doctor(replica_set.uri, "--json", "--timeout", "3")
        deployment = told.data["deployment"]
        assert WARNINGS == told.code
        assert [secondary.address] == [each["address"] for each in deployment["absent"]]
        assert 2 == len(deployment["members"])

    async def test_nothing_is_written(self, replica_set, plain):
        """No database and no document comes into being."""
        before = sorted(plain.list_database_names())
        await doctor(replica_set.uri)
        assert before == sorted(plain.list_database_names())


async def test_standalone(server_version):
    """A standalone server can't, and the advice says what to do."""
    with Standalone(version=server_version) as server:
        told = await doctor(server.uri, "--json", "--timeout", "30")
        text = (await doctor(server.uri, "--timeout", "30")).text
    assert (CANNOT, {"topology"}) == (told.code, told.of("problem"))
    assert "standalone" == told.data["deployment"]["topology"]
    assert "rs.initiate()" in text


class TestLookAlikes:
    """Of servers that answer as others do, and refuse what those don't know."""

    @pytest.fixture
    def server(self):
        with ScriptedServer() as server:
            server.answer("buildInfo", {"version": "5.0.0"})
            for name in ("serverStatus", "getParameter", "getDefaultRWConcern", "find"):
                server.answer(name, lambda request: request.fail(303, "not supported"))
            server.answer("replSetGetConfig", lambda request: request.fail(303, "not supported"))
            yield server

    async def told(self, server):
        """What the doctor says of it, through a tunnel."""
        uri = f"mongodb://{server.address}/?directConnection=true"
        return await doctor(uri, "--json", "--timeout", "30")

    async def test_amazon(self, server):
        """It is known by the hosts of its set, and what it refuses is unknown."""
        server.hello |= {"hosts": ["shop.docdb.amazonaws.com:27017"], "maxWireVersion": 13}
        told = await self.told(server)
        assert (CANNOT, {"look-alike"}) == (told.code, told.of("problem"))
        assert {"set-config", "storage-engine", "write-concern"} <= told.of("unknown")

    async def test_one_that_knows_no_hello(self, server):
        """It is asked by the older name, whatever the code that it refuses with."""
        greeting = {
            "_t": "IsMasterResponse",
            "ismaster": True,
            "setName": "globaldb",
            "hosts": [server.address],
            "logicalSessionTimeoutMinutes": 30,
            "minWireVersion": 0,
            "maxWireVersion": 13,
        }
        server.answer(
            "hello",
            lambda request: (
                request.fail(303, "not supported")
                if "hello" in request.command
                else request.reply(greeting)
            ),
        )
        told = await self.told(server)
        assert (WARNINGS, True) == (told.code, "look-alike" in told.of("warning"))

    async def test_ferretdb(self):
        """Its handshake is a standalone server's; it tells who it is when it is asked."""
        with ScriptedServer(kind="standalone") as server:
            server.answer("buildInfo", {"version": "7.0.77", "ferretdb": {"version": "v2.7.0"}})
            for name in ("serverStatus", "getParameter", "getDefaultRWConcern", "replSetGetConfig"):
                server.answer(name, lambda request: request.fail(59, "no such command"))
            told = await self.told(server)
        assert (CANNOT, {"topology", "look-alike"}) == (told.code, told.of("problem"))
        assert "rs.initiate()" not in told.text

    async def test_what_pymongo_says_of_such_hosts(self):
        """It warns of their names when a client is made, which is about no option."""
        told = await doctor("mongodb://shop.docdb.amazonaws.com/", "--timeout", "0.1", "--json")
        assert (UNREACHABLE, set()) == (told.code, told.of("warning"))


async def test_routers(replica_set):
    """Behind routers writes can be retried."""
    async with FakeMongoses(replica_set) as cluster:
        told = await doctor(cluster.uri, "--json", "--timeout", "30")
    deployment = told.data["deployment"]
    assert "sharded" == deployment["topology"]
    assert {"mongos"} == {each["role"] for each in deployment["members"]}
    assert (set(), None) == (told.of("problem"), deployment["config"])


class TestUnreachable:
    @pytest.mark.parametrize("options", [(), ("--json",)])
    async def test_nobody_listens(self, free_port, options):
        """It says so, without the credentials."""
        uri = f"mongodb://somebody:{QUOTED}@127.0.0.1:{free_port}/"
        told = await doctor(uri, "--timeout", "0.5", *options)
        assert UNREACHABLE == told.code
        assert f"127.0.0.1:{free_port}" in told.text
        require_no_secret(told)

    @pytest.mark.parametrize(
        "uri",
        [
            f"mongodb://somebody:{PASSWORD}@h/",
            f"mongodb://somebody:{QUOTED}@h:port/",
            f"mongodb://somebody:{QUOTED}@h/?authMechanism=MONGODB-X509",
            f"mongdb://somebody:{QUOTED}@h/",
        ],
    )
    async def test_a_connection_string_that_makes_no_sense(self, uri):
        """It is refused like any other bad argument, without the credentials."""
        told = await doctor(uri, "--timeout", "0.5")
        assert USAGE == told.code
        assert "makes no client" in told.complaint
        require_no_secret(told)

    @pytest.mark.parametrize(
        "uri",
        ["mongodb://somebody:12345/hush@127.0.0.1", "mongodb://somebody:12345?hush@127.0.0.1"],
    )
    async def test_a_password_that_looks_like_a_port(self, uri):
        """No client is made whose host would be the user name."""
        told = await doctor(uri, "--timeout", "0.5")
        assert (USAGE, True) == (told.code, "percent-encoded" in told.complaint)
        require_no_secret(told)

    async def test_an_at_sign_in_an_option(self, free_port):
        """It ends no user name."""
        uri = f"mongodb://127.0.0.1:{free_port}/?appName=a@b"
        told = await doctor(uri, "--timeout", "0.5", "--json")
        assert (UNREACHABLE, False) == (told.code, told.data["client"]["logs_in"])

    async def test_a_file_that_does_not_exist(self):
        """It is an argument that makes no sense, and no warning."""
        uri = f"mongodb://somebody:{QUOTED}@127.0.0.1/?tls=true&tlsCAFile=/no/such/file"
        told = await doctor(uri, "--timeout", "0.5")
        assert USAGE == told.code
        require_no_secret(told)

    @pytest.mark.parametrize(
        "arguments",
        [
            ["doctor", "env:{uri}"],
            ["doctor", "mongodb://h/", "{uri}"],
            ["doctor", "mongodb://h/", "--timeout", "{uri}"],
            ["{uri}"],
            ["doctor", "mongodb://h/", "--uri={uri} hush @h"],
        ],
    )
    async def test_arguments_that_are_refused(self, arguments):
        """No complaint quotes them, if they may hold credentials."""
        uri = f"mongodb://somebody:{QUOTED}@h/"
        told = await run(*(argument.format(uri=uri) for argument in arguments))
        assert (USAGE, 1) == (told.code, told.complaint.count("\n"))
        require_no_secret(told)

    async def test_names_that_are_not_resolved(self):
        """Nobody can be asked, whichever version of PyMongo looks when."""
        uri = f"mongodb+srv://somebody:{QUOTED}@cluster.example.invalid/"
        told = await doctor(uri, "--timeout", "0.5")
        assert UNREACHABLE == told.code
        require_no_secret(told)

    def test_defects_are_no_warnings(self, monkeypatch, capsys):
        """Whatever else fails is one line and an exit code of its own."""

        async def fail(uri, seconds):
            raise ZeroDivisionError(uri)

        monkeypatch.setattr(command, "gather", fail)
        assert command.DEFECT == command.run("mongodb://somebody:hush@h/", 1.0, as_json=False)
        told = capsys.readouterr()
        assert ("", 1) == (told.out, told.err.count("\n"))
        assert "ZeroDivisionError" in told.err
        assert "hush" not in told.err

    async def test_options_that_pymongo_ignores(self, free_port):
        """They are told, because they do not do what they say."""
        uri = f"mongodb://somebody:{QUOTED}@127.0.0.1:{free_port}/?retryWrite=true&w=-1&poolSize=3"
        told = await doctor(uri, "--timeout", "0.5", "--json")
        assert (UNREACHABLE, {"option-ignored"}) == (told.code, told.of("warning"))
        findings = told.data["findings"]
        told_of = [re.findall("retryWrite: U|poolSize: U", each["text"]) for each in findings]
        assert [["retryWrite: U"], ["poolSize: U"]] == [names for names in told_of if names]
        require_no_secret(told)

    async def test_without_credentials_it_says_what_is_wrong(self):
        """Then there is nothing to hide."""
        told = await doctor("mongodb://h:port/")
        assert USAGE == told.code
        assert "Port" in told.complaint

    @pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
    async def test_bad_timeouts(self, seconds):
        """They are refused."""
        told = await doctor("mongodb://h/", f"--timeout={seconds}")
        assert (USAGE, True) == (told.code, "must be more than 0" in told.complaint)

    async def test_from_the_environment(self, free_port):
        """The connection string need not stand on the command line."""
        env = {"DB": f"mongodb://127.0.0.1:{free_port}/"}
        assert UNREACHABLE == (await doctor("env:DB", "--timeout", "0.2", env=env)).code
        told = await doctor(f"env:{uuid.uuid4().hex}")
        assert (USAGE, True) == (told.code, "; export it" in told.complaint)


def require_no_secret(told):
    """Neither the name nor the password is told, in any form."""
    for output in (told.text, told.complaint):
        for secret in (PASSWORD, QUOTED, "hush", "somebody"):
            assert secret not in output


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, server_version):
    """A replica set of one member that wants a login, with a user of each kind."""
    folder = tmp_path_factory.mktemp("auth")
    key = folder / "key"
    key.write_text("a" * 64)
    key.chmod(0o600)
    mongod = find_mongod(server_version)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = f"--port {port} --bind_ip 127.0.0.1 --replSet rs0 --keyFile {key} --dbpath {folder}"
    with subprocess.Popen(
        [mongod.path, *options.split()],
        env={**os.environ, **mongod.env},
        stdout=subprocess.DEVNULL,
    ) as server:
        try:
            yield with_users(f"mongodb://127.0.0.1:{port}/?replicaSet=rs0", port)
        finally:
            server.kill()


def with_users(uri, port):
    """Make a new server a replica set that has users; return how to connect to it."""
    with MongoClient("127.0.0.1", port, directConnection=True) as client:
        members = [{"_id": 0, "host": f"127.0.0.1:{port}"}]
        client.admin.command({"replSetInitiate": {"_id": "rs0", "members": members}})
    with MongoClient(uri) as client:
        client.admin.command({"createUser": "somebody", "pwd": PASSWORD, "roles": ["root"]})
    with MongoClient(uri, username="somebody", password=PASSWORD) as client:
        roles = [{"role": "readWrite", "db": "shop"}]
        client.shop.command({"createUser": "plain", "pwd": PASSWORD, "roles": roles})
    return uri


class TestAccessControl:
    def uri(self, guarded, user, password, source):
        """The connection string of a user."""
        credentials = f"mongodb://{user}:{password}@"
        return with_options(guarded.replace("mongodb://", credentials), f"authSource={source}")

    async def test_the_right_password(self, guarded):
        """Everything is told that is told without access control, but the credentials."""
        uri = self.uri(guarded, "somebody", QUOTED, "admin")
        told = await doctor(uri, "--json", "--timeout", "30")
        assert (set(), set()) == (told.of("problem"), told.of("unknown"))
        assert told.data["client"]["logs_in"]
        require_no_secret(told)

    async def test_without_privileges(self, guarded):
        """What needs more rights is unknown, and it says which; the rest is told."""
        uri = self.uri(guarded, "plain", QUOTED, "shop")
        told = await doctor(uri, "--json", "--timeout", "30")
        assert told.code in {CAN, WARNINGS}
        assert {"set-config", "storage-engine", "oplog"} <= told.of("unknown")
        [member] = told.data["deployment"]["members"]
        assert {"unknown": "needs the role clusterMonitor"} == member["storage_engine"]
        assert {"unknown": "needs the role read on the database local"} == member["oplog_hours"]
        require_no_secret(told)

    async def test_the_wrong_password(self, guarded):
        """Nobody is asked, and it says why."""
        uri = self.uri(guarded, "somebody", QUOTED + "x", "admin")
        told = await doctor(uri, "--timeout", "30")
        assert (UNREACHABLE, True) == (told.code, "the login failed" in told.text)
        require_no_secret(told)

    async def test_no_login(self, guarded):
        """What a server tells to anybody is told; the rest needs a login."""
        told = await doctor(guarded, "--json", "--timeout", "30")
        assert "set-config" in told.of("unknown")
