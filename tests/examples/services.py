"""Examples as their readers start them: processes of their own, spoken to over HTTP."""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp

from aioretry.testing import ReplicaSet
from aioretry.testing._ports import ReservedPort

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 60.0
STOPPED = {0, -signal.SIGTERM}  # uvicorn ends by the signal itself, once it has cleaned up


class Process:
    """A program that runs, and what it has written so far.

    Args:
        process: What runs.
        output: The file that it writes to.
        log: The file of what it logs, and of its errors.
    """

    def __init__(self, process: asyncio.subprocess.Process, output: Path, log: Path) -> None:
        self._process = process
        self._output = output
        self._log = log

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    @property
    def log(self) -> str:
        """What it has logged, and its errors."""
        return self._log.read_text()

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.returncode is not None

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    async def kill(self) -> None:
        """End it at once, as by a power cut."""
        self._process.kill()
        await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def stop(self) -> int:
        """End it as an operator does; give its exit code."""
        if not self.has_ended:
            self._process.terminate()
        async with asyncio.timeout(PATIENCE):
            return await self._process.wait()


@asynccontextmanager
async def running(tmp_path: Path, *command: str, **environment: str) -> AsyncIterator[Process]:
    """Run a Python program from the project's folder; ask it to end, and have it end well.

    Args:
        tmp_path: Where its output goes.
        command: What follows ``python``.
        environment: What is in its environment beside what is in ours.
    """
    name = uuid.uuid4().hex
    output, log = tmp_path / f"{name}.txt", tmp_path / f"{name}.log"
    with output.open("w") as printed, log.open("w") as logged:
        started = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=printed,
            stderr=logged,
        )
    process = Process(started, output, log)
    try:
        yield process
        if not process.has_ended:  # the test has killed it
            assert await process.stop() in STOPPED, process.log
    finally:
        if not process.has_ended:
            await process.kill()


class Web:
    """A service that answers, and a client of it.

    Args:
        session: The client.
        process: The service.
    """

    def __init__(self, session: aiohttp.ClientSession, process: Process) -> None:
        self.session = session
        self.process = process

    async def get(self, path: str) -> object:
        """Get a JSON document, which has to be there."""
        async with self.session.get(path) as response:
            assert 200 == response.status, self.process.log
            return await response.json()

    async def post(self, path: str, document: object) -> tuple[int, object]:
        """Post a JSON document; give the status, and what was answered (its text if no JSON)."""
        async with self.session.post(path, json=document) as response:
            text = await response.text()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text


@asynccontextmanager
async def serving(tmp_path: Path, health: str, *command: str) -> AsyncIterator[Web]:
    """Run a web service, whose command ends with a port, and wait until it answers.

    Args:
        tmp_path: Where its output goes.
        health: A path that it answers with 200.
        command: What follows ``python``, without the port itself.
    """
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    with closing(ReservedPort()) as port:
        base = f"http://127.0.0.1:{port.number}"
        async with running(tmp_path, *command, str(port.number)) as process:
            async with aiohttp.ClientSession(base, timeout=timeout) as session:
                async with asyncio.timeout(PATIENCE):
                    while not await answers(session, health):
                        assert not process.has_ended, process.log
                        await asyncio.sleep(0.05)
                yield Web(session, process)


async def answers(session: aiohttp.ClientSession, path: str) -> bool:
    """Tell whether a path is answered with 200."""
    try:
        async with session.get(path) as response:
            return response.status == 200
    except aiohttp.ClientConnectionError:
        return False


class Count:
    """How often something happened, to be waited for."""

    def __init__(self) -> None:
        self.number = 0
        self._changed = asyncio.Event()

    def add(self) -> None:
        """Count one more."""
        self.number += 1
        self._changed.set()

    async def more(self, number: int) -> None:
        """Wait until it has happened so many times more."""
        goal = self.number + number
        async with asyncio.timeout(PATIENCE):
            while self.number < goal:
                self._changed.clear()
                await self._changed.wait()


async def through_a_failover(
    servers: ReplicaSet, accepted: Count, call: Callable[[int], Awaitable[None]], clients: int = 10
) -> None:
    """Have clients call without a pause, before, while and after the primary is killed.

    Args:
        servers: Whose primary is killed.
        accepted: Counts what the calls achieve.
        call: One call; it is given the number of the client.
        clients: How many there are.
    """
    is_over = asyncio.Event()

    async def client(number: int) -> None:
        while not is_over.is_set():
            await call(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(clients):
            tasks.create_task(client(number))
        await accepted.more(5 * clients)
        killed = await servers.primary()
        await servers.kill(killed)
        await servers.wait_for_primary(other_than=killed)
        await accepted.more(5 * clients)
        is_over.set()


def with_database(uri: str, name: str) -> str:
    """Name the database in a URI without one."""
    return uri.replace("/?", f"/{name}?")


def new_name() -> str:
    """Make a name for a database of a test's own."""
    return f"example_{uuid.uuid4().hex[:12]}"
