"""Service processes: real ones, on real ports."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


async def answers(clients: Sequence[httpx.AsyncClient]) -> None:
    """Wait until all services answer."""
    with anyio.fail_after(120):
        for client in clients:
            while True:
                try:
                    (await client.get("/health")).raise_for_status()
                except (httpx.TransportError, httpx.HTTPStatusError):
                    await anyio.sleep(0.1)
                else:
                    break
