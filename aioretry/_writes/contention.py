"""What two transactions have written at once."""

from collections.abc import Mapping
from typing import Any

from pymongo.errors import OperationFailure

from aioretry._commands.encoded import EncodedDocuments
from aioretry._retry.transactions import errors_in

_WRITE_CONFLICT = 112
# Where a command has its statements, and a statement the document that it is about.
_STATEMENTS = ("updates", "q"), ("deletes", "q"), ("documents", None)


def contended(session: Any, error: BaseException) -> str | None:
    """Name the document that a transaction could not write because another one had.

    Args:
        session: The user's session, in which that was the latest command.
        error: What the command raised, or a group that it is in.

    Returns:
        What is the same for commands that are for the same document by the same filter, or by an
        ``_id``; None if the error says nothing of another transaction.
    """
    if any(_is_conflict(each) for each in errors_in(error)):
        return _document_of(session._calls.latest(session))
    return None


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, OperationFailure) and error.code == _WRITE_CONFLICT


def _document_of(command: Mapping[str, Any]) -> str:
    found = command.get("query")  # of findAndModify
    for statements, field in _STATEMENTS:
        for first in command.get(statements, ())[:1]:
            document = first.document(0) if isinstance(first, EncodedDocuments) else first
            found = document[field] if field else document
    if isinstance(found, Mapping) and "_id" in found:
        found = found["_id"]
    collection = next(iter(command.values()), None)
    return f"{collection} {found!r}"
