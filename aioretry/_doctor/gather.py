"""Asks a deployment what it is, by a real client, and writes nothing."""

import asyncio
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import pymongo
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_preferences import Nearest
from pymongo.uri_parser import parse_uri

from aioretry import _installed, deadline
from aioretry._cli import reason
from aioretry._doctor.facts import (
    Absent,
    ClientFacts,
    Facts,
    Maybe,
    Member,
    SetConfig,
    Unknown,
)
from aioretry._doctor.members import NOT_KNOWN, ask_member, told
from aioretry._doctor.secrets import has_credentials, without_secrets
from aioretry.events import name_of
from aioretry.pymongo import AsyncRetryClient

Address = tuple[str, int | None]

_TOPOLOGIES: Final = {
    "ReplicaSetWithPrimary": "replica set",
    "ReplicaSetNoPrimary": "replica set",
    "Sharded": "sharded",
    "LoadBalanced": "load balanced",
}
_NOT_MONGODB: Final = "You appear to be connected to"
_UNKNOWN_OPTION: Final = "Unknown option."
_UNREAD: Final = "the server does not say"

_asked: ContextVar[Address | None] = ContextVar("aioretry_doctor_asked", default=None)
"""The only server that is to be asked; None for any."""


async def gather(uri: str, seconds: float) -> Facts:
    """Return what can be found out.

    Args:
        uri: The connection string.
        seconds: How long to wait for each answer at most.

    Raises:
        PyMongoError: The connection string makes no client.
    """
    with warnings.catch_warnings(record=True) as ignored:
        warnings.simplefilter("always")
        client: AsyncRetryClient[Any] = AsyncRetryClient(uri, server_selector=_select)
    async with client:
        # Other categories are not about the connection string; nor is what PyMongo says of hosts.
        told = [
            str(each.message)
            for each in ignored
            if issubclass(each.category, UserWarning) and _NOT_MONGODB not in str(each.message)
        ]
        facts_of_client = _client_facts(client, uri, told)
        try:
            async with deadline(seconds):
                await client.admin.command("ping", read_preference=Nearest())
        except PyMongoError as exc:
            return Facts(facts_of_client, "unknown", problem=_why(exc, uri))
        return await _look(client, facts_of_client, uri, seconds)


async def _look(client: AsyncRetryClient[Any], own: ClientFacts, uri: str, seconds: float) -> Facts:
    topology: Any = client.topology_description
    addresses = [a for a, s in topology.server_descriptions().items() if not _is_arbiter(s)]
    answers, default, config = await asyncio.gather(
        asyncio.gather(*(_ask(client, address, uri, seconds) for address in addresses)),
        _default_write_concern(client, seconds),
        _set_config(client, seconds),
    )
    members = tuple(each for each in answers if isinstance(each, Member))
    absent = tuple(each for each in answers if isinstance(each, Absent))
    in_a_set = topology.replica_set_name is not None or _are_of_a_set(members)
    return Facts(
        own,
        _topology(topology.topology_type_name, members),
        is_direct=in_a_set and topology.topology_type_name == "Single",
        set_name=topology.replica_set_name,
        members=members,
        absent=absent,
        default_write_concern=default,
        config=config if in_a_set else None,
        problem=None if members else _problem(absent),
    )


def _are_of_a_set(members: Sequence[Member]) -> bool:
    return any(each.role in {"primary", "secondary"} for each in members)


async def _ask(
    client: AsyncRetryClient[Any], address: Address, uri: str, seconds: float
) -> Member | Absent:
    name = name_of(address)
    _asked.set(address)  # of this task alone
    try:
        async with deadline(seconds):
            return await ask_member(client, name)
    except PyMongoError as exc:
        topology: Any = client.topology_description
        known = topology.server_descriptions().get(address)
        cause = None if known is None else known.error
        return Absent(name, _why(cause if isinstance(cause, PyMongoError) else exc, uri))


