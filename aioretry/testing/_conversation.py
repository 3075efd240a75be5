"""What passes between one client and one server, without any input or output.

Bytes go in on either side; what is to be done with them comes out, in steps. Messages that nobody
is interested in are passed on as they arrive, in pieces, undecoded.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from aioretry.testing._actions import (
    CorruptReply,
    Delay,
    DropReply,
    DropRequest,
    Error,
    Hang,
    Observe,
    Partition,
    Slow,
    TruncateReply,
    WriteConcernError,
    is_retryable,
    is_state_change,
    labels_for,
)
from aioretry.testing._fault import Fault, FaultList, Request
from aioretry.testing._wire import (
    HEADER_SIZE,
    MORE_TO_COME,
    Header,
    WireError,
    body_of,
    command_name,
    command_of,
    flags_of,
    garbled,
    header_of,
    hello_reply,
    hello_request,
    is_hello,
    reply_of,
    with_body,
)

_FLAGS_END: Final = HEADER_SIZE + 4


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait, in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait until a fault is disarmed."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Trickle:
    """Send to the other side, slowly."""

    data: bytes
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Back:
    """Send to the side that the bytes came from."""

    data: bytes


class Signal(Enum):
    """A step that needs no more words."""

    HANG_UP = "hang up"
    """Close both connections; nothing comes after it."""

    DROP_MONITORS = "drop monitors"
    """Close the connections of all monitors of this server."""

    IS_MEMBER = "is member"
    """It is known now which member of the replica set has connected."""

    IS_MONITOR = "is monitor"
    """From now on the client waits for news of the server over this connection."""


Step = bytes | Wait | Hold | Trickle | Back | Signal
"""Bytes are to be sent to the other side."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A command that waits for its reply."""

    hello: bool
    faults: tuple[Fault, ...]
    bytes_per_second: float | None = None
    labels: tuple[str, ...] = ()  # of an error that is worth another try


# Decides on a message whose beginning is in the buffer: whether more bytes are needed for that
# (None), or what to do instead of sending how many bytes of it. The rest follows unseen.
_Decide = Callable[[Header, bytearray], tuple[int, list[Step]] | None]


class _Direction:
    """Splits one direction's bytes into messages."""

    def __init__(self, decide: _Decide) -> None:
        self._decide = decide
        self._buffer = bytearray()  # the beginning of a message that is not decided yet
        self._passing = 0  # how many bytes of a message are still to be passed on unseen
        self._is_over = False

    def feed(self, data: bytes) -> list[Step]:
        """Take bytes in; give what is to be done for them; nothing after the end of the talk."""
        if self._is_over:
            return []
        if len(data) <= self._passing:
            self._passing -= len(data)
            return [data]
        steps: list[Step] = [data[: self._passing]] if self._passing else []
        self._buffer += data[self._passing :]
        self._passing = 0
        while len(self._buffer) >= HEADER_SIZE:
            header = header_of(self._buffer)
            decision = self._decide(header, self._buffer)
            if decision is None:
                break
            taken, made = decision
            steps += made
            if Signal.HANG_UP in made:
                self._is_over = True
                break
            rest = bytes(self._buffer[taken : header.length])
            if rest:
                steps.append(rest)
            self._passing = max(0, header.length - len(self._buffer))
            del self._buffer[: header.length]
        return steps


