"""What a server answers to a read. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.commands import Command, CommandError
from tests.simulation.language import value_of
from tests.simulation.state import Documents, matching

NOT_IN_A_TRANSACTION = 263


def answer_to(
    command: Command, documents: Callable[[str], Documents], now: float = 0.0
) -> dict[str, Any]:
    """Return the reply to a read.

    Args:
        command: The read.
        documents: Returns what it sees of a collection.
        now: The server's time.

    Raises:
        CommandError: It can't be a part of a transaction.
    """
    seen, body = documents(command.collection), command.body
    match command.name:
        case "find":
            found = [seen[key] for key in matching(seen, body.get("filter", {}), now)]
            for name, direction in reversed((body.get("sort") or {}).items()):
                found.sort(key=lambda one: one[name], reverse=direction < 0)
            return _batch(found[: body.get("limit") or len(found)])
        case "aggregate" if "$project" in body["pipeline"][-1]:
            wanted, shown = (next(iter(stage.values())) for stage in body["pipeline"])
            found = [seen[key] for key in matching(seen, wanted, now)]
            return _batch([_projected(one, shown, now) for one in found])
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


def _projected(document: Mapping[str, Any], shown: Mapping[str, Any], now: float) -> dict[str, Any]:
    fields = {"_id": document["_id"]}
    for name, shows in shown.items():
        if shows != 1:
            fields[name] = value_of(shows, document, now)
        elif name in document:
            fields[name] = document[name]
    return fields


def _batch(found: list[Any]) -> dict[str, Any]:
    return {"ok": 1.0, "cursor": {"id": 0, "ns": "", "firstBatch": found}}
