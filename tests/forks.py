"""Processes that are forked from one that has imported everything, which saves a second each."""

import asyncio
import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        __name__,
        "aioretry.__main__",
        "aioretry._doctor.command",
        "aioretry.client",
        "aioretry.idempotent",
        "pymongo.asynchronous.mongo_client",
    ]
)


class Fork:
    """A process that calls a function from now on; its exit code is 0, or that of `sys.exit`.

    Args:
        function: ``module:function``.
        *arguments: What it is called with.
        env: Environment variables besides ours.
    """

    def __init__(
        self, function: str, *arguments: Any, env: Mapping[str, str] | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        variables = {**os.environ, **(env or {})}
        self._process = _FORKS.Process(
            target=_call, args=(self._folder.name, variables, function, arguments), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """Its id."""
        assert self._process.pid is not None
        return self._process.pid

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

    def close(self) -> tuple[str, str]:
        """Forget it when it has ended; give what it has written to standard output and error."""
        self._process.join()
        self._process.close()
        folder = Path(self._folder.name)
        written = tuple((folder / name).read_text() for name in ("stdout", "stderr"))
        self._folder.cleanup()
        return written


def _call(
    folder: str, variables: dict[str, str], function: str, arguments: tuple[Any, ...]
) -> None:
    for name, file in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        with (Path(folder) / name).open("w") as written:
            os.dup2(written.fileno(), file.fileno())
    os.environ.clear()
    os.environ.update(variables)
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(*arguments)
