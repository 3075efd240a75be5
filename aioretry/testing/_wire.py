"""The wire protocol's bytes: framing, looking into commands, rewriting the hello exchange.

Pure functions over bytes. They share no code, and so no bug, with the driver: `bson` and the
standard library are all that is used. Known opcodes are those that clients of today send: OP_MSG,
and the OP_QUERY and OP_REPLY of the first handshake.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError

OP_REPLY: Final = 1
OP_QUERY: Final = 2004
OP_MSG: Final = 2013

HEADER_SIZE: Final = 16
MAX_MESSAGE_SIZE: Final = 48_000_000 + 16_384

MORE_TO_COME: Final = 1 << 1
EXHAUST_ALLOWED: Final = 1 << 16
_CHECKSUM_PRESENT: Final = 1
_CHECKSUM_SIZE: Final = 4

_HEADER: Final = struct.Struct("<iiii")
_INT: Final = struct.Struct("<i")
_UINT: Final = struct.Struct("<I")
_LONGEST_NAME: Final = 256
_REPLY_PREFIX: Final = HEADER_SIZE + 20  # flags, cursor id, starting from, number returned
_MSG_PREFIX: Final = HEADER_SIZE + 4  # flags
_AWAIT_CAPABLE: Final = 8

# What servers of today say in hello; drivers size their messages by it.
LIMITS: Final[Mapping[str, int]] = {
    "maxBsonObjectSize": 16 * 1024 * 1024,
    "maxMessageSizeBytes": 48_000_000,
    "maxWriteBatchSize": 100_000,
    "logicalSessionTimeoutMinutes": 30,
}

_HELLO_NAMES: Final = frozenset({"hello", "ismaster"})

# Documents go through unharmed: dates that Python can't hold stay milliseconds.
_CODEC: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS
)


class WireError(Exception):
    """Bytes that are no message of this protocol."""


class Header(NamedTuple):
    """The first 16 bytes of a message."""

    length: int
    request_id: int
    response_to: int
    opcode: int


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client says of itself in a hello request.

    Attributes:
        message: the request as it is to be forwarded, without compression.
        app_name: the client's application name, if it has one.
        awaits: whether the answer may wait for a change: the connection is a monitor's.
        port: the port of the member of the replica set that connects; None for other clients.
    """

    message: bytes
    app_name: str | None
    awaits: bool
    port: int | None


def header_of(data: bytes | bytearray) -> Header:
    """Read a message's header.

    Args:
        data: at least `HEADER_SIZE` bytes.

    Raises:
        WireError: no message has such a length.
    """
    header = Header._make(_HEADER.unpack_from(data))
    if not HEADER_SIZE <= header.length <= MAX_MESSAGE_SIZE:
        raise WireError(f"a message of {header.length} bytes")
    return header


def command_name(header: Header, data: bytes | bytearray) -> str | None:
    """Read a request's command name without decoding the request.

    Args:
        header: the request's header.
        data: the request's bytes so far.

    Returns:
        The first key of its command, or None if more bytes are needed to say so.

    Raises:
        WireError: it holds no command.
    """
    try:
        first = _body_start(header, data) + 5  # past the document's length, the first value's type
    except (struct.error, IndexError):
        first = header.length
    end = data.find(b"\0", first, min(first + _LONGEST_NAME, header.length))
    if end >= 0:
        return data[first:end].decode(errors="replace")
    if len(data) >= min(first + _LONGEST_NAME, header.length):
        raise WireError("a request without a command")
    return None


def is_hello(name: str) -> bool:
    """Say whether a command is `hello` or one of its older spellings."""
    return name.lower() in _HELLO_NAMES


def flags_of(header: Header, data: bytes | bytearray) -> int:
    """Read the flags of an OP_MSG; 0 for any other message.

    Args:
        header: the message's header.
        data: at least 20 bytes of it, or all of it.

    Raises:
        WireError: it has no flags.
    """
    if header.opcode != OP_MSG:
        return 0
    if header.length < _MSG_PREFIX:
        raise WireError("an OP_MSG without flags")
    return int(_UINT.unpack_from(data, HEADER_SIZE)[0])


