"""The pytest plugin, in test runs of its own."""

from typing import Any

import pymongo
import pytest

from aioretry.testing import ReplicaSet
from aioretry.testing._mongod import _cache

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.server  # of the runs

INI = """
    [pytest]
    asyncio_mode = auto
    asyncio_default_fixture_loop_scope = function
    filterwarnings = error
    addopts = --strict-markers --strict-config
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run a file of tests in a process of its own."""
    monkeypatch.delenv("AIORETRY_TEST_URI", raising=False)
    # The runs have another HOME, and would fetch the server into it.
    monkeypatch.setenv("AIORETRY_CACHE", str(_cache()))
    pytester.makeini(INI)

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        # One that hangs is to say where, before this test's own time is over.
        options = ("-rA", "-p", "no:cacheprovider", "--timeout=90", *arguments)
        return pytester.runpytest_subprocess(*options, timeout=180)

    return run


def test_fixtures(run) -> None:
    """One set of one member serves sync and async tests; faults strike and are gone after."""
    result = run(
        """
        import pymongo
        import pytest
        from pymongo.errors import AutoReconnect
        from aioretry import RetryClient
        from aioretry.testing import ReplicaSet

        seen = []

        def test_sync(mongo_replica_set, faults):
            assert isinstance(mongo_replica_set, ReplicaSet)
            seen.append(mongo_replica_set)
            assert len(mongo_replica_set.members) == 1
            with pymongo.MongoClient(mongo_replica_set.uri, retryWrites=False) as client:
                faults.drop_reply("insert", times=None)
                with pytest.raises(AutoReconnect):
                    client.shop.orders.insert_one({"_id": 1})

        async def test_async(mongo_replica_set, faults, ledger):
            assert seen == [mongo_replica_set]
            assert faults.declared == ()
            async with RetryClient(mongo_replica_set.uri, w="majority", journal=True) as client:
                orders = client.shop.orders
                with faults.drop_reply("insert"):
                    await ledger.write(2, orders.insert_one({"_id": 2}))
                await ledger.check_marks(orders)
                assert await orders.count_documents({}) == 2
        """
    )
    result.assert_outcomes(passed=2)


def test_what_fails_a_test(run) -> None:
    """A fault that never struck and a write that was never checked fail the test, by name."""
    result = run(
        """
        import pytest
        from aioretry import Outcome

        def test_idle_fault(faults):
            faults.drop_reply("insert", namespace="shop.orders")

        def test_idle_fault_that_is_meant(faults):
            faults.drop_reply("insert", must_fire=False)

        def test_unchecked(ledger):
            ledger.record("a", Outcome.APPLIED)

        def test_checked(ledger):
            ledger.record("a", Outcome.APPLIED)
            ledger.check({"a": 1})

        def test_that_fails_by_itself(faults, ledger):
            faults.drop_reply("insert")
            ledger.record("a", Outcome.APPLIED)
            assert False, "by itself"
        """
    )
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines_random(
        [
            "*DropReply(insert, namespace=shop.orders)*never struck*",
            "*<Ledger 1 write, 1 applied, 1 unchecked>: writes were recorded and never checked*",
            "*AssertionError: by itself*",
        ]
    )


@pytest.mark.slow
def test_marker(run) -> None:
    """A marker says how many members and which version; what a test broke is whole for the next."""
    result = run(
        """
        import pymongo
        import pytest

        def test_default(mongo_replica_set):
            assert len(mongo_replica_set.members) == 1

        @pytest.mark.mongo_replica_set(members=3, processes=True)
        class TestThree:
            async def test_break(self, mongo_replica_set):
                assert len(mongo_replica_set.members) == 3
                await mongo_replica_set.freeze(mongo_replica_set.members[1])
                await mongo_replica_set.kill(await mongo_replica_set.primary())

            def test_whole(self, mongo_replica_set):
                with pymongo.MongoClient(mongo_replica_set.uri) as client:
                    everywhere = pymongo.WriteConcern(3, wtimeout=60_000)
                    client.shop.get_collection("c", write_concern=everywhere).insert_one({})

            @pytest.mark.mongo_replica_set(members=1)
            def test_inner(self, mongo_replica_set, request):
                assert len(mongo_replica_set.members) == 1
                assert request.node.callspec.params["mongo_replica_set"].processes

        @pytest.mark.mongo_replica_set(version=["6.0"])
        def test_version(mongo_replica_set, faults):
            with pymongo.MongoClient(mongo_replica_set.uri) as client:
                assert client.server_info()["version"].startswith("6.0.")
        """
    )
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines_random(["PASSED *test_version?6.0x1?*"])


