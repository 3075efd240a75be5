"""The keeper: parent of all server processes of one deployment, which outlives its owner.

It runs as a process and a session of its own, by this file's path, with the standard library
alone. Its owner talks to it in lines of JSON: one request on standard input, one reply on standard
output. When standard input ends, the owner is gone, for whatever reason: closed, crashed or
killed. Then the keeper kills its children (stopped ones too), removes its folder, and ends.

Only the keeper, their parent, ever signals the servers, and it collects a dead one's exit status
only in answer to a request: the process id that a signal goes to can't have been given to another
process meanwhile.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any, BinaryIO, NoReturn

_PR_SET_PDEATHSIG = 1


class Keeper:
    """The child processes and the folder.

    Args:
        folder: the folder that the children live in; removed at the end.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._frozen: set[int] = set()
        self._die_with_parent = _die_with_parent()
        self._verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "start": self._start,
            "kill": self._kill,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "poll": self._poll,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what one request says.

        Args:
            request: the request; `do` names the verb, `id` is repeated in the reply.

        Returns:
            The reply; it has `error` where the verb failed.
        """
        try:
            reply = self._verbs[request["do"]](request)
        except Exception as exc:  # noqa: BLE001  # the owner is told, and decides
            reply = {"error": f"{type(exc).__name__}: {exc}"}
        return {"id": request["id"], **reply}

    def end(self) -> None:
        """Kill and collect every child, then remove the folder."""
        for child in self._children.values():
            if child.returncode is None:
                child.kill()
        for child in self._children.values():
            child.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        with open(request["output"], "ab") as output:  # noqa: PTH123  # quicker to import nothing
            child = subprocess.Popen(
                request["argv"],
                env={**os.environ, **request["env"]},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Safe: this process has a single thread.
                preexec_fn=self._die_with_parent,  # noqa: PLW1509
            )
        self._children[child.pid] = child
        self._frozen.discard(child.pid)  # a dead one may have had this number
        return {"pid": child.pid}

    def _kill(self, request: dict[str, Any]) -> dict[str, Any]:
        child = self._children[request["pid"]]
        child.kill()
        return {"code": child.wait()}

    def _freeze(self, request: dict[str, Any]) -> dict[str, Any]:
        child = self._children[request["pid"]]
        if child.poll() is None and child.pid not in self._frozen:
            child.send_signal(signal.SIGSTOP)
            # Returns, once, when all of its threads stand still; or when it died first.
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                self._frozen.add(child.pid)
            else:
                child.returncode = os.waitstatus_to_exitcode(status)
        return {"code": child.returncode}

    def _thaw(self, request: dict[str, Any]) -> dict[str, Any]:
        child = self._children[request["pid"]]
        child.send_signal(signal.SIGCONT)
        self._frozen.discard(child.pid)
        return {"code": child.poll()}

    def _poll(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"code": self._children[request["pid"]].poll()}


def _die_with_parent() -> Callable[[], None] | None:
    """What a new child runs so that the kernel kills it when the keeper itself is killed."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    keeper = os.getpid()

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died before the line above
            os.kill(os.getpid(), signal.SIGKILL)

    return die_with_parent


def _stop(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Keep processes until the requests end.

    Args:
        requests: lines of JSON.
        replies: where to write lines of JSON; the first one names the folder.
    """
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, _stop)
    folder = tempfile.mkdtemp(prefix="aioretry-")
    keeper = Keeper(folder)
    try:
        _write(replies, {"id": 0, "folder": folder})
        for line in iter(requests.readline, b""):
            _write(replies, keeper.answer(json.loads(line)))
    except BrokenPipeError:
        pass  # the owner is gone
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        keeper.end()


def _write(replies: BinaryIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