def body_of(message: bytes | bytearray) -> dict[str, Any]:
    """Decode the command of a whole request, or the document of a whole reply.

    Args:
        message: the message with its header; a document sequence in it is left out.

    Raises:
        WireError: it is malformed.
    """
    try:
        start = _body_start(header_of(message), message)
        (size,) = _INT.unpack_from(message, start)
        return bson.decode(bytes(message[start : start + size]), _CODEC)
    except (struct.error, IndexError, BSONError) as exc:
        raise WireError(f"a malformed message: {exc}") from exc


def command_of(message: bytes | bytearray) -> dict[str, Any]:
    """Decode the command of a whole request, with all that it says.

    Returns:
        The command; its document sequences, such as `documents`, are arrays at its end.

    Raises:
        WireError: it is malformed, or no request.
    """
    header = _header_of_whole(message)
    try:
        command = body_of(message) if header.opcode == OP_QUERY else _folded(header, message)
    except (struct.error, IndexError, BSONError) as exc:
        raise WireError(f"a malformed message: {exc}") from exc
    if not command:
        raise WireError("a request without a command")
    return command


def reply_of(
    message: bytes | bytearray, body: Mapping[str, Any], *, more_to_come: bool = False
) -> bytes:
    """Build the reply to a request, of the kind that its sender understands.

    Args:
        message: the whole request; or the reply before, in a stream of replies.
        body: the document to answer.
        more_to_come: whether another reply will follow by itself; OP_MSG only.

    Raises:
        WireError: the message is malformed, or no request.
    """
    header = _header_of_whole(message)
    if header.opcode == OP_MSG:
        opcode, prefix = OP_MSG, _UINT.pack(MORE_TO_COME if more_to_come else 0) + b"\0"
    elif header.opcode == OP_QUERY:
        opcode, prefix = OP_REPLY, struct.pack("<iqii", _AWAIT_CAPABLE, 0, 0, 1)
    else:
        raise WireError(f"a request with opcode {header.opcode}")
    payload = prefix + bson.encode(body, codec_options=_CODEC)
    return _HEADER.pack(HEADER_SIZE + len(payload), 0, header.request_id, opcode) + payload


def with_body(message: bytes | bytearray, body: Mapping[str, Any]) -> bytes:
    """Replace the only document of a message, and keep its kind, ids and flags.

    Returns:
        The new message; without a checksum.

    Raises:
        WireError: it has no place for a document.
    """
    header = header_of(message)
    start = _body_start_of_whole(header, message)
    prefix = bytearray(message[HEADER_SIZE:start])
    if header.opcode == OP_MSG:
        (flags,) = _UINT.unpack_from(prefix)
        _UINT.pack_into(prefix, 0, flags & ~_CHECKSUM_PRESENT)
    payload = bytes(prefix) + bson.encode(body, codec_options=_CODEC)
    return _HEADER.pack(HEADER_SIZE + len(payload), *header[1:]) + payload


def request_of(request_id: int, command: Mapping[str, Any]) -> bytes:
    """Build an OP_MSG request."""
    payload = _UINT.pack(0) + b"\0" + bson.encode(command, codec_options=_CODEC)
    return _HEADER.pack(HEADER_SIZE + len(payload), request_id, 0, OP_MSG) + payload


def garbled(message: bytes | bytearray) -> bytes:
    """Invert the bytes of a whole message from its document on; its length stays.

    Raises:
        WireError: it has no place for a document.
    """
    start = _body_start_of_whole(header_of(message), message)
    return bytes(message[:start]) + bytes(byte ^ 0xFF for byte in message[start:])


def hello_request(message: bytes | bytearray) -> Hello:
    """Read a hello request, and take out of it what the proxy can't follow.

    Without an offer of compression the server will not agree to any.

    Raises:
        WireError: it is malformed.
    """
    body = body_of(message)
    client = body.get("client")
    application = client.get("application") if isinstance(client, dict) else None
    name = application.get("name") if isinstance(application, dict) else None
    awaits = "maxAwaitTimeMS" in body
    port = _port_of(body.get("hostInfo"))
    if "compression" not in body:
        return Hello(bytes(message), name, awaits, port)
    del body["compression"]
    return Hello(with_body(message, body), name, awaits, port)


