"""Asks one server; what it does not tell is unknown, with the reason."""

import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_preferences import Nearest

from aioretry._commands.look_alikes import LookAlike, look_alike_of
from aioretry._doctor.facts import Clock, Maybe, Member, Unknown
from aioretry.pymongo import AsyncRetryClient

T = TypeVar("T")

_UNAUTHORIZED: Final = {13, 8000}  # the latter is Atlas's
_NO_SUCH_COMMAND: Final = 59
_PARAMETERS: Final = (
    "transactionLifetimeLimitSeconds",
    "TransactionRecordMinimumLifetimeMinutes",
    "maxSessions",
)

NOT_KNOWN: Final = Unknown("the server does not know the command")

Command = Mapping[str, Any]
Ask = Callable[[Command], Awaitable[Mapping[str, Any]]]


async def ask_member(client: AsyncRetryClient[Any], address: str) -> Member:
    """Return what the server says that the client's selector lets through.

    Raises:
        PyMongoError: It did not answer.
    """

    async def ask(command: Command) -> Mapping[str, Any]:
        reply: Mapping[str, Any] = await client.admin.command(
            dict(command), read_preference=Nearest()
        )
        return reply

    hello, began, took = await _greet(ask)
    status = await told(ask({"serverStatus": 1, "repl": 0, "metrics": 0}), "clusterMonitor")
    build = await told(ask({"buildInfo": 1}), "clusterMonitor")
    parameters = {name: await _parameter(ask, name) for name in _PARAMETERS}
    role = _role(hello)
    return Member(
        address=address,
        role=role,
        version=_part(build, "version"),
        wire_version=hello.get("maxWireVersion", 0),
        session_minutes=hello.get("logicalSessionTimeoutMinutes"),
        max_document_bytes=hello.get("maxBsonObjectSize", 0),
        max_message_bytes=hello.get("maxMessageSizeBytes", 0),
        max_batch=hello.get("maxWriteBatchSize", 0),
        clock=_clock(hello, began, took),
        storage_engine=_part(status, "storageEngine", "name"),
        transaction_lifetime=parameters[_PARAMETERS[0]],
        record_lifetime=parameters[_PARAMETERS[1]],
        max_sessions=parameters[_PARAMETERS[2]],
        active_sessions=_part(status, "logicalSessionRecordCache", "activeSessionsCount"),
        oplog_hours=await _oplog_hours(client, role),
        look_alike=_look_alike(address, hello, build),
    )


def _look_alike(address: str, hello: Command, build: Maybe[Command]) -> LookAlike | None:
    names = [address, *hello.get("hosts", ())]
    return look_alike_of(
        [name.rpartition(":")[0] for name in names],
        hello.get("maxWireVersion", 0),
        hello,
        {} if isinstance(build, Unknown) else build,
    )


async def _greet(ask: Ask) -> tuple[Mapping[str, Any], float, float]:
    began = time.time()
    try:
        hello = await ask({"hello": 1})
    except OperationFailure:  # of a server before 4.2.10 or 4.4.2, and of what is not MongoDB
        began = time.time()
        hello = await ask({"isMaster": 1})
    return hello, began, time.time() - began


async def told(asked: Awaitable[T], role: str) -> Maybe[T]:
    """Return an answer, or why there is none.

    Args:
        asked: The question.
        role: Which role of MongoDB's gives the right to ask.
    """
    try:
        return await asked
    except OperationFailure as exc:
        if exc.code in _UNAUTHORIZED:
            return Unknown(f"needs the role {role}")
        if exc.code == _NO_SUCH_COMMAND:
            return NOT_KNOWN
        return Unknown(f"the server refused (code {exc.code})")
    except PyMongoError as exc:
        return Unknown(f"no answer ({type(exc).__name__})")


async def _parameter(ask: Ask, name: str) -> Maybe[Any]:
    reply = await told(ask({"getParameter": 1, name: 1}), "clusterMonitor")
    if isinstance(reply, Unknown) and "refused" in reply.why:
        return Unknown("the server has no such parameter")
    return _part(reply, name)


async def _oplog_hours(client: AsyncRetryClient[Any], role: str) -> Maybe[float]:
    if role not in {"primary", "secondary"}:
        return Unknown("it has no oplog of its own")
    oplog = client.local.get_collection("oplog.rs", read_preference=Nearest())
    times = []
    for direction in (1, -1):
        query = oplog.find_one({}, {"ts": 1}, sort=[("$natural", direction)])
        entry = await told(query, "read on the database local")
        if isinstance(entry, Unknown):
            return entry
        if not entry or "ts" not in entry:
            return Unknown("the oplog is empty")
        times.append(entry["ts"].time)
    return float(times[1] - times[0]) / 3600


def _role(hello: Mapping[str, Any]) -> str:
    if hello.get("msg") == "isdbgrid":
        return "mongos"
    if not hello.get("setName"):
        return "standalone" if hello.get("isWritablePrimary", hello.get("ismaster")) else "other"
    if hello.get("isWritablePrimary", hello.get("ismaster")):
        return "primary"
    return "secondary" if hello.get("secondary") else "other"


def _clock(hello: Mapping[str, Any], began: float, took: float) -> Maybe[Clock]:
    there = hello.get("localTime")
    if not isinstance(there, datetime):
        return Unknown("the server does not say")
    here = began + took / 2
    seconds = there.replace(tzinfo=there.tzinfo or UTC).timestamp()
    return Clock(seconds - here, took / 2 + 0.001)


def _part(reply: Maybe[Mapping[str, Any]], *names: str) -> Maybe[Any]:
    found: Any = reply
    for name in names:
        if isinstance(found, Unknown):
            return found
        if not isinstance(found, Mapping) or name not in found:
            return Unknown("the server does not say")
        found = found[name]
    return found
