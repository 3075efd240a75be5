"""Workers in processes of their own."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process

from tests.streams.service import NAME, URI

SERVICE = "tests.streams.service:aggregator"


async def start(uri: str, name: str, *arguments: str, service: str = SERVICE) -> Process:
    """Start ``python -m aioretry stream`` for a collection."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "aioretry",
        "stream",
        *arguments,
        service,
        env={**os.environ, URI: uri, NAME: name},
        stdout=PIPE,
        stderr=PIPE,
    )


async def ended(process: Process) -> tuple[int | None, str, str]:
    """Wait until it ends; return its exit code and what it has written."""
    said, complained = await process.communicate()
    return process.returncode, said.decode(), complained.decode()


async def done(uri: str, name: str, *arguments: str, **options: str) -> tuple[int | None, str, str]:
    """Run it to its end."""
    return await ended(await start(uri, name, *arguments, **options))