def _port_of(host_info: object) -> int | None:
    """What a server adds to its hello requests if it has test commands, for a bridge like ours."""
    port = host_info.rpartition(":")[2] if isinstance(host_info, str) else ""
    return int(port) if port.isdecimal() else None


def hello_reply(message: bytes | bytearray, names: Mapping[str, str]) -> bytes:
    """Rewrite the addresses in a hello reply.

    Args:
        message: the whole reply.
        names: what to call each address; others stay as they are.

    Returns:
        The reply to forward.

    Raises:
        WireError: it is malformed.
    """
    body = body_of(message)
    try:
        for key in ("hosts", "passives", "arbiters"):
            if key in body:
                body[key] = [names.get(address, address) for address in body[key]]
        for key in ("me", "primary"):
            if key in body:
                body[key] = names.get(body[key], body[key])
    except TypeError as exc:
        raise WireError(f"a hello reply without addresses: {exc}") from exc
    body.pop("compression", None)
    return with_body(message, body)


def _header_of_whole(message: bytes | bytearray) -> Header:
    if len(message) < HEADER_SIZE:
        raise WireError(f"a message of {len(message)} bytes")
    header = header_of(message)
    if header.length != len(message):
        raise WireError(f"{len(message)} bytes of a message of {header.length}")
    return header


def _folded(header: Header, message: bytes | bytearray) -> dict[str, Any]:
    """The command of an OP_MSG with its document sequences."""
    if header.opcode != OP_MSG:
        raise WireError(f"a request with opcode {header.opcode}")
    has_checksum = flags_of(header, message) & _CHECKSUM_PRESENT
    end = header.length - (_CHECKSUM_SIZE if has_checksum else 0)
    bodies: list[dict[str, Any]] = []
    sequences: dict[str, Any] = {}
    for kind, section in _sections(message, end):
        if kind == 0:
            bodies.append(bson.decode(section, _CODEC))
            continue
        name, _, documents = section[_INT.size :].partition(b"\0")
        sequences[name.decode(errors="replace")] = bson.decode_all(documents, _CODEC)
    if len(bodies) != 1 or bodies[0].keys() & sequences.keys():
        raise WireError("an OP_MSG without a command, or with two")
    return bodies[0] | sequences


def _sections(message: bytes | bytearray, end: int) -> Iterator[tuple[int, bytes]]:
    """Split an OP_MSG into its sections: their kinds, and what comes after."""
    position = _MSG_PREFIX
    while position < end:
        kind, position = message[position], position + 1
        (size,) = _INT.unpack_from(message, position)
        if kind > 1 or not _INT.size < size <= end - position:
            raise WireError(f"a section of kind {kind} with {size} bytes")
        yield kind, bytes(message[position : position + size])
        position += size


def _body_start(header: Header, data: bytes | bytearray) -> int:
    """Where a message has its document; struct.error or IndexError: too few bytes to say so."""
    if header.opcode == OP_MSG:
        return _msg_body_start(data, header.length)
    if header.opcode == OP_QUERY:
        name_end = data.find(b"\0", HEADER_SIZE + 4)  # past the flags
        if name_end < 0:
            raise IndexError
        return name_end + 9  # past it, numberToSkip and numberToReturn
    if header.opcode == OP_REPLY:
        return _REPLY_PREFIX
    raise WireError(f"opcode {header.opcode}")


def _body_start_of_whole(header: Header, message: bytes | bytearray) -> int:
    """Where a whole message has its document."""
    try:
        return _body_start(header, message)
    except (struct.error, IndexError) as exc:
        raise WireError(f"a malformed message: {exc}") from exc


def _msg_body_start(data: bytes | bytearray, length: int) -> int:
    """Where section 0 of an OP_MSG has its document; mostly it comes first."""
    position = _MSG_PREFIX
    while position < length:
        kind = data[position]
        if kind == 0:
            return position + 1
        if kind != 1:
            break
        position += 1 + max(1, int(_INT.unpack_from(data, position + 1)[0]))
    raise WireError("an OP_MSG without a command")
