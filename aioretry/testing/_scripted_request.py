"""A command that a scripted server has received."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aioretry.testing._wire import MORE_TO_COME, command_of, flags_of, header_of, reply_of


class ScriptedRequest:
    """A command that a `ScriptedServer` has received. It is answered once, from any thread.

    Where the client has gone meanwhile, an answer is sent to nobody.

    Args:
        message: the whole request.
        send: sends a message, or hangs up if it is None; from any thread.

    Attributes:
        command: the whole command as it came, with its document sequences as arrays.
        request_id: the number of the message; another one for each message of a client.
        expects_reply: whether the client waits for a reply; with `w: 0` it does not.

    Raises:
        aioretry.testing._wire.WireError: the message is malformed.
    """

    __slots__ = (
        "_answered",
        "_lock",
        "_message",
        "_send",
        "command",
        "expects_reply",
        "request_id",
    )

    def __init__(self, message: bytes, send: Callable[[bytes | None], None]) -> None:
        header = header_of(message)
        self.command: Final = command_of(message)
        self.request_id: Final = header.request_id
        self.expects_reply: Final = not flags_of(header, message) & MORE_TO_COME
        self._message = message
        self._send = send
        self._lock = threading.Lock()  # guards the answering
        self._answered = False

    def __repr__(self) -> str:
        return f"<ScriptedRequest {self.request_id}: {self}>"

    def __str__(self) -> str:
        collection = self.command[self.name]
        database = self.command.get("$db", "admin")
        on = f"{database}.{collection}" if isinstance(collection, str) else str(database)
        return f"{self.name} on {on}"

    @property
    def name(self) -> str:
        """The command's name, as it was sent."""
        return next(iter(self.command))

    @property
    def is_answered(self) -> bool:
        """Whether it was answered, or hung up on."""
        return self._answered

    def reply(self, document: Mapping[str, Any] | None = None) -> None:
        """Answer.

        Args:
            document: the reply; `ok: 1` is added unless it says otherwise.

        Raises:
            RuntimeError: it was answered before, or expects no reply.
            InvalidDocument: the document is no BSON.
        """
        if not self.expects_reply:
            raise RuntimeError(f"{self} expects no reply (w: 0): a server sends none")
        self._answer(reply_of(self._message, {"ok": 1.0, **(document or {})}))

    def fail(
        self, code: int, message: str = "scripted", *, labels: Sequence[str] = (), **extra: Any
    ) -> None:
        """Answer with a top-level error.

        Args:
            code: the error's code.
            message: its text.
            labels: its labels; if there are none, the reply has no `errorLabels`.
            extra: further fields of the reply, such as `baseBackoffMS`.

        Raises:
            RuntimeError: it was answered before, or expects no reply.
            InvalidDocument: a field is no BSON.
        """
        labelled = {"errorLabels": list(labels)} if labels else {}
        self.reply({"ok": 0.0, "errmsg": message, "code": code, **labelled, **extra})

    def hang_up(self) -> None:
        """Close the client's connection instead of an answer.

        Raises:
            RuntimeError: it was answered before.
        """
        self._answer(None)

    def _answer(self, message: bytes | None) -> None:
        with self._lock:
            if self._answered:
                raise RuntimeError(f"{self} was answered before")
            self._answered = True
        self._send(message)
