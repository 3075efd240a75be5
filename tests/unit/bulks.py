"""Bulk operations for tests without a server."""

import bson
from bson.codec_options import CodecOptions
from pymongo import DeleteOne, InsertOne, UpdateOne
from pymongo.write_concern import WriteConcern

from aioretry._commands.bulk_arguments import BulkRequests, InsertMany
from aioretry._commands.command import CommandLimits
from aioretry._commands.statements import Kind
from aioretry._commands.target import Target
from aioretry._drivers.motor import add_requests, encode_documents

OVERHEAD = 16 * 1024  # what a message holds beside the statements, and the server's tolerance
LARGE = CommandLimits(16 * 2**20, 48_000_000, 100_000)
TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
INCREMENT = {"$inc": {"n": 1}}

# An insert command without documents; what it leaves of a message is theirs.
EMPTY_INSERT = len(bson.encode({"insert": "c", "ordered": True}))


def limits(*, statements=100_000, room=48_000_000 - OVERHEAD - EMPTY_INSERT, document=16 * 2**20):
    """Limits of a server; room is what a message holds of inserted documents."""
    return CommandLimits(document, room + OVERHEAD + EMPTY_INSERT, statements)


def planned(plan):
    """Take all steps of a plan."""
    while True:
        try:
            next(plan)
        except StopIteration as stop:
            return stop.value


def inserting(documents, *, ordered=True, target=TARGET):
    """An insert_many."""
    return planned(InsertMany(documents, ordered, None, None).plan(target))


def writing(requests, *, ordered=True, target=TARGET):
    """A bulk_write."""
    return planned(BulkRequests(requests, ordered, None, None, None, add_requests).plan(target))


def fill(bulk, limits=LARGE):
    """Make the next command, as an attempt does."""
    command, batch = bulk.next_command()
    command.prepare(limits, encode_documents)
    return command, batch


def held(command):
    """The statements of a command, decoded."""
    parts = command.body[Kind(command.name).field]
    return [bson.decode(one.raw) for part in parts for one in part.documents()]


def documents(count, size=100):
    """Documents of so many bytes."""
    padding = b"\0" * (size - len(bson.encode({"_id": 0, "fill": b""})))
    return [{"_id": number, "fill": padding} for number in range(count)]


def request(kind, number):
    """A request whose number can be seen in what is sent."""
    match kind:
        case "i":
            return InsertOne({"_id": number})
        case "u":
            return UpdateOne({"_id": number}, INCREMENT)
        case _:
            return DeleteOne({"_id": number})


def number_of(statement):
    return statement.get("q", statement)["_id"]


class BrokenError(Exception):
    """What an iterator of the user raises."""


def breaking(count):
    """So many documents, and then an error."""
    yield from documents(count)
    raise BrokenError
