"""Service processes: real ones, on real ports."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[None]:
    """A Python process, until the end of the block."""
    running = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, **environment}
    )
    try:
        yield
    finally:
        running.terminate()
        running.wait()


async def answers(clients: Sequence[httpx.AsyncClient]) -> None:
    """Wait until all services are ready."""
    with anyio.fail_after(120):
        for client in clients:
            while True:
                try:
                    (await client.get("/readyz")).raise_for_status()
                except (httpx.TransportError, httpx.HTTPStatusError):
                    await anyio.sleep(0.1)
                else:
                    break
