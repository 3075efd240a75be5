"""What guards the suite does strike, seen in test runs of their own."""

import os
import signal
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
INI = """
    [pytest]
    asyncio_mode = auto
    asyncio_default_fixture_loop_scope = function
    filterwarnings = error
    timeout = 120
    markers =
        sample(n)
        server
        slow
"""
CONFTEST = """
    pytest_plugins = [
        "tests.plugins.limits",
        "tests.plugins.samples",
        "tests.plugins.signals",
        "tests.plugins.sockets",
        "tests.plugins.times",
        "tests.plugins.unhandled",
    ]
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run a file of tests in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST)

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=100)

    return run


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


class TestLimits:
    @pytest.mark.sample(2)
    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_test_that_hangs(self, run, workers, tmp_path):
        """It fails with the stacks of threads and tasks, its processes are killed, others go on."""
        told = tmp_path / "pid"
        result = run(
            f"""
            import asyncio, pathlib, subprocess, sys
            import pytest

            async def wait_for_nothing():
                await asyncio.Event().wait()

            @pytest.mark.timeout(2)
            async def test_hangs():
                child = subprocess.Popen(
                    [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
                )
                pathlib.Path({str(told)!r}).write_text(str(child.pid))
                task = asyncio.create_task(wait_for_nothing())
                await asyncio.to_thread(child.wait)

            def test_next():
                pass
            """,
            f"-n{workers}",
        )
        result.assert_outcomes(failed=1, passed=1)
        result.stdout.fnmatch_lines(["*took more than 2 seconds*", "*--- task*"])
        assert "wait_for_nothing" in result.stdout.str()
        assert "child.wait" in result.stdout.str()
        assert is_gone(int(told.read_text()))

    @pytest.mark.slow
    def test_a_test_that_can_not_be_ended(self, run):
        """Its process is ended, which is told, and another one makes the other tests."""
        result = run(
            """
            import signal
            import pytest
            from tests.plugins import limits

            limits.MERCY = 0.5

            @pytest.mark.timeout(0.5)
            def test_hangs():
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
                signal.sigwait({signal.SIGUSR1})

            def test_next():
                pass
            """,
            "-n1",
        )
        result.assert_outcomes(failed=1, passed=1)
        result.stdout.fnmatch_lines(["*worker 'gw0' crashed while running*test_hangs*"])
        assert "test_hangs can't be ended" in result.stderr.str()

    def test_a_failed_test_that_hangs_when_it_is_torn_down(self, run):
        """A test has a limit until its fixtures are closed, also once it has failed."""
        result = run(
            """
            import asyncio
            import pytest

            @pytest.fixture
            async def endless():
                yield
                await asyncio.Event().wait()

            @pytest.mark.timeout(2)
            async def test_fails(endless):
                assert False
            """
        )
        result.assert_outcomes(failed=1, errors=1)
        result.stdout.fnmatch_lines(["*took more than 2 seconds*"])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("loop.call_soon(fail)", "exception handler was called"),
        ("threading.Thread(target=fail).start()", "Exception in thread"),
        ("Broken()", "Exception ignored in"),
    ],
    ids=["loop", "thread", "unraisable"],
)
def test_an_error_that_nobody_awaits(run, what, told):
    """It fails the test during which it comes."""
    result = run(
        f"""
        import asyncio, threading

        def fail():
            raise ZeroDivisionError

        class Broken:
            def __del__(self):
                fail()

        async def test_passes_all_the_same():
            loop = asyncio.get_running_loop()
            {what}
            await asyncio.sleep(0.05)
        """
    )
    result.assert_outcomes(failed=1)
    assert told in result.stdout.str()
    assert "ZeroDivisionError" in result.stdout.str()


def test_signals(run):
    """What a background job ignores is not ignored by what its tests start."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = run(
            """
            import signal, subprocess, sys

            def test_it():
                script = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
                assert b"False" == subprocess.check_output([sys.executable, "-c", script]).strip()
            """
        )
    finally:
        signal.signal(signal.SIGINT, before)
    result.assert_outcomes(passed=1)


def test_sockets(run):
    """A socket that is left says who opened it, in whatever test it is found."""
    result = run(
        """
        import gc, socket

        def test_leaves_one():
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                kept = [socket.create_connection(listener.getsockname())]
                kept.append(kept)

        def test_next():
            gc.collect()
        """
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*It was opened in *::test_leaves_one (call), at*"])


def test_sockets_of_pymongo(run):
    """What PyMongo leaves when it is cancelled is no fault of whatever test runs by then."""
    result = run(
        """
        import asyncio, gc, socket
        from pymongo import AsyncMongoClient

        async def test_leaves_some():
            with socket.socket() as listener, socket.socket() as one, socket.socket() as another:
                listener.bind(("127.0.0.1", 0))
                listener.listen(0)  # no more are accepted
                host, port = listener.getsockname()
                one.connect((host, port))
                another.setblocking(False)
                another.connect_ex((host, port))
                loop, begun = asyncio.get_running_loop(), asyncio.Event()
                connect = loop.sock_connect
                loop.sock_connect = lambda *of: (begun.set(), connect(*of))[1]
                client = AsyncMongoClient(host, port, directConnection=True)
                finding = asyncio.ensure_future(client.things.things.find_one())
                await begun.wait()
                finding.cancel()
                await asyncio.wait([finding])
                await client.close()

        def test_next():
            gc.collect()
        """
    )
    result.assert_outcomes(passed=2)


def test_times(run):
    """The run ends with its slowest tests and the time by folder, and then its summary."""
    result = run("def test_it(): pass")
    result.stdout.fnmatch_lines(
        [
            "*slowest 20 tests*",
            "*test_times.py::test_it",
            "*time by folder*",
            "*1 tests*",
            "*1 passed*",
        ]
    )


def test_samples(run):
    """`make test` has one case of n, and half of many; the long run has the others."""
    source = """
        import pytest

        @pytest.mark.sample(3)
        @pytest.mark.parametrize("case", range(5))
        def test_cases(case): pass

        @pytest.mark.server
        @pytest.mark.parametrize("case", range(7))
        def test_many(case): pass

        @pytest.mark.slow
        def test_rare(): pass

        def test_other(): pass
    """
    run(source, "-m", "not slow").assert_outcomes(passed=7, deselected=7)
    run(source, "-m", "slow").assert_outcomes(passed=7, deselected=7)
