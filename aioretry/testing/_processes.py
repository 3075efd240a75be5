"""The owner's end of the keeper: starting, signalling and watching server processes."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_KEEPER: Final = Path(__file__).with_name("_keeper.py")
_END_TIMEOUT: Final = 30.0


class KeeperError(RuntimeError):
    """The keeper process refused a request or is gone."""


class Processes:
    """Server processes that end with this object, or with this process, whatever happens to it.

    Thread-safe; it belongs to the process that made it. A forked child closes its copy of the pipe
    to the keeper, and can do nothing with it.

    Raises:
        KeeperError: the keeper could not be started.
    """

    def __init__(self) -> None:
        if sys.platform == "win32":
            raise KeeperError("servers can be started on Linux and macOS only")
        self._lock = threading.Lock()  # guards the pipe: one request at a time
        self._numbers = itertools.count(1)
        self._owner = os.getpid()
        self._pipe, keepers_end = socket.socketpair()
        self._replies = self._pipe.makefile("rb")
        with keepers_end:
            # -I -S: the standard library alone, whatever the environment says; starts at once.
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER)],
                stdin=keepers_end.fileno(),
                stdout=keepers_end.fileno(),
                start_new_session=True,  # Ctrl-C at the terminal reaches neither it nor the servers
            )
        _living.add(self)
        try:
            self.folder: Path = Path(self._reply_to(0)["folder"])
        except BaseException:
            self._hang_up()
            self._keeper.wait(_END_TIMEOUT)
            raise

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], output: Path) -> int:
        """Start a process.

        Args:
            argv: program and arguments.
            env: variables to set for it beside those of this process.
            output: the file that its standard output and error are appended to.

        Returns:
            Its process id.

        Raises:
            KeeperError: it can't be started.
        """
        reply = self._ask(do="start", argv=list(argv), env=dict(env), output=str(output))
        return int(reply["pid"])

    def kill(self, pid: int) -> None:
        """Kill a process with SIGKILL and wait until it is gone; fine if it is gone already."""
        self._ask(do="kill", pid=pid)

    def freeze(self, pid: int) -> int | None:
        """Stop a process with SIGSTOP and wait until all of its threads stand still.

        Returns:
            Its exit code if it is dead instead; a negative one is a signal's number.
        """
        return _code(self._ask(do="freeze", pid=pid))

    def thaw(self, pid: int) -> int | None:
        """Let a process go on with SIGCONT.

        Returns:
            Its exit code if it is dead instead.
        """
        return _code(self._ask(do="thaw", pid=pid))

    def poll(self, pid: int) -> int | None:
        """Say whether a process is dead.

        Returns:
            Its exit code, or None while it lives.
        """
        return _code(self._ask(do="poll", pid=pid))

    def close(self) -> None:
        """Kill every process, remove the folder, and wait until that is done; fine to repeat."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._replies.closed:
                return
            self._hang_up()
            try:
                self._keeper.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._keeper.kill()  # on Linux the kernel then kills the servers
                self._keeper.wait()
        shutil.rmtree(self.folder, ignore_errors=True)  # is gone, unless the keeper was killed

    def forget(self) -> None:
        """Close a forked child's copy of the pipe, so that the owner alone holds it open."""
        self._lock = threading.Lock()  # may have been held by another thread when it forked
        self._hang_up()

    def _hang_up(self) -> None:
        self._replies.close()
        self._pipe.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        number = next(self._numbers)
        line = json.dumps({"id": number, **request}).encode() + b"\n"
        with self._lock:
            if self._replies.closed:
                raise KeeperError("the servers are closed, or belong to another process")
            try:
                self._pipe.sendall(line)
            except OSError as exc:
                raise KeeperError("the keeper of the servers is gone") from exc
            return self._reply_to(number)

    def _reply_to(self, number: int) -> dict[str, Any]:
        while True:
            line = self._replies.readline()
            if not line:
                raise KeeperError("the keeper of the servers is gone")
            reply: dict[str, Any] = json.loads(line)
            if reply["id"] != number:
                continue  # an earlier request's, whose caller was interrupted while it waited
            if "error" in reply:
                raise KeeperError(reply["error"])
            return reply


def _code(reply: Mapping[str, Any]) -> int | None:
    code: int | None = reply["code"]
    return code


_living: weakref.WeakSet[Processes] = weakref.WeakSet()


def _forget_all() -> None:
    for processes in list(_living):
        processes.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_all)