class Conversation:
    """One client's connection and the connection to the server that was made for it.

    Args:
        faults: what to do wrong.
        names: what to call each address in hello replies.
        is_mongos: whether the server is one; it labels no write concern errors.
        port: the server's port.
    """

    def __init__(
        self,
        faults: FaultList,
        names: Mapping[str, str],
        *,
        is_mongos: bool = False,
        port: int | None = None,
    ) -> None:
        self._faults = faults
        self._names = names
        self._is_mongos = is_mongos
        self._port = port
        self._source: int | None = None  # the port of the member that has connected
        self._app_name: str | None = None
        self._is_monitor = False
        # In the order of the requests. A reply answers the first one: its `responseTo` is no help
        # where one hello is answered by a stream of replies, each a response to the one before.
        self._pending: deque[_Pending] = deque()
        self._from_client = _Direction(self._decide_request)
        self._from_server = _Direction(self._decide_reply)

    def from_client(self, data: bytes) -> list[Step]:
        """Take what the client sent.

        Returns:
            What to do for it; the other side is the server.

        Raises:
            WireError: the client doesn't speak the protocol.
        """
        return self._from_client.feed(data)

    def from_server(self, data: bytes) -> list[Step]:
        """Take what the server sent.

        Returns:
            What to do for it; the other side is the client.

        Raises:
            WireError: the server doesn't speak the protocol.
        """
        return self._from_server.feed(data)

    def is_cut_by(self, partition: Partition) -> bool:
        """Say whether a partition lies between the two."""
        isolated = partition.isolated
        if isolated is None:
            return True
        return self._source is not None and (self._source in isolated) != (self._port in isolated)

    def _decide_request(self, header: Header, data: bytearray) -> tuple[int, list[Step]] | None:
        name = command_name(header, data)
        if name is None:
            return None
        faults = self._faults.naming(name)
        hello = is_hello(name)
        watched = hello or faults
        if watched and len(data) < header.length:
            return None
        self._faults.overlook(name)
        if not watched:
            if not flags_of(header, data) & MORE_TO_COME:
                self._pending.append(_Pending(hello=False, faults=()))
            return 0, []
        message = bytes(data[: header.length])
        steps: list[Step] = []
        if hello:
            message, steps = self._greet(message)
        pending = _Pending(hello, ())
        command = _readable(message) if faults else None
        if command is not None:
            request = Request(name, command, self._app_name)
            picked = tuple(fault for fault in faults if fault.pick(request))
            pending = _Pending(hello, picked, labels=labels_for(request.body))
        return header.length, steps + self._request_steps(message, pending)

    def _greet(self, message: bytes) -> tuple[bytes, list[Step]]:
        hello = hello_request(message)
        self._app_name = hello.app_name or self._app_name
        begins_to_wait = hello.awaits and not self._is_monitor
        self._is_monitor = self._is_monitor or hello.awaits
        steps: list[Step] = [Signal.IS_MONITOR] if begins_to_wait else []
        if hello.port is not None and self._source is None:
            self._source = hello.port
            steps.append(Signal.IS_MEMBER)
        return hello.message, steps

    def _request_steps(self, message: bytes, pending: _Pending) -> list[Step]:
        steps: list[Step] = []
        speed: float | None = None
        answered = not flags_of(header_of(message), message) & MORE_TO_COME
        for fault in pending.faults:
            match fault.action:
                case DropRequest() if fault.strike():
                    return [*steps, Signal.HANG_UP]
                case Hang(applied=False) if fault.strike():
                    steps.append(Hold(fault))
                case Delay(applied=False) as delay if fault.strike():
                    steps.append(Wait(delay.draw()))
                case Error(applied=False) as error if fault.strike():
                    body = _labelled(error, pending.labels)
                    answer: list[Step] = [Back(reply_of(message, body))] if answered else []
                    return [*steps, *answer, *_news(body)]
                case Slow(bytes_per_second) if fault.strike():
                    speed = min(speed or bytes_per_second, bytes_per_second)
                case Observe():
                    fault.strike()
        if answered:
            self._pending.append(replace(pending, bytes_per_second=speed))
        return [*steps, _sent(message, speed)]

    def _decide_reply(self, header: Header, data: bytearray) -> tuple[int, list[Step]] | None:
        if len(data) < min(_FLAGS_END, header.length):
            return None
        if not self._pending:
            return 0, [Signal.HANG_UP]  # nobody asked
        pending = self._pending[0]
        watched = pending.hello or pending.faults
        if watched and len(data) < header.length:
            return None
        if not flags_of(header, data) & MORE_TO_COME:
            self._pending.popleft()
        if not watched:
            return 0, []
        message = bytes(data[: header.length])
        if pending.hello:
            message = hello_reply(message, self._names)
        return header.length, self._reply_steps(message, pending)

    def _reply_steps(self, message: bytes, pending: _Pending) -> list[Step]:
        steps: list[Step] = []
        news: list[Step] = []
        for fault in pending.faults:
            match fault.action:
                case DropReply() if fault.strike():
                    return [*steps, Signal.HANG_UP]
                case Hang(applied=True) if fault.strike():
                    steps.append(Hold(fault))
                case Delay(applied=True) as delay if fault.strike():
                    steps.append(Wait(delay.draw()))
                case TruncateReply(size) if fault.strike():
                    return [*steps, message[:size], Signal.HANG_UP]
                case CorruptReply() if fault.strike():
                    message = garbled(message)
                case Error(applied=True) as error if fault.strike():
                    message = with_body(message, _labelled(error, pending.labels))
                    news += _news(error.body)
                case WriteConcernError(body, labels) if fault.strike():
                    if labels is None:
                        worth_it = is_retryable(body) and not self._is_mongos
                        labels = pending.labels if worth_it else ()
                    message = _with_write_concern_error(message, body, labels)
                    news += _news(body)
        return [*steps, _sent(message, pending.bytes_per_second), *news]


def _readable(message: bytes) -> dict[str, Any] | None:
    """Return a command; None if it can't be decoded, which is for the server to say."""
    try:
        return command_of(message)
    except WireError:
        return None


def _labelled(error: Error, labels: tuple[str, ...]) -> Mapping[str, Any]:
    """The error's document, with a server's own labels where none were given."""
    found = error.labels
    if found is None:
        found = labels if is_retryable(error.body) else ()
    return {"errorLabels": list(found), **error.body} if found else error.body


def _with_write_concern_error(
    message: bytes, error: Mapping[str, Any], labels: tuple[str, ...]
) -> bytes:
    reply = body_of(message) | {"writeConcernError": dict(error)}
    if labels:
        own = reply.get("errorLabels")
        reply["errorLabels"] = [*(own if isinstance(own, list) else ()), *labels]
    if is_state_change(error):
        reply.pop("topologyVersion", None)  # drivers would find the error to be stale
    return with_body(message, reply)


def _news(error: Mapping[str, Any]) -> list[Step]:
    return [Signal.DROP_MONITORS] if is_state_change(error) else []


def _sent(message: bytes, bytes_per_second: float | None) -> Step:
    return message if bytes_per_second is None else Trickle(message, bytes_per_second)
