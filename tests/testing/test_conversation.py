import itertools
import struct

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioretry.testing import Faults
from aioretry.testing._conversation import Back, Conversation, Signal, Step
from aioretry.testing._fault import FaultList
from aioretry.testing._wire import OP_MSG, WireError, body_of


def message(document: dict, flags: int = 0) -> bytes:
    payload = struct.pack("<I", flags) + b"\0" + bson.encode(document)
    return struct.pack("<iiii", 16 + len(payload), 1, 0, OP_MSG) + payload


HELLO = message({"hello": 1, "client": {"application": {"name": "app"}}, "$db": "admin"})
INSERT = message({"insert": "c", "documents": [{"x": "y" * 300}], "$db": "d"})
OK = message({"ok": 1.0, "big": "z" * 500})
HELLO_OK = message({"me": "server:1"})
HELLO_SEEN = message({"me": "proxy:2"})


def conversation(faults: FaultList | None = None) -> Conversation:
    return Conversation(FaultList() if faults is None else faults, {"server:1": "proxy:2"})


def faults_of(faults: FaultList) -> Faults:
    return Faults({"server:1": faults})


def sent(steps: list[Step]) -> bytes:
    """The bytes of steps that do nothing but send."""
    assert all(isinstance(step, bytes) for step in steps)
    return b"".join(step for step in steps if isinstance(step, bytes))


def hangs_up(steps: list[Step]) -> bool:
    """Whether nothing is sent, and all is closed."""
    return steps == [Signal.HANG_UP]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


@given(st.lists(st.integers(min_value=0), max_size=8), st.booleans())
def test_pieces(cuts: list[int], watched: bool) -> None:
    """However the bytes are cut, the same bytes come out, with hello replies rewritten."""
    faults = FaultList()
    if watched:
        faults_of(faults).drop_reply("insert", namespace="other.c")
    talk = conversation(faults)

    requests = b"".join(
        sent(talk.from_client(piece)) for piece in pieces(HELLO + INSERT + INSERT, cuts)
    )
    replies = b"".join(sent(talk.from_server(piece)) for piece in pieces(HELLO_OK + OK + OK, cuts))

    assert HELLO + INSERT + INSERT == requests
    assert HELLO_SEEN + OK + OK == replies


def test_what_nobody_can_read() -> None:
    """A command with damaged BSON meets no fault, and goes to the server, which says so."""
    faults = FaultList()
    armed = faults_of(faults).hang("insert", times=None, must_fire=False)
    talk = conversation(faults)
    damaged = INSERT.replace(b"\x02x\0\x2d\x01\0\0", b"\x02x\0\x2e\x01\0\0")
    assert damaged != INSERT
    assert damaged == sent(talk.from_client(damaged))
    assert not armed.fired


def test_long_reply_is_not_held_back() -> None:
    """The beginning of a message that nobody watches is passed on before its end is there."""
    talk = conversation()
    talk.from_client(INSERT)

    assert OK[:100] == sent(talk.from_server(OK[:100]))
    assert OK[100:200] == sent(talk.from_server(OK[100:200]))


def test_stream_of_hello_replies() -> None:
    """Each reply of a stream that answers one hello is rewritten."""
    talk = conversation()
    talk.from_client(HELLO)
    more = message({"me": "server:1"}, flags=2)

    assert [message({"me": "proxy:2"}, flags=2)] * 3 == [
        sent(talk.from_server(more)) for _ in range(3)
    ]
    assert HELLO_SEEN == sent(talk.from_server(HELLO_OK))
    talk.from_client(INSERT)
    assert OK == sent(talk.from_server(OK))


def test_request_without_a_reply() -> None:
    """An unacknowledged command is not taken for the one that the next reply answers."""
    faults = FaultList()
    fault = faults_of(faults).drop_reply("insert")
    talk = conversation(faults)
    unacknowledged = message(body_of(INSERT), flags=2)

    assert unacknowledged + HELLO == sent(talk.from_client(unacknowledged + HELLO))
    assert HELLO_SEEN == sent(talk.from_server(HELLO_OK))
    assert (1, 0) == (fault.seen, fault.fired)


def test_drop_reply() -> None:
    """The request is passed on; its reply ends the conversation, once."""
    faults = FaultList()
    fault = faults_of(faults).drop_reply("insert")
    talk = conversation(faults)

    assert INSERT == sent(talk.from_client(INSERT))
    assert (1, 0) == (fault.seen, fault.fired)
    assert hangs_up(talk.from_server(OK))
    assert (1, 1) == (fault.seen, fault.fired)
    again = conversation(faults)
    again.from_client(INSERT)
    assert OK == sent(again.from_server(OK))
    assert (2, 1) == (fault.seen, fault.fired)
    assert "<Fault DropReply(insert) fired=1/1 seen=2>" == repr(fault)


def test_drop_request() -> None:
    """The request ends the conversation and is not passed on."""
    faults = FaultList()
    faults_of(faults).drop_request("insert")

    assert hangs_up(conversation(faults).from_client(INSERT))


def test_always() -> None:
    """A fault without a count strikes every time, until it is disarmed."""
    faults = FaultList()
    with faults_of(faults).drop_request("insert", times=None) as fault:
        for _ in range(3):
            assert hangs_up(conversation(faults).from_client(INSERT))

    assert INSERT == sent(conversation(faults).from_client(INSERT))
    assert (3, 3) == (fault.seen, fault.fired)