@pytest.mark.slow
def test_existing_deployment(run, monkeypatch, three_members: ReplicaSet) -> None:
    """A deployment that is there already is used, with faults; what it can't do is skipped."""
    addresses = ",".join(member.direct_address for member in three_members.members)
    monkeypatch.setenv("AIORETRY_TEST_URI", f"mongodb://{addresses}/?replicaSet=rs0")
    result = run(
        """
        import pymongo
        import pytest
        from aioretry.testing import BlackPipe

        @pytest.mark.mongo_replica_set(members=3)
        def test_used(mongo_replica_set, faults):
            assert isinstance(mongo_replica_set, BlackPipe)
            with pymongo.MongoClient(mongo_replica_set.uri) as client:
                with faults.drop_request("find") as fault:
                    client.shop.orders.find_one()
                assert fault.fired == 1

        @pytest.mark.mongo_replica_set(processes=True)
        def test_processes(mongo_replica_set):
            pass

        @pytest.mark.mongo_replica_set(members=5)
        def test_size(mongo_replica_set):
            pass

        @pytest.mark.mongo_replica_set(version=["4.4", "6.0"])
        def test_version(mongo_replica_set):
            pass
        """
    )
    result.assert_outcomes(passed=2, skipped=3)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED *AIORETRY_TEST_URI has no processes that a test may break",
            "SKIPPED *AIORETRY_TEST_URI has 3 members, not 5",
            "SKIPPED *AIORETRY_TEST_URI is no 4.4",
        ]
    )


