"""Options as the official tests write them, as PyMongo takes them."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pymongo import ReturnDocument
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import make_read_preference, read_pref_mode_from_name
from pymongo.write_concern import WriteConcern

from tests.spec.unsupported import require_known

_WRITE_CONCERN = {"w": "w", "journal": "j", "wtimeoutMS": "wtimeout"}
_NAMES = {
    "allowDiskUse": "allow_disk_use",
    "arrayFilters": "array_filters",
    "batchSize": "batch_size",
    "bypassDocumentValidation": "bypass_document_validation",
    "causalConsistency": "causal_consistency",
    "collation": "collation",
    "comment": "comment",
    "defaultTransactionOptions": "default_transaction_options",
    "filter": "filter",
    "hint": "hint",
    "let": "let",
    "limit": "limit",
    "maxCommitTimeMS": "max_commit_time_ms",
    "maxTimeMS": "max_time_ms",
    "name": "name",
    "namespace": "namespace",
    "ordered": "ordered",
    "pipeline": "pipeline",
    "projection": "projection",
    "readConcern": "read_concern",
    "readPreference": "read_preference",
    "returnDocument": "return_document",
    "skip": "skip",
    "snapshot": "snapshot",
    "sort": "sort",
    "unique": "unique",
    "upsert": "upsert",
    "verboseResults": "verbose_results",
    "viewOn": "viewOn",
    "writeConcern": "write_concern",
}


def options_of(
    what: str, given: Mapping[str, Any], *, as_they_are: Collection[str] = ()
) -> dict[str, Any]:
    """Give keyword arguments for a method of PyMongo's.

    Args:
        what: What they belong to, for the error.
        given: The options.
        as_they_are: Those that the method hands on to the server by the server's names.

    Raises:
        UnsupportedError: One is not known here.
    """
    require_known(what, given, _NAMES.keys())
    return {
        name if name in as_they_are else _NAMES[name]: _VALUES.get(name, _same)(value)
        for name, value in given.items()
    }


def _same(value: Any) -> Any:
    return value


def _read_concern(given: Mapping[str, Any]) -> ReadConcern:
    require_known("readConcern", given, {"level"})
    return ReadConcern(**given)


def _write_concern(given: Mapping[str, Any]) -> WriteConcern:
    require_known("writeConcern", given, _WRITE_CONCERN.keys())
    return WriteConcern(**{_WRITE_CONCERN[name]: value for name, value in given.items()})


def _read_preference(given: Mapping[str, Any]) -> Any:
    require_known("readPreference", given, {"mode", "maxStalenessSeconds"})
    mode = read_pref_mode_from_name(given["mode"])
    return make_read_preference(mode, None, given.get("maxStalenessSeconds", -1))


_VALUES: dict[str, Callable[[Any], Any]] = {
    "readConcern": _read_concern,
    "readPreference": _read_preference,
    "returnDocument": {"Before": ReturnDocument.BEFORE, "After": ReturnDocument.AFTER}.__getitem__,
    "writeConcern": _write_concern,
}
