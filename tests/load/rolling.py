"""Instances of a service that are replaced under load, as an orchestrator does it."""

import asyncio
import math
import re
from collections import Counter
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from aioretry.testing._ports import ReservedPort
from tests.examples.services import PATIENCE, STOPPED, Process, answers
from tests.load.run import Side, service
from tests.load.shoppers import Told

_PERIOD = 0.05  # of the probes, in seconds
_ANSWERED = re.compile(r'"POST \S+ HTTP/1\.1" (\d+)')
_CUT = re.compile(r"Cancel (\d+) running task\(s\), timeout graceful shutdown exceeded")


@dataclass(eq=False, slots=True)
class Instance:
    """A process of the service."""

    url: str
    process: Process
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: float = math.inf
    """When it was told to end, in seconds since the run began."""

    @property
    def answered(self) -> Counter[int | None]:
        """The statuses by which it has answered what was wanted, as uvicorn has logged them."""
        return Counter(int(status) for status in _ANSWERED.findall(self.process.output))

    @property
    def cut(self) -> int:
        """How many requests uvicorn has cancelled, since they took longer than it waits."""
        return sum(int(number) for number in _CUT.findall(self.process.log))


class Fleet:
    """The instances of a service; those that are ready get requests.

    Args:
        side: The service.
        folder: For what its instances print and log.
        uri: Of the servers.
        told: Whose clock counts.
        flags: What else uvicorn is told.
    """

    def __init__(self, side: Side, folder: Path, uri: str, told: Told, *flags: str) -> None:
        self.instances: list[Instance] = []
        self.ready: list[str] = []
        """The URLs of those that are ready: where requests go."""

        self._start = lambda port: service(side, folder, uri, port, *flags)
        self._told = told
        self._stack = AsyncExitStack()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        # As an orchestrator, which has a connection of its own for each probe.
        probing = aiohttp.TCPConnector(force_close=True)
        session = await self._stack.enter_async_context(aiohttp.ClientSession(connector=probing))
        self._watching = asyncio.create_task(self._watch(session))
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._watching is not None
        self._watching.cancel()
        await asyncio.wait({self._watching})
        await self._stack.__aexit__(exc_type, exc, traceback)

    async def start(self) -> Instance:
        """Start an instance; it may not be ready yet."""
        port = self._stack.enter_context(closing(ReservedPort())).number
        process = await self._stack.enter_async_context(self._start(port))
        instance = Instance(f"http://127.0.0.1:{port}", process)
        self.instances.append(instance)
        return instance

    async def until_ready(self, instance: Instance) -> None:
        """Wait until an instance is ready."""
        async with asyncio.timeout(PATIENCE):
            await instance.is_ready.wait()

    async def stop(self, instance: Instance) -> None:
        """End an instance by SIGTERM; it has to end well."""
        instance.ended = self._told.now
        assert await instance.process.stop() in STOPPED, instance.process.log

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        while True:
            known = [each for each in self.instances if not each.process.has_ended]
            ready = await asyncio.gather(
                *(answers(session, f"{instance.url}/readyz") for instance in known)
            )
            found = [each for each, is_ready in zip(known, ready, strict=True) if is_ready]
            self.ready[:] = [instance.url for instance in found]
            for instance in found:
                instance.is_ready.set()
            await asyncio.sleep(_PERIOD)
