"""A deployment that is there already, in the place of the sets that the suite starts.

A test that needs more of it than clients and proxies, such as processes to kill, is skipped.
"""

import asyncio
import os
import time
from typing import Any, NoReturn

import pytest

from aioretry.testing import BlackPipe, NoPrimaryError, PipeMember
from aioretry.testing._admin import run_command

VARIABLE = "AIORETRY_TEST_URI"
URI = os.environ.get(VARIABLE)


def _skip(what: str) -> NoReturn:
    pytest.skip(f"the deployment in {VARIABLE} has no {what}")


class ExistingMember:
    """A server that nobody here has started."""

    def __init__(self, member: PipeMember) -> None:
        self.index, self.address = member.index, member.address
        self.direct_address = member.direct_address
        self.host, port = member.address.split(":")
        self.port = int(port)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _skip(f"{name} of a server")

    def hello(self) -> dict[str, Any]:
        """Ask it what it is."""
        return run_command(self.host, self.port, {"hello": 1}, timeout=10.0)


class ExistingSet(BlackPipe):
    """Proxies before a deployment of which only clients know.

    Args:
        members: How many there have to be; else the tests are skipped.
    """

    def __init__(self, members: int) -> None:
        super().__init__(URI or "")
        self._least = members
        self._servers: tuple[ExistingMember, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _skip(f"{name}()")

    @property
    def members(self) -> tuple[Any, ...]:
        """Its servers; the same objects each time."""
        return self._servers

    def start(self) -> None:
        """Find them."""
        super().start()
        self._servers = tuple(map(ExistingMember, super().members))
        if len(self._servers) < self._least:
            self.close()
            _skip(f"{self._least} members")

    async def heal(self) -> None:
        """Nothing is broken: nobody here can."""

    async def primary(self) -> ExistingMember:
        """Ask who is."""
        replies = [(one, await asyncio.to_thread(one.hello)) for one in self.members]
        found = [one for one, reply in replies if reply.get("isWritablePrimary")]
        if not found:
            raise NoPrimaryError("no member is primary")
        return found[0]

    async def secondaries(self) -> tuple[ExistingMember, ...]:
        """Ask who are."""
        replies = [(one, await asyncio.to_thread(one.hello)) for one in self.members]
        return tuple(one for one, reply in replies if reply.get("secondary"))

    async def wait_for_primary(self, seconds: float = 30.0) -> ExistingMember:
        """Wait until somebody is."""
        end = time.monotonic() + seconds
        while True:
            try:
                return await self.primary()
            except NoPrimaryError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.1)
