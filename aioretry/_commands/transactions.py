"""The commands that end a transaction. Pure."""

from collections.abc import Mapping
from typing import Any

from bson.codec_options import DEFAULT_CODEC_OPTIONS
from pymongo.write_concern import WriteConcern

from aioretry._commands.command import Command
from aioretry._commands.replies import error_in
from aioretry._commands.target import write_concern_of

DATABASE = "admin"

_WTIMEOUT = 10_000  # milliseconds


def commit(concern: WriteConcern, recovery_token: Mapping[str, Any] | None) -> Command[None]:
    """Return the command that commits a transaction.

    Args:
        concern: The transaction's write concern.
        recovery_token: What routers know the transaction by; None where there are none.
    """
    return _ending("commit_transaction", "commitTransaction", concern, recovery_token)


def abort(concern: WriteConcern, recovery_token: Mapping[str, Any] | None) -> Command[None]:
    """Return the command that aborts a transaction; arguments as for :func:`commit`."""
    return _ending("abort_transaction", "abortTransaction", concern, recovery_token)


def options(
    concern: WriteConcern, *, max_time_ms: int | None = None, under_deadline: bool
) -> dict[str, Any]:
    """Return what is sent beside the command's own fields.

    Args:
        concern: How it is to be acknowledged.
        max_time_ms: How long it may take on the server, in milliseconds; None sets no limit.
        under_deadline: Whether a deadline limits it.
    """
    limited = {} if under_deadline or max_time_ms is None else {"maxTimeMS": max_time_ms}
    return limited | write_concern_of(concern, under_deadline=under_deadline)


def by_majority(concern: WriteConcern) -> WriteConcern:
    """Return the concern of a commit that is sent again (transactions, "commitTransaction").

    Args:
        concern: The transaction's write concern.
    """
    document = {"wtimeout": _WTIMEOUT, **concern.document, "w": "majority"}
    return WriteConcern(**document)


def _ending(
    operation: str, name: str, concern: WriteConcern, recovery_token: Mapping[str, Any] | None
) -> Command[None]:
    body: dict[str, Any] = {name: 1}
    if recovery_token:
        body["recoveryToken"] = recovery_token
    return Command(
        operation,
        name,
        DATABASE,
        "",
        body,
        concern,
        DEFAULT_CODEC_OPTIONS,
        None,
        _nothing,
        error_in,
    )


def _nothing(_: Mapping[str, Any]) -> None:
    """Return nothing: that it is done is all there is to tell."""
