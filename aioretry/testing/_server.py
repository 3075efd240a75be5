"""One mongod: its process, its folder, and short commands to it."""

import contextlib
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from aioretry.testing._admin import CommandFailedError, run_command
from aioretry.testing._mongod import Mongod
from aioretry.testing._ports import HOST, ReservedPort
from aioretry.testing._processes import KeeperError, Processes

START_TIMEOUT: Final = 60.0
ASK_TIMEOUT: Final = 3.0
PAUSE: Final = 0.02  # seconds between two looks at something that is about to change

_ADDRESS_IN_USE: Final = 48  # mongod's exit code
_SHUTDOWN: Final = {"shutdown": 1, "force": True, "timeoutSecs": 1}
_PORT_TRIES: Final = 5
_TAIL_LINES: Final = 20
_TAIL_WIDTH: Final = 500
_COMING_AND_GOING: Final = ('"id":22943,', '"id":22944,')  # of connections, ours above all
_DEFAULT_PARAMETERS: Final = {"enableTestCommands": "1", "diagnosticDataCollectionEnabled": "false"}


class MemberState(Enum):
    """What was done to a server's process."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class MongodStartError(RuntimeError):
    """A mongod ended, or did not answer, while it was starting; the message has its log's end."""


class Server:
    """One mongod; all methods block.

    Args:
        processes: what starts and ends it.
        mongod: the program.
        index: its number within its deployment, from 0.
        set_name: the replica set that it is to be a member of; None for a standalone.
        parameters: server parameters, which win over ours.
    """

    def __init__(
        self,
        processes: Processes,
        mongod: Mongod,
        index: int,
        *,
        set_name: str | None,
        parameters: Mapping[str, str],
    ) -> None:
        self.index = index
        self.pid: int = 0
        self.state: MemberState = MemberState.DEAD
        self.log: Path = processes.folder / f"mongod-{index}.log"
        self._port = ReservedPort()
        self._output = processes.folder / f"mongod-{index}.out"
        self._data = processes.folder / f"data-{index}"
        self._processes = processes
        self._mongod = mongod
        self._set_name = set_name
        self._parameters = {**_DEFAULT_PARAMETERS, **parameters}

    @property
    def port(self) -> int:
        """The port that it has, or had."""
        return self._port.number

    @property
    def address(self) -> str:
        """Host and port, as the server itself knows them."""
        return f"{HOST}:{self.port}"

    @property
    def release(self) -> tuple[int, int]:
        """Its major and minor version."""
        return self._mongod.release

    def launch(self) -> None:
        """Start its process, without waiting for more.

        Raises:
            MongodStartError: the program can't be run.
        """
        argv, env = self._argv(), self._mongod.env
        try:
            self._data.mkdir(exist_ok=True)
            self.pid = self._processes.start(argv, env=env, output=self._output)
        except (OSError, KeeperError) as exc:
            raise self.start_error(f"can't be started: {exc}") from exc
        self.state = MemberState.RUNNING

    def wait_until_up(self, *, may_move: bool) -> None:
        """Wait until it answers commands.

        Args:
            may_move: whether to try again on other ports when its port is taken.

        Raises:
            MongodStartError: it ended, or is silent for a minute.
        """
        deadline = time.monotonic() + START_TIMEOUT
        moves_left = _PORT_TRIES if may_move else 0
        while not self._is_up():
            code = self._processes.poll(self.pid)
            if code == _ADDRESS_IN_USE and moves_left:
                moves_left -= 1
                self._port.close()
                self._port = ReservedPort()
                self.launch()
            elif code is not None:
                self.state = MemberState.DEAD
                raise self.start_error(f"ended with exit code {code}")
            elif time.monotonic() > deadline:
                raise self.start_error(f"did not answer within {START_TIMEOUT:.0f} seconds")
            else:
                time.sleep(PAUSE)

    def leave(self) -> None:
        """Leave its port to others."""
        self._port.close()

    def require_process(self) -> None:
        """Raise an error if there is nothing to wait for.

        Raises:
            MongodStartError: its process has ended.
            KeeperError: the deployment was closed meanwhile.
        """
        code = self._processes.poll(self.pid)
        if code is not None:
            self.state = MemberState.DEAD
            raise self.start_error(f"ended with exit code {code}")

    def kill(self) -> None:
        """Kill it with SIGKILL and wait until it is gone."""
        self._processes.kill(self.pid)
        self.state = MemberState.DEAD

    def stop(self) -> None:
        """Ask it to shut down, as an operator would, and wait until it is gone.

        Raises:
            MongodStartError: it did not end within a minute.
        """
        with contextlib.suppress(ConnectionError):  # that is how it agrees
            self.command(_SHUTDOWN, timeout=START_TIMEOUT)
        deadline = time.monotonic() + START_TIMEOUT
        while self._processes.poll(self.pid) is None:
            if time.monotonic() > deadline:
                raise self.start_error(f"did not end within {START_TIMEOUT:.0f} seconds")
            time.sleep(PAUSE)
        self.state = MemberState.DEAD

    def freeze(self) -> None:
        """Stop it with SIGSTOP and wait until it stands still.

        Raises:
            RuntimeError: it is dead.
        """
        self._became(MemberState.FROZEN, self._processes.freeze(self.pid))

    def thaw(self) -> None:
        """Let it go on with SIGCONT.

        Raises:
            RuntimeError: it is dead.
        """
        self._became(MemberState.RUNNING, self._processes.thaw(self.pid))

    def wake(self) -> None:
        """Thaw it if it is frozen, and launch it if it is dead, whoever has done that to it."""
        if self.state is MemberState.DEAD or self._processes.thaw(self.pid) is not None:
            self.launch()
        self.state = MemberState.RUNNING

    def command(
        self, command: Mapping[str, Any], *, database: str = "admin", timeout: float = ASK_TIMEOUT
    ) -> dict[str, Any]:
        """Send it a command.

        Args:
            command: the command, its name first.
            database: the database that it runs on.
            timeout: seconds to wait for an answer.

        Raises:
            CommandFailedError: it answered with an error.
            OSError: it did not answer.
        """
        return run_command(HOST, self.port, command, database=database, timeout=timeout)

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any] | None:
        """Send it a command that may well fail.

        Returns:
            The reply; None if it is dead or frozen, answered with an error, or kept silent for
            three seconds.
        """
        if self.state is not MemberState.RUNNING:
            return None
        try:
            return self.command(command)
        except (OSError, CommandFailedError):
            return None

    def start_error(self, what: str) -> MongodStartError:
        """Make an error that ends with the end of the log."""
        tail = "\n".join(_tail(self.log) or _tail(self._output))
        return MongodStartError(
            f"mongod {self._mongod.version} on {self.address} {what}\n"
            f"{self._mongod.path}; its log ends:\n{tail}"
        )

    def _became(self, state: MemberState, exit_code: int | None) -> None:
        if exit_code is not None:
            self.state = MemberState.DEAD
            raise RuntimeError(f"the server {self.address} is dead: exit code {exit_code}")
        self.state = state

    def _is_up(self) -> bool:
        """Whether this very process answers, and not another one that has its port."""
        try:
            options = self.command({"getCmdLineOpts": 1})
        except OSError:
            return False
        return bool(options["parsed"].get("storage", {}).get("dbPath") == str(self._data))

    def _argv(self) -> list[str]:
        argv = [str(self._mongod.path), "--bind_ip", HOST, "--port", str(self.port)]
        argv += ["--dbpath", str(self._data), "--logpath", str(self.log), "--logappend"]
        # A fifth of the cache may be dirty: with less, a few documents of 12 MB hold up all writes.
        argv += ["--nounixsocket", "--wiredTigerCacheSizeGB", "1"]
        argv += ["--wiredTigerEngineConfigString", "log=(file_max=10MB)"]
        if self._set_name is not None:
            argv += ["--replSet", self._set_name, "--oplogSize", "64"]
        for name, value in self._parameters.items():
            argv += ["--setParameter", f"{name}={value}"]
        return argv


def _tail(file: Path) -> list[str]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    said = [line for line in lines if not any(noise in line for noise in _COMING_AND_GOING)]
    last = said[-_TAIL_LINES:]
    return [line if len(line) <= _TAIL_WIDTH else line[:_TAIL_WIDTH] + "..." for line in last]
