import contextlib
import struct
from datetime import UTC, datetime

import bson
import pytest
from bson.codec_options import CodecOptions, DatetimeConversion
from hypothesis import given
from hypothesis import strategies as st

from aioretry.testing import _wire
from aioretry.testing._wire import WireError


def op_query(command: dict) -> bytes:
    payload = struct.pack("<i", 4) + b"admin.$cmd\0" + struct.pack("<ii", 0, -1)
    payload += bson.encode(command)
    return struct.pack("<iiii", 16 + len(payload), 3, 0, _wire.OP_QUERY) + payload


def op_reply(document: dict) -> bytes:
    payload = struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(document)
    return struct.pack("<iiii", 16 + len(payload), 9, 3, _wire.OP_REPLY) + payload


def op_msg(command: dict, *, flags: int = 0, first: bytes = b"", checksum: bytes = b"") -> bytes:
    payload = struct.pack("<I", flags) + first + b"\0" + bson.encode(command) + checksum
    return struct.pack("<iiii", 16 + len(payload), 5, 0, _wire.OP_MSG) + payload


SEQUENCE = b"\x01" + struct.pack("<i", 4 + 10 + 5) + b"documents\0" + bson.encode({})


@pytest.mark.parametrize(
    "message",
    [
        op_msg({"insert": "c", "$db": "d"}),
        op_msg({"insert": "c", "$db": "d"}, first=SEQUENCE),
        op_query({"insert": "c"}),
    ],
    ids=["message", "sequence first", "query"],
)
def test_command_name(message: bytes) -> None:
    """The name is found as soon as its bytes are there, and never wrongly before."""
    header = _wire.header_of(message)
    names = [_wire.command_name(header, message[:size]) for size in range(16, len(message) + 1)]

    first = names.index("insert")
    assert {None} == set(names[:first])
    assert {"insert"} == set(names[first:])
    assert names.index("insert") + 16 <= len(message) - len(b"c\0") - 5


def test_body() -> None:
    """Bodies are decoded from every kind of message."""
    assert {"a": 1} == _wire.body_of(op_msg({"a": 1}))
    assert {"a": 1} == _wire.body_of(op_msg({"a": 1}, first=SEQUENCE))
    assert {"a": 1} == _wire.body_of(op_query({"a": 1}))
    assert {"a": 1} == _wire.body_of(op_reply({"a": 1}))


@pytest.mark.parametrize("length", [-1, 0, 15, 2**31 - 1, 48_000_000 + 16_385])
def test_impossible_length(length: int) -> None:
    """A length that no message has is refused before anything is read for it."""
    with pytest.raises(WireError):
        _wire.header_of(struct.pack("<iiii", length, 0, 0, _wire.OP_MSG))


@given(st.binary(min_size=16, max_size=200), st.sampled_from([1, 2004, 2012, 2013, 7]))
def test_garbage(data: bytes, opcode: int) -> None:
    """Whatever comes, the answer is a name, a wish for more bytes, or a WireError."""
    data = struct.pack("<iiii", len(data), 0, 0, opcode) + data[16:]
    header = _wire.header_of(data)
    try:
        name = _wire.command_name(header, data)
        flags = _wire.flags_of(header, data)
        body = _wire.body_of(data)
    except WireError:
        return
    assert isinstance(name, str)
    assert isinstance(flags, int)
    assert isinstance(body, dict)


def sequence(name: bytes, *documents: dict) -> bytes:
    payload = name + b"\0" + b"".join(map(bson.encode, documents))
    return b"\x01" + struct.pack("<i", 4 + len(payload)) + payload


def test_command() -> None:
    """Document sequences become arrays of the command, wherever they stand in the message."""
    command = {"insert": "c", "$db": "d"}
    documents = sequence(b"documents", {"_id": 1}, {"_id": 2})
    folded = {**command, "documents": [{"_id": 1}, {"_id": 2}]}

    assert command == _wire.command_of(op_msg(command))
    assert command == _wire.command_of(op_query(command))
    assert folded == _wire.command_of(op_msg(command, first=documents))
    assert folded == _wire.command_of(op_msg(command, checksum=documents))
    with_checksum = op_msg(command, flags=1, first=documents, checksum=b"abcd")
    assert folded == _wire.command_of(with_checksum)
    assert list(folded) == list(_wire.command_of(with_checksum))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        op_msg({"a": 1})[:15],
        op_msg({"a": 1})[:-1],
        op_msg({"a": 1}) + b"\0",
        op_msg({}),
        op_query({}),
        op_reply({"a": 1}),
        op_msg({"a": 1}, first=b"\x02"),
        op_msg({"a": 1}, first=b"\0" + bson.encode({"b": 1})),
        op_msg({"a": 1}, first=sequence(b"a")),
        op_msg({"a": 1}, first=b"\x01" + struct.pack("<i", -1)),
        op_msg({"a": 1}, first=b"\x01" + struct.pack("<i", 100)),
        op_msg({"a": 1}, checksum=b"\x01"),
        struct.pack("<iiii", 16, 0, 0, _wire.OP_MSG),
        struct.pack("<iiiiI", 20, 0, 0, _wire.OP_MSG, 1),
    ],
)
def test_no_command(message: bytes) -> None:
    """What is no whole, well-formed request is refused."""
    with pytest.raises(WireError):
        _wire.command_of(message)


