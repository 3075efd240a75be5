import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from aioretry.testing import Mongod, MongodStartError, ReplicaSet, Standalone, _ports, _server
from aioretry.testing._ports import ReservedPort
from aioretry.testing._processes import KeeperError

RUNNER = """
import json, sys
from aioretry.testing import ReplicaSet
with ReplicaSet(2, faults=True) as servers:
    pids = [member.pid for member in servers.members]
    print(json.dumps([pids, str(servers.members[0].log.parent)]), flush=True)
    sys.stdin.read()
"""


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def what_runs(process: subprocess.Popen[str]) -> tuple[list[int], Path]:
    pids, folder = json.loads(process.stdout.readline())
    assert all(map(lives, pids))
    assert Path(folder).exists()
    return pids, Path(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.server
def test_runner_gets_a_signal(
    run_python, eventually: Callable[..., None], number: signal.Signals
) -> None:
    """Neither Ctrl-C (to the whole process group) nor a killed runner leaves anything behind."""
    with run_python(RUNNER) as process:
        pids, folder = what_runs(process)

        os.killpg(process.pid, number)

        process.wait(20)
        eventually(lambda: not folder.exists() and not any(map(lives, pids)))


@pytest.mark.server
def test_frozen_server(run_python, eventually: Callable[..., None]) -> None:
    """A stopped server is ended too when its runner is killed."""
    with run_python(RUNNER) as process:
        pids, folder = what_runs(process)
        os.kill(pids[0], signal.SIGSTOP)

        process.kill()

        eventually(lambda: not folder.exists() and not any(map(lives, pids)))


async def test_exception() -> None:
    """An exception inside the block leaves nothing behind."""
    deployment = ReplicaSet(1, faults=True)
    others = set(threading.enumerate())

    async def fail() -> None:
        async with deployment:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()

    [member] = deployment.members
    assert not lives(member.pid)
    assert not member.log.parent.exists()
    assert "aioretry-proxy" not in {
        thread.name for thread in threading.enumerate() if thread not in others
    }


async def test_cancelled_while_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A start that is cancelled leaves nothing behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    deployment = Standalone()
    starting = asyncio.create_task(deployment.__aenter__())
    while not list(tmp_path.glob("aioretry-*/*")):
        await asyncio.sleep(0)

    starting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await starting
    assert [] == list(tmp_path.iterdir())


def test_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error has what the server said, and nothing is left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    with (
        pytest.raises(MongodStartError, match=r"(?s)ended with exit code.*noSuchParameter"),
        Standalone(parameters={"noSuchParameter": "1"}),
    ):
        pytest.fail("it started")
    assert [] == list(tmp_path.iterdir())


def test_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose port was taken meanwhile moves to another one."""
    with Standalone() as first:
        ports = iter([Mock(number=first.member.port)])
        monkeypatch.setattr(_server, "ReservedPort", lambda: next(ports, None) or ReservedPort())
        with Standalone() as second:
            assert first.member.port != second.member.port


@pytest.mark.skipif(sys.platform != "linux", reason="ports are reserved on Linux")
async def test_port_of_a_dead_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else gets it, so that the server can come back; it is free once all is closed."""
    async with Standalone() as deployment:
        port = deployment.member.port
        monkeypatch.setattr(_ports, "_FIRST", port)
        monkeypatch.setattr(_ports, "_LAST", port)
        await deployment.kill(deployment.member)
        with pytest.raises(OSError, match="no free port"):
            ReservedPort()
        await deployment.restart(deployment.member)

    with closing(ReservedPort()) as free:
        assert port == free.number


def test_close_twice() -> None:
    """Closing twice is fine; starting a second time is refused."""
    deployment = Standalone()
    with deployment:
        pass
    deployment.close()

    with pytest.raises(RuntimeError, match="once only"):
        deployment.start()
    assert "<Standalone <Member 0" in repr(deployment)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child(eventually: Callable[..., None]) -> None:
    """A forked child neither ends the servers nor keeps them alive."""
    context = multiprocessing.get_context("fork")
    go_on = context.Event()
    with Standalone() as deployment:

        def child() -> None:
            deployment.close()
            go_on.wait(20)

        process = context.Process(target=child)
        process.start()
        assert lives(deployment.member.pid)
    assert process.is_alive()
    assert not lives(deployment.member.pid)
    assert not deployment.member.log.parent.exists()
    go_on.set()
    process.join(20)
    assert 0 == process.exitcode


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's help")
def test_keeper_is_killed(eventually: Callable[..., None]) -> None:
    """Servers don't outlive their keeper, and the owner is told and cleans up."""
    deployment = Standalone()
    with deployment:
        keeper = deployment._cluster._processes._keeper
        keeper.kill()
        keeper.wait()
        eventually(lambda: not lives(deployment.member.pid))
        with pytest.raises(KeeperError, match="is gone"):
            asyncio.run(deployment.kill(deployment.member))

    assert not deployment.member.log.parent.exists()


def test_program_that_can_not_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that isn't there is told from one that fails, and nothing is left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mongod = Mongod(tmp_path / "nothing", "6.0.0")

    with pytest.raises(MongodStartError, match="FileNotFoundError"), Standalone(mongod=mongod):
        pytest.fail("it started")
    assert [] == list(tmp_path.iterdir())


def test_members_that_no_set_has() -> None:
    """A set without members, or with more than can vote, is refused."""
    for members in (0, 8):
        with pytest.raises(ValueError, match="1 to 7 members"):
            ReplicaSet(members)
