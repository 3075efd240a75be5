"""Processes of their own, for what one process can't tell of two clients."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self


class ChildError(Exception):
    """A process ended, and not well."""


async def run(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module, and return what it prints: an object in JSON.

    Raises:
        ChildError: It failed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise ChildError(f"{module} ended with exit code {process.returncode}")
    told: dict[str, Any] = json.loads(output)
    return told


class Child:
    """A process that answers lines with lines; an ``async with`` block, whose end ends it.

    Args:
        module: What it runs.
        arguments: Its command line.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()  # the end of its input is the end of its work
        if exc is not None:
            self._process.kill()
        await self._process.wait()

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Send an object, and return the one that answers it.

        Raises:
            ChildError: It has ended.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        if not line:
            raise ChildError(f"{' '.join(self._command)} has ended")
        told: dict[str, Any] = json.loads(line)
        return told
