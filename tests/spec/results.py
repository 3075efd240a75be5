"""Results of PyMongo's in the form in which the official tests write them."""

from collections.abc import Mapping
from typing import Any

from pymongo.results import (
    BulkWriteResult,
    ClientBulkWriteResult,
    DeleteResult,
    InsertManyResult,
    InsertOneResult,
    UpdateResult,
)

NOTHING: dict[str, Any] = {}


def insert_one_result(result: InsertOneResult) -> dict[str, Any]:
    """What ``insertOne`` returns."""
    return {"insertedId": result.inserted_id}


def insert_many_result(result: InsertManyResult) -> dict[str, Any]:
    """What ``insertMany`` returns."""
    return {"insertedIds": {str(index): each for index, each in enumerate(result.inserted_ids)}}


def update_result(result: UpdateResult) -> dict[str, Any]:
    """What the updates of one statement return."""
    if not result.acknowledged:
        return NOTHING
    found = {
        "matchedCount": result.matched_count,
        "modifiedCount": result.modified_count,
        "upsertedCount": 0 if result.upserted_id is None else 1,
    }
    return found if result.upserted_id is None else found | {"upsertedId": result.upserted_id}


def delete_result(result: DeleteResult) -> dict[str, Any]:
    """What the deletes of one statement return."""
    return {"deletedCount": result.deleted_count} if result.acknowledged else NOTHING


def bulk_result(details: BulkWriteResult | Mapping[str, Any]) -> dict[str, Any]:
    """What ``bulkWrite`` returns, or its error says; PyMongo tells no inserted ids."""
    if isinstance(details, BulkWriteResult) and not details.acknowledged:
        return NOTHING
    raw = details.bulk_api_result if isinstance(details, BulkWriteResult) else details
    return {
        "deletedCount": raw["nRemoved"],
        "insertedCount": raw["nInserted"],
        "matchedCount": raw["nMatched"],
        "modifiedCount": raw["nModified"],
        "upsertedCount": raw["nUpserted"],
        "upsertedIds": {str(each["index"]): each["_id"] for each in raw["upserted"]},
    }


def client_bulk_result(result: ClientBulkWriteResult | None) -> dict[str, Any]:
    """What ``clientBulkWrite`` returns."""
    if result is None:
        return NOTHING
    found: dict[str, Any] = {
        "deletedCount": result.deleted_count,
        "insertedCount": result.inserted_count,
        "matchedCount": result.matched_count,
        "modifiedCount": result.modified_count,
        "upsertedCount": result.upserted_count,
    }
    if result.has_verbose_results:
        found |= {
            "insertResults": _each(result.insert_results, insert_one_result),
            "updateResults": _each(result.update_results, _client_update_result),
            "deleteResults": _each(result.delete_results, delete_result),
        }
    return found


def _client_update_result(result: UpdateResult) -> dict[str, Any]:
    found = update_result(result)
    found.pop("upsertedCount", None)
    return found


def _each(results: Mapping[int, Any], shape: Any) -> dict[str, Any]:
    return {str(index): shape(result) for index, result in results.items()}
