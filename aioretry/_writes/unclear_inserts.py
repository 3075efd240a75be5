"""Replies to an unordered insert that do not say what became of each document, and what does.

MongoDB before 5.0 answers so to a command that it has executed before: its errors have the wrong
indexes, or are left out, where a document that was refused stands before one that was inserted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import bson
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from pymongo.errors import OperationFailure

from aioretry._commands.command import Command
from aioretry._commands.encoded import EncodedDocuments, section
from aioretry._commands.replies import leaves_out, retryable_error_in, tells_each
from aioretry._drivers.port import ServerView
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.loop import Coordinator
from aioretry.errors import Attempt

_FIRST_TELLING_WIRE_VERSION = 13  # MongoDB 5.0
# Overflow, DollarPrefixedFieldName and BSONObjectTooLarge: servers before 5.0 refuse a document by
# these before they give it a number, so that the next one gets that.
_REFUSED_UNNUMBERED = frozenset({15, 52, 10334})
# So with this one, which also has another meaning.
_BAD_VALUE = 2
_TOO_LARGE_FOR_CAPPED = "cappedMaxSize"
_MOST_LEVELS = 100  # MongoDB promises to store so many


def vagueness(
    execution: Execution, reply: Mapping[str, Any], error: BaseException | None = None
) -> OperationFailure | None:
    """Return an error if a reply does not say what became of each statement, or None.

    Args:
        execution: An unordered insert, or any other command, which is never answered so.
        reply: The reply.
        error: What the reply was taken for, if that was an error.
    """
    count = execution.command.statement_count
    if count == 1 or not _is_unordered_insert(execution.command.body):
        return None
    if not execution.number.is_taken:
        return None
    # A router sends to its shards again by itself, and says nothing of it. And what is resolved
    # while the first attempt still lies at the server may be executed before that.
    may_be_repeated = execution.is_sharded or execution.lease.is_asked
    if not may_be_repeated and not _was_sent_before(execution.attempts, reply, error):
        return None
    if not leaves_out(reply, count) and (
        not _misplaces_errors(execution.server) or tells_each(reply, count)
    ):
        return None
    return silence(reply, count)


def silence(reply: Mapping[str, Any], count: int) -> OperationFailure:
    """Return the error that says that a reply says too little."""
    done, denied = reply.get("n", count), len(reply.get("writeErrors", ()))
    return OperationFailure(
        f"the server acknowledged {done} of {count} statements and refused {denied}",
        details=dict(reply),
    )


def numbers_in(reply: Mapping[str, Any], execution: Execution) -> Sequence[int] | None:
    """Return the documents that have a number of their own, in its order; None if nobody knows.

    Args:
        reply: A reply, vague or not; it names all the others.
        execution: The command.
    """
    positions = range(execution.command.statement_count)
    if not _misplaces_errors(execution.server):
        return positions
    unnumbered = _unnumbered_in(reply)
    if not unnumbered:
        return positions
    if execution.is_sharded:  # each shard counts for itself
        return None
    return [position for position in positions if position not in unnumbered]


def unknown_from(execution: Execution, reply: Mapping[str, Any] | None) -> int:
    """Return how many of an insert's first documents have numbers that are known.

    Args:
        execution: The command.
        reply: A reply, vague or not, or None if there was none.
    """
    count, server = execution.command.statement_count, execution.server
    if count == 1 or server is None or not _misplaces_errors(server):
        return count
    if reply is None:
        (documents,) = execution.command.body["documents"]
        most = server.limits.max_document_size
        refused = (_may_be_unnumbered(document, most) for document in documents.documents())
        return next((position + 1 for position, is_so in enumerate(refused) if is_so), count)
    return count if numbers_in(reply, execution) is not None else min(_unnumbered_in(reply)) + 1


def doubt_vague_replies(execution: Execution) -> None:
    """Have no attempt of a command pass for answered whose reply says too little."""
    for position, attempt in enumerate(execution.attempts):
        error = None if attempt.reply is None else vagueness(execution, attempt.reply)
        if error is not None:
            execution.attempts[position] = replace(attempt, error=error, reply=None)


class Inquiry:
    """Finds out what became of each document, by asking for ever fewer of them at once.

    The server answers from its memory for what it has inserted, and executes, and refuses once
    more, what it has refused.

    Args:
        coordinator: Executes commands.
        execution: The command; nothing else may use its session meanwhile.
        asked: Gets the attempts.
    """

    def __init__(
        self, coordinator: Coordinator, execution: Execution, asked: list[Attempt]
    ) -> None:
        self._coordinator = coordinator
        self._execution = execution
        self._asked = asked
        self._errors: list[Mapping[str, Any]] = []
        self._done = 0
        self._concern_error: Mapping[str, Any] | None = None

    async def complete(
        self, reply: Mapping[str, Any], error: BaseException | None = None
    ) -> Mapping[str, Any]:
        """Return a reply as it would be if it said of each document what became of it.

        Args:
            reply: A reply to the command.
            error: What it was taken for, if that was an error.

        Raises:
            PyMongoError: Not all of it was found out.
        """
        vague = vagueness(self._execution, reply, error)
        if vague is None:
            return reply
        positions = numbers_in(reply, self._execution)
        if positions is None:
            raise vague
        numbered = set(positions)
        self._errors = [e for e in reply.get("writeErrors", ()) if e["index"] not in numbered]
        self._concern_error = reply.get("writeConcernError")
        await self._ask_for_all(positions)
        completed = {
            **reply,
            "n": self._done,
            "writeErrors": sorted(self._errors, key=lambda each: each["index"]),
        }
        if self._concern_error:
            completed["writeConcernError"] = self._concern_error
        return completed

    async def _ask_for_all(self, positions: Sequence[int]) -> None:
        open_ranges = [(0, len(positions))] if positions else []
        is_first = len(positions) == self._execution.command.statement_count
        while open_ranges:
            start, stop = open_ranges.pop()
            # That of all together is known to say too little.
            reply = None if is_first else await self._ask(positions, start, stop)
            is_first = False
            if reply is None or not tells_each(reply, stop - start):
                if stop - start == 1:
                    raise silence(reply or {}, 1)
                middle = (start + stop) // 2
                open_ranges += [(middle, stop), (start, middle)]
                continue
            self._done += reply.get("n", stop - start)
            self._errors += [
                {**error, "index": positions[start + error["index"]]}
                for error in reply.get("writeErrors", ())
            ]
            self._concern_error = self._concern_error or reply.get("writeConcernError")

    async def _ask(self, positions: Sequence[int], start: int, stop: int) -> Mapping[str, Any]:
        part = replace(
            self._execution,
            command=part_of(self._execution.command, positions[start:stop], range(start, stop)),
            numbering=Numbering.REQUIRED,
            attempts=[],
            retries=None,
        )
        try:
            return await self._coordinator.send(part)
        finally:
            self._asked += part.attempts


def part_of(
    command: Command[Any], positions: Sequence[int], numbers: Sequence[int]
) -> Command[Any]:
    """Return the command that holds some documents of an insert only, with their numbers in it."""
    documents: list[EncodedDocuments] = section(command.body["documents"], positions)
    body = {**command.body, "documents": documents, "stmtIds": list(numbers)}
    return replace(command, body=body, error_in=retryable_error_in, statement_count=len(positions))


def _is_unordered_insert(body: Mapping[str, Any]) -> bool:
    ordered = body.get("ordered", True)
    return "insert" in body and ordered is not None and not ordered


def _was_sent_before(
    attempts: Sequence[Attempt], reply: Mapping[str, Any], error: BaseException | None
) -> bool:
    for attempt in attempts:
        if attempt.reply is reply or (error is not None and attempt.error is error):
            return False
        if attempt.sent:
            return True
    return False


def _misplaces_errors(server: ServerView | None) -> bool:
    return server is not None and server.max_wire_version < _FIRST_TELLING_WIRE_VERSION


def _unnumbered_in(reply: Mapping[str, Any]) -> set[int]:
    # Whatever stands before one of these is answered for, so that it has the right index.
    return {error["index"] for error in reply.get("writeErrors", ()) if _is_unnumbered(error)}


def _may_be_unnumbered(document: RawBSONDocument, most_bytes: int) -> bool:
    """Tell whether a server before 5.0 may refuse a document before it gives it a number.

    It does so by the document's own bytes. Where this is in doubt, it may.
    """
    try:
        fields = dict(document)
        return (
            len(document.raw) > most_bytes
            # A field is there twice, or of a type that is long gone.
            or bson.encode(fields) != document.raw
            or any(name.startswith("$") for name in fields)
            or _may_be_refused_as_id(fields.get("_id"))
            or _is_deeper(fields, _MOST_LEVELS)
        )
    except BSONError:
        return True


def _may_be_refused_as_id(value: object) -> bool:
    if isinstance(value, RawBSONDocument):
        return b"$" in value.raw
    return isinstance(value, list | Regex)


def _is_deeper(value: object, levels: int) -> bool:
    parts: Iterable[object] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list):
        parts = value
    else:
        return False
    return levels == 0 or any(_is_deeper(part, levels - 1) for part in parts)


def _is_unnumbered(error: Mapping[str, Any]) -> bool:
    if error.get("code") == _BAD_VALUE:
        return _TOO_LARGE_FOR_CAPPED not in error.get("errmsg", "")
    return error.get("code") in _REFUSED_UNNUMBERED
