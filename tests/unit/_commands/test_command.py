"""What a command says of itself, by what it holds."""

from dataclasses import FrozenInstanceError

import pytest
from bson.codec_options import CodecOptions
from pymongo.write_concern import WriteConcern

from aioretry._commands.command import Command, CommandLimits


def command(operation="update_one", collection="c", **more):
    """A command that holds nothing."""
    return Command(
        operation,
        "update",
        "db",
        collection,
        {"update": collection},
        WriteConcern(),
        CodecOptions(),
        None,
        lambda reply: reply,
        lambda reply: None,
        **more,
    )


@pytest.mark.parametrize(
    ("count", "holds_multi", "expected"),
    [(1, False, True), (2, False, False), (1, True, False), (2, True, False)],
)
def test_is_atomic(count, holds_multi, expected):
    """One statement about one document is done as a whole or not at all; nothing else is."""
    assert expected is command(statement_count=count, holds_multi=holds_multi).is_atomic


def test_is_atomic_when_it_is_prepared():
    """What it holds is known only then."""
    made = command("insert_many")
    made.statement_count = 3
    assert not made.is_atomic


@pytest.mark.parametrize(
    ("operation", "count", "expected"),
    [
        ("insert_one", 1, 1),
        ("insert_one", 7, 7),
        ("insert_many", 7, 1),
        ("bulk_write", 7, 1),
        ("update_one", 1, 1),
    ],
)
def test_operation_count(operation, count, expected):
    """Inserts of several callers count each; the statements of one call are one operation."""
    assert expected == command(operation, statement_count=count).operation_count


@pytest.mark.parametrize("collection", ["c", "c.d"])
def test_namespace(collection):
    """The collection's own dots stay."""
    assert f"db.{collection}" == command(collection=collection).namespace


def test_one_write_needs_no_more():
    """A command is that of one write, complete, unless it says otherwise."""
    made = command()
    assert (False, None, False, 1, False, False) == (
        made.holds_multi,
        made.prepare,
        made.may_block,
        made.statement_count,
        made.is_one_of_many,
        made.may_fill_message,
    )


def test_limits_stay():
    """A server's limits are told to many commands; none can change them."""
    limits = CommandLimits(16, 48, 100)
    with pytest.raises(FrozenInstanceError):
        limits.max_statements = 1
    assert (16, 48, 100) == (
        limits.max_document_size,
        limits.max_message_size,
        limits.max_statements,
    )
