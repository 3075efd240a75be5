"""What the runner is asked to assert between the operations of a test."""

from collections.abc import Callable
from functools import partial
from typing import Any

from pymongo.synchronous.client_session import _TxnState

from tests.spec.arguments import Arguments
from tests.spec.entities import Entities
from tests.spec.matching import MismatchError

Assertion = Callable[[Arguments, Entities, Any], None]
"""Takes the arguments, the entities, and PyMongo's own client."""


def _require(truth: bool, otherwise: str) -> None:
    if not truth:
        raise MismatchError(otherwise)


def _has_state(arguments: Arguments, entities: Entities, _: Any) -> None:
    session, name = entities.pymongos_session(arguments.take("session")), arguments.take("state")
    found = session._transaction.state
    _require(found == getattr(_TxnState, name.upper()), f"the state is {found}, and not {name}")


def _is_pinned(wanted: bool, arguments: Arguments, entities: Entities, _: Any) -> None:
    session = entities.pymongos_session(arguments.take("session"))
    address = session._transaction.pinned_address
    _require(wanted is (address is not None), f"the session is pinned to {address}")


def _is_dirty(wanted: bool, arguments: Arguments, entities: Entities, _: Any) -> None:
    found = entities.pymongos_session(arguments.take("session"))._server_session.dirty
    _require(wanted is found, f"whether the session is dirty: {found}")


def _same_lsids(wanted: bool, arguments: Arguments, entities: Entities, _: Any) -> None:
    recorder = entities.recorders[arguments.take("client")]
    started = [each.event for each in recorder.seen if each.name == "commandStartedEvent"]
    lsids = [event.command["lsid"] for event in started[-2:]]
    _require(len(lsids) == 2 and wanted is (lsids[0] == lsids[1]), f"the last lsids are {lsids}")


def _collection_exists(wanted: bool, arguments: Arguments, _: Entities, internal: Any) -> None:
    names = internal[arguments.take("databaseName")].list_collection_names()
    _require(wanted is (arguments.take("collectionName") in names), f"there are {names}")


def _index_exists(wanted: bool, arguments: Arguments, _: Entities, internal: Any) -> None:
    collection = internal[arguments.take("databaseName")][arguments.take("collectionName")]
    names = [index["name"] for index in collection.list_indexes()]
    _require(wanted is (arguments.take("indexName") in names), f"there are {names}")


ASSERTIONS: dict[str, Assertion] = {
    "assertSessionTransactionState": _has_state,
    "assertSessionPinned": partial(_is_pinned, True),
    "assertSessionUnpinned": partial(_is_pinned, False),
    "assertSessionDirty": partial(_is_dirty, True),
    "assertSessionNotDirty": partial(_is_dirty, False),
    "assertSameLsidOnLastTwoCommands": partial(_same_lsids, True),
    "assertDifferentLsidOnLastTwoCommands": partial(_same_lsids, False),
    "assertCollectionExists": partial(_collection_exists, True),
    "assertCollectionNotExists": partial(_collection_exists, False),
    "assertIndexExists": partial(_index_exists, True),
    "assertIndexNotExists": partial(_index_exists, False),
}
