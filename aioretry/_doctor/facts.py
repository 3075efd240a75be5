"""What is known of a deployment and of a client of it; plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from aioretry._commands.look_alikes import LookAlike

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that could not be found out."""

    why: str


Maybe: TypeAlias = T | Unknown


@dataclass(frozen=True, slots=True)
class Clock:
    """A server's clock by ours."""

    ahead: float
    """How many seconds it is ahead; negative if it is behind."""

    error: float
    """By how many seconds that may be wrong."""


@dataclass(frozen=True, slots=True)
class Member:
    """One server, as it answered."""

    address: str
    role: str
    """``primary``, ``secondary``, ``mongos``, ``standalone`` or ``other``."""

    version: Maybe[str]
    wire_version: int
    session_minutes: int | None
    """For how long it remembers a session; None if it has none."""

    max_document_bytes: int
    max_message_bytes: int
    max_batch: int
    """Of statements in a command."""

    clock: Maybe[Clock]
    storage_engine: Maybe[str]
    transaction_lifetime: Maybe[float]
    """In seconds."""

    record_lifetime: Maybe[float]
    """How long a transaction id is remembered at least, in minutes."""

    max_sessions: Maybe[int]
    active_sessions: Maybe[int]
    oplog_hours: Maybe[float]
    look_alike: LookAlike | None = None
    """What it is if it is not MongoDB, as far as that can be told."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A server that did not answer."""

    address: str
    why: str


@dataclass(frozen=True, slots=True)
class SetConfig:
    """What the configuration of a replica set says."""

    voting: int
    arbiters: int
    electable: int
    """How many members can become primary."""

    hidden: int
    """How many members no client is told of."""

    majority_journals: bool
    """Whether a majority acknowledges only what is in its journals."""

    @property
    def majority(self) -> int:
        """How many members make a majority."""
        return self.voting // 2 + 1


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """What the connection string makes of a client."""

    retry_writes: bool
    write_concern: Mapping[str, Any]
    """Empty if the deployment's default counts."""

    timeout: float | None
    """``timeoutMS`` in seconds; 0 for no limit; None if it is not set."""

    server_selection_timeout: float
    connect_timeout: float | None
    socket_timeout: float | None
    max_pool_size: int | None
    logs_in: bool
    pymongo: tuple[int, ...] = ()
    """The version of PyMongo, as numbers."""

    ignored: tuple[str, ...] = ()
    """What PyMongo says of options that it ignores."""

    has_other: bool = False
    """Whether the other distribution is installed here that has the same import name."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was found out."""

    client: ClientFacts
    topology: str
    """``standalone``, ``replica set``, ``sharded``, ``load balanced`` or ``unknown``."""

    is_direct: bool = False
    """Whether the client looks at one member of a replica set only."""

    set_name: str | None = None
    members: tuple[Member, ...] = ()
    absent: tuple[Absent, ...] = ()
    default_write_concern: Maybe[Mapping[str, Any]] = field(
        default_factory=lambda: Unknown("nobody was asked")
    )
    config: Maybe[SetConfig] | None = None
    """None where there is no replica set to ask."""

    problem: str | None = None
    """Why nobody could be asked; None if somebody was."""

    @property
    def look_alike(self) -> LookAlike | None:
        """What the deployment is if it is not MongoDB, as far as that can be told."""
        return next((each.look_alike for each in self.members if each.look_alike), None)

    @property
    def writable(self) -> tuple[Member, ...]:
        """The servers that take writes now."""
        return tuple(each for each in self.members if each.role != "secondary")