def test_disarmed_while_a_command_runs() -> None:
    """A fault that is disarmed before the reply comes lets it pass."""
    faults = FaultList()
    fault = faults_of(faults).drop_reply("insert")
    talk = conversation(faults)
    talk.from_client(INSERT)

    fault.disarm()

    assert OK == sent(talk.from_server(OK))
    assert 0 == fault.fired


@pytest.mark.parametrize(
    ("filters", "fires"),
    [
        ({"namespace": "d.c"}, True),
        ({"namespace": "d.other"}, False),
        ({"app_name": "app"}, True),
        ({"app_name": "other"}, False),
        ({"command": "INSERT"}, True),
        ({"command": "update"}, False),
    ],
)
def test_filters(filters: dict[str, str], fires: bool) -> None:
    """A fault strikes only what it is for."""
    faults = FaultList()
    command = filters.pop("command", "insert")
    fault = faults_of(faults).drop_request(command, **filters)
    talk = conversation(faults)
    talk.from_client(HELLO)

    if fires:
        assert hangs_up(talk.from_client(INSERT))
    else:
        assert INSERT == sent(talk.from_client(INSERT))
    assert int(fires) == fault.fired == fault.seen


def test_namespace_of_a_cursor() -> None:
    """The namespace of a getMore is the collection of its cursor."""
    faults = FaultList()
    faults_of(faults).drop_request("getMore", namespace="d.c")

    assert hangs_up(
        conversation(faults).from_client(message({"getMore": 7, "collection": "c", "$db": "d"}))
    )


def test_order() -> None:
    """Of several faults for one command, the one that was armed first is used up first."""
    faults = FaultList()
    first, second = (faults_of(faults).drop_reply("insert") for _ in range(2))

    for fired in [(1, 0), (1, 1)]:
        talk = conversation(faults)
        talk.from_client(INSERT)
        assert hangs_up(talk.from_server(OK))
        assert fired == (first.fired, second.fired)


def test_compressed_message() -> None:
    """A message that can't be looked into ends the conversation."""
    with pytest.raises(WireError):
        conversation().from_client(struct.pack("<iiii", 40, 1, 0, 2012) + b"x" * 24)


def test_reply_that_nobody_asked_for() -> None:
    """A server that speaks first ends the conversation."""
    assert hangs_up(conversation().from_server(OK))


RETRYABLE = ["RetryableWriteError"]
TRANSIENT = ["TransientTransactionError"]


def insert(**fields: object) -> bytes:
    return message({"insert": "c", "$db": "d", **fields})


def answer_of(steps: list[Step]) -> dict:
    """What a client is answered, whatever else is done."""
    [data] = [
        step.data if isinstance(step, Back) else step
        for step in steps
        if not isinstance(step, Signal)
    ]
    assert isinstance(data, bytes)
    return body_of(data)


@pytest.mark.parametrize(
    ("fields", "code", "labels", "expected"),
    [
        ({"txnNumber": 1}, 10107, None, RETRYABLE),
        ({"txnNumber": 1}, 6, None, RETRYABLE),
        ({"txnNumber": 1}, 10107, (), None),
        ({"txnNumber": 1}, 10107, ["Other"], ["Other"]),
        ({"txnNumber": 1}, 13, None, None),
        ({"txnNumber": 1}, 13, RETRYABLE, RETRYABLE),
        ({"txnNumber": 1, "autocommit": False}, 10107, None, TRANSIENT),
        ({"txnNumber": 1, "autocommit": False}, 13, None, None),
        ({}, 10107, None, None),
    ],
)
@pytest.mark.parametrize("applied", [False, True])
def test_labels_of_an_error(fields, code, labels, expected, applied) -> None:
    """By default an error has the labels that a server would give, and others on request."""
    faults = FaultList()
    faults_of(faults).error(code, labels=labels, applied=applied)
    talk = conversation(faults)
    steps = talk.from_client(insert(**fields))
    reply = answer_of(talk.from_server(OK) if applied else steps)
    assert (code, expected) == (reply["code"], reply.get("errorLabels"))


@pytest.mark.parametrize("is_mongos", [False, True])
@pytest.mark.parametrize(
    ("code", "labels", "expected"),
    [(91, None, RETRYABLE), (64, None, None), (91, (), None), (64, RETRYABLE, RETRYABLE)],
)
def test_labels_of_a_write_concern_error(code, labels, expected, is_mongos) -> None:
    """By default a mongod labels a write concern error, and a mongos does not."""
    faults = FaultList()
    faults_of(faults).write_concern_error(code, labels=labels)
    talk = Conversation(faults, {}, is_mongos=is_mongos)
    talk.from_client(insert(txnNumber=1))
    reply = answer_of(talk.from_server(OK))
    assert code == reply["writeConcernError"]["code"]
    assert (None if is_mongos and labels is None else expected) == reply.get("errorLabels")


def test_the_commit_of_a_transaction_is_retryable() -> None:
    """A commit is labelled as a retryable write, though it belongs to a transaction."""
    faults = FaultList()
    faults_of(faults).error(91)
    commit = message({"commitTransaction": 1, "txnNumber": 1, "autocommit": False, "$db": "admin"})
    assert RETRYABLE == answer_of(conversation(faults).from_client(commit))["errorLabels"]


def test_watch() -> None:
    """Watched commands pass as they are, every time, and are counted."""
    faults = FaultList()
    fault = faults_of(faults).watch("insert")
    talk = conversation(faults)
    assert INSERT * 2 == sent(talk.from_client(INSERT * 2))
    assert OK * 2 == sent(talk.from_server(OK * 2))
    assert (2, 2) == (fault.fired, fault.seen)