async def _default_write_concern(
    client: AsyncRetryClient[Any], seconds: float
) -> Maybe[Mapping[str, Any]]:
    async with deadline(seconds):
        reply = await told(client.admin.command({"getDefaultRWConcern": 1}), "clusterMonitor")
    if isinstance(reply, Unknown):
        # Before MongoDB 4.4 nobody could set another one.
        return {"w": 1} if reply is NOT_KNOWN else reply
    default: Mapping[str, Any] = reply.get("defaultWriteConcern") or {"w": 1}
    return {
        name: default[name]
        for name in ("w", "j", "wtimeout")
        if name in default and (name != "wtimeout" or default[name])
    }


async def _set_config(client: AsyncRetryClient[Any], seconds: float) -> Maybe[SetConfig]:
    async with deadline(seconds):
        asked = client.admin.command({"replSetGetConfig": 1}, read_preference=Nearest())
        reply = await told(asked, "clusterMonitor")
    if isinstance(reply, Unknown):
        return reply
    config = reply.get("config", {})
    members: Sequence[Mapping[str, Any]] = config.get("members", ())
    if not members:
        return Unknown(_UNREAD)
    return SetConfig(
        voting=sum(1 for each in members if each.get("votes", 1)),
        arbiters=sum(1 for each in members if each.get("arbiterOnly")),
        electable=sum(1 for each in members if _is_electable(each)),
        hidden=sum(1 for each in members if each.get("hidden")),
        majority_journals=bool(config.get("writeConcernMajorityJournalDefault", True)),
    )


def _is_electable(member: Mapping[str, Any]) -> bool:
    return not member.get("arbiterOnly") and member.get("priority", 1) > 0


def _select(servers: Sequence[Any]) -> Sequence[Any]:
    asked = _asked.get()
    return servers if asked is None else [each for each in servers if each.address == asked]


def _client_facts(client: AsyncRetryClient[Any], uri: str, ignored: Sequence[str]) -> ClientFacts:
    options: Any = client.options
    pool = options.pool_options
    return ClientFacts(
        retry_writes=options.retry_writes,
        write_concern=dict(client.write_concern.document),
        timeout=options.timeout,
        server_selection_timeout=options.server_selection_timeout,
        connect_timeout=pool.connect_timeout,
        socket_timeout=pool.socket_timeout,
        max_pool_size=pool.max_pool_size,
        logs_in=has_credentials(uri),
        pymongo=tuple(part for part in pymongo.version_tuple if isinstance(part, int)),
        ignored=tuple(without_secrets(text, uri) for text in _named(ignored, uri)),
        has_other=_installed.has_other(),
    )


def _named(ignored: Sequence[str], uri: str) -> Iterator[str]:
    """Return warnings; those of unknown options, which PyMongo does not name, with the name."""
    query = uri.partition("?")[2]
    names = (each.partition("=")[0] for each in re.split("[&;]", query))
    unknown = (name for name in names if _is_unknown(name))
    for text in ignored:
        is_nameless = text.startswith(_UNKNOWN_OPTION)
        yield f"{next(unknown, 'one')}: {text}" if is_nameless else text


def _is_unknown(option: str) -> bool:
    try:
        parse_uri(f"mongodb://host/?{option}=0")
    except (PyMongoError, ValueError) as exc:  # perhaps only of its value
        return str(exc).startswith(_UNKNOWN_OPTION)
    return False


def _topology(name: str, members: Sequence[Member]) -> str:
    if name in _TOPOLOGIES:
        return _TOPOLOGIES[name]
    roles = {each.role for each in members}
    if roles & {"primary", "secondary"}:
        return "replica set"
    if "mongos" in roles:
        return "sharded"
    return "standalone" if "standalone" in roles else "unknown"


def _is_arbiter(server: Any) -> bool:
    return bool(server.server_type_name == "RSArbiter")


def _problem(absent: Sequence[Absent]) -> str:
    return "; ".join(f"{each.address}: {each.why}" for each in absent) or "nobody answered"


def _why(exc: PyMongoError, uri: str) -> str:
    if isinstance(exc, OperationFailure) and exc.code in {18, 8000}:
        return "the login failed: wrong user name, password or authentication database"
    kind = "" if isinstance(exc, ServerSelectionTimeoutError) else f"{type(exc).__name__}: "
    return without_secrets(kind + reason(exc), uri)
