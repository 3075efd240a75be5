"""Services that speak MongoDB's protocol and are none, and what they do with transaction ids."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_WITHOUT: Final = "Have retryWrites=false in the connection string"
_REFUSED: Final = "writes with a transaction id are refused"
_TAKEN_FOR_NEW: Final = (
    "a repeated write may be taken for a new one, so that it is applied twice and nobody is told"
)
_NEWEST_REFUSING_WIRE_VERSION: Final = 13  # Amazon's engine 5.0


@dataclass(frozen=True, slots=True)
class LookAlike:
    """A service that looks like MongoDB."""

    name: str
    retries: str
    """What becomes of writes that have a transaction id."""

    advice: str
    may_retry: bool = False
    """Whether some of them can retry writes, and the handshake does not say which."""


_AMAZON: Final = LookAlike("Amazon DocumentDB", _REFUSED, f"{_WITHOUT}, or engine 8.0.2 or newer.")
_AMAZON_NEW: Final = LookAlike(
    _AMAZON.name, f"before engine 8.0.2, {_REFUSED}", _AMAZON.advice, may_retry=True
)
_AMAZON_ELASTIC: Final = LookAlike(
    "an elastic cluster of Amazon DocumentDB", _REFUSED, f"{_WITHOUT}."
)
_COSMOS: Final = LookAlike(
    "Azure Cosmos DB for MongoDB (RU)",
    f"{_REFUSED}, unless that feature of the account is on",
    f"{_WITHOUT}, or enable retryable writes among the features of the account.",
    may_retry=True,
)
_COSMOS_VCORE: Final = LookAlike(
    "Azure Cosmos DB for MongoDB (vCore)", _TAKEN_FOR_NEW, f"{_WITHOUT}, as Azure's own have."
)
_DOCUMENTDB: Final = LookAlike("DocumentDB on PostgreSQL", _TAKEN_FOR_NEW, f"{_WITHOUT}.")
_FERRETDB: Final = LookAlike("FerretDB", _TAKEN_FOR_NEW, f"{_WITHOUT}.")

_HOSTS: Final = {
    ".docdb.amazonaws.com": _AMAZON,
    ".docdb-elastic.amazonaws.com": _AMAZON_ELASTIC,
    ".mongocluster.cosmos.azure.com": _COSMOS_VCORE,
    ".cosmos.azure.com": _COSMOS,
}


def look_alike_of(
    hosts: Iterable[str],
    wire_version: int,
    hello: Mapping[str, Any] | None = None,
    build_info: Mapping[str, Any] | None = None,
) -> LookAlike | None:
    """Tell which service a server is that is not MongoDB.

    Args:
        hosts: The server's name, and those that it calls itself and its set by, without ports.
        wire_version: The highest that it speaks.
        hello: What else it said in the handshake, if that is known.
        build_info: What it answered to ``buildInfo``, if it was asked.

    Returns:
        The service; None for MongoDB, and for what can't be told from it.
    """
    found = _by_name([host.lower() for host in hosts])
    if found is not None:
        is_new = found is _AMAZON and wire_version > _NEWEST_REFUSING_WIRE_VERSION
        return _AMAZON_NEW if is_new else found
    hello, build_info = hello or {}, build_info or {}
    if "ferretdb" in build_info or "ferretdbVersion" in build_info:  # of version 2, and of 1
        return _FERRETDB
    if "internal" in hello:
        return _DOCUMENTDB
    return _COSMOS if "_t" in hello else None


def _by_name(names: list[str]) -> LookAlike | None:
    for suffix, found in _HOSTS.items():
        if any(name.endswith(suffix) for name in names):
            return found
    return None
