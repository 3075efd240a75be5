"""What a server answers to a read. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.commands import Command, CommandError
from tests.simulation.state import Documents, matching

NOT_IN_A_TRANSACTION = 263


def answer_to(command: Command, documents: Callable[[str], Documents]) -> dict[str, Any]:
    """Return the reply to a read.

    Args:
        command: The read.
        documents: Returns what it sees of a collection.

    Raises:
        CommandError: It can't be a part of a transaction.
    """
    seen, body = documents(command.collection), command.body
    match command.name:
        case "find":
            found = [seen[key] for key in matching(seen, body.get("filter", {}))]
            return _batch(found[: body.get("limit") or len(found)])
        case "aggregate":
            return _batch(_counted(seen, body["pipeline"]))
        case "distinct":
            found = [seen[key] for key in matching(seen, body.get("query", {}))]
            values = dict.fromkeys(one[body["key"]] for one in found if body["key"] in one)
            return {"ok": 1.0, "values": [*values]}
        case "count" if command.in_transaction:
            raise CommandError(NOT_IN_A_TRANSACTION, "OperationNotSupportedInTransaction")
        case _:
            return {"ok": 1.0, "n": len(seen)}


def _counted(seen: Documents, pipeline: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    count = 0
    for stage in pipeline:
        match stage:
            case {"$match": query}:
                count = len(matching(seen, query))
            case {"$skip": most}:
                count = max(0, count - most)
            case {"$limit": most}:
                count = min(count, most)
    return [{"_id": 1, "n": count}] if count else []


def _batch(found: list[Any]) -> dict[str, Any]:
    return {"ok": 1.0, "cursor": {"id": 0, "ns": "", "firstBatch": found}}
