"""A process that runs one recipe, to be killed."""

import asyncio
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# Each is forked from a process that has imported everything, which is quicker by a second.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [__name__, "aioretry.idempotent", "pymongo.asynchronous.mongo_client"]
)


class Child:
    """A process that runs a recipe from now on.

    Args:
        target: ``module:function``: an ``async def``.
        uri: Its first argument.
        arguments: Its other ones.
    """

    def __init__(self, target: str, uri: str, arguments: dict[str, Any]) -> None:
        self._complaints = tempfile.NamedTemporaryFile(mode="r")  # noqa: SIM115
        self._process = _FORKS.Process(
            target=_complain, args=(self._complaints.name, target, uri, arguments), daemon=True
        )
        self._process.start()

    async def wait(self) -> int | None:
        """Wait until it ends; give its exit code."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        """Kill it, if it is still there."""
        self._process.kill()

    @property
    def complaints(self) -> str:
        """What it has written to standard error."""
        return self._complaints.read()

    def close(self) -> None:
        """Forget it once it has ended."""
        self._process.close()
        self._complaints.close()


def _complain(complaints: str, target: str, uri: str, arguments: dict[str, Any]) -> None:
    with Path(complaints).open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    run(target, uri, arguments)


def run(target: str, uri: str, arguments: dict[str, Any]) -> None:
    """Run a recipe."""
    module, _, function = target.partition(":")
    asyncio.run(getattr(importlib.import_module(module), function)(uri, **arguments))


if __name__ == "__main__":
    run(*sys.argv[1:3], json.loads(sys.argv[3]))