@given(
    st.one_of(
        st.binary(max_size=200),
        st.binary(min_size=4, max_size=100).map(lambda data: op_msg({"a": 1}, checksum=data)),
        st.binary(min_size=4, max_size=100).map(lambda data: op_msg({"a": 1}, first=data)),
    ),
    st.sampled_from([1, 2004, 2012, 2013, 7]),
    st.booleans(),
)
def test_garbage_as_a_request(data: bytes, opcode: int, framed: bool) -> None:
    """Whatever is taken for a request, it is a command and can be answered, or a WireError."""
    if framed:
        data = struct.pack("<iiii", max(16, len(data)), 0, 0, opcode) + data[16:]
    try:
        command = _wire.command_of(data)
    except WireError:
        with contextlib.suppress(WireError):
            _wire.reply_of(data, {"ok": 1})
        return
    assert command
    assert {"ok": 1} == _wire.body_of(_wire.reply_of(data, {"ok": 1}))


def test_reply() -> None:
    """A request is answered in its own kind, and by its number."""
    reply = _wire.reply_of(op_msg({"ping": 1}, flags=1, checksum=b"abcd"), {"ok": 1.0})
    old = _wire.reply_of(op_query({"ismaster": 1}), {"ok": 1.0})

    assert (len(reply), 0, 5, _wire.OP_MSG) == _wire.header_of(reply)
    assert op_msg({"ok": 1.0})[16:] == reply[16:]
    assert (len(old), 0, 3, _wire.OP_REPLY) == _wire.header_of(old)
    assert op_reply({"ok": 1.0})[16:] == old[16:]
    for message in (op_reply({}), b"", op_msg({})[:-1]):
        with pytest.raises(WireError):
            _wire.reply_of(message, {})


def test_hello_request() -> None:
    """Compression is taken out of a hello request, and the application's name is read."""
    command = {
        "hello": 1,
        "client": {"application": {"name": "app"}},
        "compression": ["zlib"],
        "$db": "admin",
    }

    hello = _wire.hello_request(op_msg(command, flags=1, checksum=b"abcd"))

    assert "app" == hello.app_name
    del command["compression"]
    assert op_msg(command) == hello.message


def test_hello_request_stays_as_it_is() -> None:
    """Without an offer of compression, and without a name, the very same bytes are sent."""
    message = op_query({"ismaster": 1, "client": {"driver": {"name": "d"}}})

    assert _wire.Hello(message, None, awaits=False, port=None) == _wire.hello_request(message)


@pytest.mark.parametrize(
    ("host_info", "port"), [("host:27018", 27018), ("host", None), ("host:x", None), (5, None)]
)
def test_hello_request_of_a_member(host_info: object, port: int | None) -> None:
    """A member of a set that has test commands says where it listens itself."""
    message = op_query({"ismaster": 1, "hostInfo": host_info, "internalClient": {}})

    assert port == _wire.hello_request(message).port


@pytest.mark.parametrize("make", [op_msg, op_reply])
def test_hello_reply(make) -> None:
    """The addresses of a hello reply are rewritten, and everything else is kept."""
    options = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
    others = {
        "setVersion": bson.Int64(1),
        "localTime": datetime(2020, 1, 1, tzinfo=UTC),
        "far": bson.datetime_ms.DatetimeMS(2**60),
        "id": bson.Binary(b"x" * 16, 4),
        "electionId": bson.ObjectId(),
    }
    theirs = {"hosts": ["a:1", "b:2"], "passives": ["c:3"], "arbiters": ["d:4"]}
    ours = {"hosts": ["p:1", "b:2"], "passives": ["p:3"], "arbiters": ["d:4"]}
    document = {**theirs, "me": "a:1", "primary": "c:3", "compression": ["zlib"], **others}

    message = _wire.hello_reply(make(document), {"a:1": "p:1", "c:3": "p:3"})

    expected = bson.encode({**ours, "me": "p:1", "primary": "p:3", **others}, codec_options=options)
    assert message.endswith(expected)
    assert len(message) == _wire.header_of(message).length
    assert make(document)[4:16] == message[4:16]


def test_exhaust_flag_is_kept() -> None:
    """A rewritten reply that promises more still does."""
    message = _wire.hello_reply(op_msg({"me": "a:1"}, flags=2), {})

    assert _wire.MORE_TO_COME == _wire.flags_of(_wire.header_of(message), message)