def test_nothing_starts_by_itself(run) -> None:
    """Where no test asks for it, the plugin costs no server, and no warning."""
    result = run(
        """
        def test_nothing():
            pass
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_marker_with_a_mistake(run) -> None:
    """An argument that doesn't exist is named when tests are collected."""
    result = run(
        """
        import pytest

        @pytest.mark.mongo_replica_set(member=3)
        def test_it(mongo_replica_set):
            pass
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*unexpected keyword argument 'member'*"])


@pytest.mark.slow
def test_the_last_test_breaks_a_server(run) -> None:
    """What the very last test leaves dead or frozen is ended with the rest."""
    result = run(
        """
        import pytest

        @pytest.mark.mongo_replica_set(processes=True)
        async def test_it(mongo_replica_set):
            await mongo_replica_set.kill(mongo_replica_set.members[0])
        """
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_servers_that_are_broken_otherwise(run) -> None:
    """What a test does to a server past the kit is seen, and the next test has a whole set."""
    result = run(
        """
        import os
        import signal

        import pymongo
        import pytest

        @pytest.fixture(params=["kill", "stop", "shut down", "nothing"])
        def way(request):
            return request.param

        async def test_it(mongo_replica_set, way):
            uri = mongo_replica_set.uri
            with pymongo.MongoClient(uri, serverSelectionTimeoutMS=2000) as client:
                client.shop.orders.insert_one({"way": way})
            member = mongo_replica_set.members[0]
            if way == "shut down":
                with pytest.raises(OSError):
                    await member.command({"shutdown": 1, "force": True, "timeoutSecs": 1})
            elif way != "nothing":
                os.kill(member.pid, signal.SIGKILL if way == "kill" else signal.SIGSTOP)
        """
    )
    result.assert_outcomes(passed=4)


@pytest.mark.slow
def test_fixtures_that_are_asked_for_at_run_time(run) -> None:
    """They are looked at too, at their own end."""
    result = run(
        """
        from aioretry import Outcome

        def test_faults(request):
            request.getfixturevalue("faults").drop_reply("insert")

        def test_ledger(request):
            request.getfixturevalue("ledger").record("a", Outcome.APPLIED)

        def test_next(faults):
            assert faults.declared == ()
        """
    )
    result.assert_outcomes(passed=3, errors=2)


EVERY_LOOP = """
    import pytest
    import pytest_asyncio
    from aioretry import RetryClient
    from aioretry.pymongo import AsyncRetryClient

    clients = []

    async def use(*found):
        for client in found:
            await client.fixtures.used.insert_one({})
            assert await client.fixtures.used.find_one()
        clients.append(found[0])

    @pytest_asyncio.fixture(scope="session", loop_scope="session")
    async def service(session_mongo_client, session_motor_client):
        await use(session_mongo_client, session_motor_client)
        return session_mongo_client

    @pytest.mark.asyncio
    @pytest.mark.parametrize("number", range(2))
    async def test_function(mongo_client, motor_client, number):
        assert isinstance(mongo_client, AsyncRetryClient)
        assert isinstance(motor_client, RetryClient)
        await use(mongo_client, motor_client)
        assert number == 0 or clients[-1] is not clients[-2]

    @pytest.mark.asyncio(loop_scope="class")
    class TestClass:
        async def test_class(self, mongo_client, motor_client, class_mongo_client):
            assert mongo_client is class_mongo_client
            await use(mongo_client, motor_client)

    @pytest.mark.asyncio(loop_scope="module")
    @pytest.mark.parametrize("number", range(2))
    async def test_module(mongo_client, motor_client, number):
        await use(mongo_client, motor_client)
        assert number == 0 or clients[-1] is clients[-2]

    @pytest.mark.asyncio(loop_scope="package")
    async def test_package(mongo_client, motor_client):
        await use(mongo_client, motor_client)

    @pytest.mark.asyncio(loop_scope="session")
    async def test_session(service, mongo_client, motor_client):
        assert service is mongo_client
        await use(mongo_client, motor_client)

    @pytest.mark.anyio
    async def test_anyio(mongo_client, motor_client, mongo_database):
        await use(mongo_client, motor_client)
        await mongo_database.things.insert_one({})
"""


@pytest.mark.slow
def test_clients_on_every_loop(run) -> None:
    """Each test has clients on its loop, which live as long as that; in strict mode."""
    result = run(EVERY_LOOP, "--asyncio-mode=strict")
    result.assert_outcomes(passed=8)


def test_clients_of_the_session(run) -> None:
    """With one loop for all, in automatic mode, there is one client, with the options of all."""
    result = run(
        """
        import pytest

        @pytest.fixture(scope="session")
        def mongo_client_options():
            return {"appname": "kit"}

        @pytest.fixture(scope="session")
        async def service(session_mongo_client):
            return session_mongo_client

        clients = []

        @pytest.mark.parametrize("number", range(2))
        async def test_client(service, mongo_client, motor_client, number):
            clients.append(mongo_client)
            assert all(client is service for client in clients)
            assert mongo_client.options.pool_options.metadata["application"]["name"] == "kit"
            await mongo_client.fixtures.used.insert_one({})
            await motor_client.fixtures.used.insert_one({})

        @pytest.mark.mongo_replica_set(members=3)
        async def test_other_servers(service, mongo_client, mongo_replica_set):
            assert mongo_client is service
            await service.fixtures.used.insert_one({})
            assert len(service.nodes) == len(mongo_replica_set.members) == 3
        """,
        "--override-ini=asyncio_default_fixture_loop_scope=session",
        "--override-ini=asyncio_default_test_loop_scope=session",
    )
    result.assert_outcomes(passed=3)


def test_clients_without_a_loop(run, pytester) -> None:
    """Without pytest-asyncio, anyio's plugin has a loop; without both, it is said what to do."""
    pytester.makeini("[pytest]\nfilterwarnings = error")
    result = run(
        """
        import pytest

        @pytest.mark.anyio
        async def test_anyio(mongo_client, motor_client, mongo_database):
            await mongo_client.fixtures.used.insert_one({})
            await motor_client.fixtures.used.insert_one({})
            await mongo_database.things.insert_one({})

        def test_nobody(session_motor_client):
            pass
        """,
        "-p",
        "no:asyncio",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["session_motor_client needs an event loop: pip install pytest-asyncio, or mark *"]
    )


@pytest.mark.slow
def test_databases_of_several_processes(run, monkeypatch, three_members: ReplicaSet) -> None:
    """Each test has a database of its own on servers that workers share; none of them is left."""
    addresses = ",".join(member.direct_address for member in three_members.members)
    monkeypatch.setenv("AIORETRY_TEST_URI", f"mongodb://{addresses}/?replicaSet=rs0")
    before = _databases(three_members)
    result = run(
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        async def test_own(mongo_database, mongo_database_name, number):
            assert mongo_database.name == mongo_database_name
            await mongo_database.things.insert_one({"_id": 1})
            assert await mongo_database.things.count_documents({}) == 1
        """,
        "-n2",
    )
    result.assert_outcomes(passed=6)
    assert before == _databases(three_members)


@pytest.mark.slow
def test_databases_that_are_hard_to_drop(run) -> None:
    """Tests that end with a fault armed, or a server dead, have their databases dropped."""
    result = run(
        """
        import pymongo
        import pytest

        names = []

        @pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
        def test_faults(faults, mongo_database_name, mongo_replica_set):
            names.append(mongo_database_name)
            with pymongo.MongoClient(mongo_replica_set.uri) as client:
                client[mongo_database_name].things.insert_one({})
            faults.error(13, times=None)
            raise ZeroDivisionError

        @pytest.mark.mongo_replica_set(processes=True)
        async def test_dead(mongo_replica_set, mongo_client, mongo_database):
            names.append(mongo_database.name)
            await mongo_database.things.insert_one({})
            await mongo_replica_set.kill(mongo_replica_set.members[0])

        @pytest.mark.mongo_replica_set(processes=True)
        def test_dropped(mongo_replica_set):
            with pymongo.MongoClient(mongo_replica_set.uri) as client:
                assert len(names) == 2
                assert not {*names} & {*client.list_database_names()}
        """
    )
    result.assert_outcomes(passed=2, xfailed=1)


def _databases(servers: ReplicaSet) -> set[str]:
    with pymongo.MongoClient[Any](servers.uri) as client:
        return {*client.list_database_names()}


ORDINARY = """
    import pymongo
    import pytest
    from pymongo.errors import PyMongoError
    from aioretry import RetryClient

    @pytest.fixture
    def uri(mongo_replica_set):
        return mongo_replica_set.uri

    @pytest.mark.parametrize("number", range(6))
    async def test_that_survives(uri, number):
        async with RetryClient(uri) as client:
            things = client.ordinary.survivors
            await things.insert_one({"_id": number})
            await things.update_one({"_id": number}, {"$inc": {"n": 1}})
            assert await things.find_one({"_id": number}) == {"_id": number, "n": 1}

    @pytest.mark.parametrize("number", range(6))
    def test_without_retries(uri, number):
        with pymongo.MongoClient(uri, retryWrites=False, retryReads=False) as client:
            client.ordinary.victims.insert_one({"_id": number})
            client.ordinary.victims.find_one({"_id": number})

    def test_with_a_fault_of_its_own(uri, faults):
        lost = faults.drop_reply("insert")
        with pymongo.MongoClient(uri) as client:
            client.ordinary.own.insert_one({})
        assert lost.fired == 1

    @pytest.mark.mongo_replica_set(processes=True)
    async def test_that_breaks_processes(mongo_replica_set):
        await mongo_replica_set.step_down(seconds=1)
        async with RetryClient(mongo_replica_set.uri) as client:
            await client.ordinary.processes.insert_one({})

    def test_without_a_server():
        pass
"""


@pytest.mark.slow
def test_random_faults(run, pytester) -> None:
    """Each ordinary test meets a fault; what it broke is told, and happens again as told."""
    result = run(ORDINARY, "--aioretry-faults=7")

    summary = "*aioretry: a random fault for each test, seed 7*"
    result.stdout.fnmatch_lines([summary, "* of 12 tests met their fault; * of them failed"])
    failed = {line.split(": ", 1)[0]: line for line in _told(result)}
    outcomes = result.parseoutcomes()
    assert 1 <= len(failed) == outcomes["failed"]
    assert outcomes["passed"] == 15 - len(failed)
    assert all("::test_without_retries[" in nodeid for nodeid in failed)

    nodeid, line = failed.popitem()
    assert f"    pytest --aioretry-faults=7 '{nodeid}'" in result.outlines
    again = pytester.runpytest_subprocess("--aioretry-faults=7", nodeid, timeout=120)
    again.stdout.fnmatch_lines(["*aioretry fault*", "1 of 1 tests met their fault; 1 of*"])
    assert _told(again) == [line]


@pytest.mark.slow
def test_random_faults_in_several_processes(run) -> None:
    """The same faults meet the same tests, however they are spread."""
    alone, spread = (run(ORDINARY, "--aioretry-faults=3", *more) for more in ([], ["-n2"]))
    assert sorted(_told(alone)) == sorted(_told(spread)) != []


@pytest.mark.slow
def test_random_faults_without_a_test_to_break(run) -> None:
    """Where nothing can be broken, it is said so; a seed is a number."""
    result = run("def test_without_a_server(): pass", "--aioretry-faults=1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["no test was broken: *"])
    result = run("def test_without_a_server(): pass", "--aioretry-faults=many")
    result.stderr.fnmatch_lines(["*argument --aioretry-faults: invalid int value: 'many'*"])


def _told(result: pytest.RunResult) -> list[str]:
    """The lines of the tests that a fault has broken."""
    begin = next(n for n, line in enumerate(result.outlines) if "tests met their fault" in line)
    lines = result.outlines[begin + 1 :]
    return [line for line in lines if line.startswith("test_") and ": " in line]
