"""What our defaults, and the connection string's options, will do there. Pure."""

from collections.abc import Iterator
from typing import Final

from aioretry._doctor.facts import ClientFacts, Facts
from aioretry._doctor.finding import Finding, Level
from aioretry._installed import REPAIR

_TRUSTED_MINUTES: Final = 25
_SAFE_PYMONGO: Final = (4, 18, 2)
_OTHER: Final = (
    "the distribution aioretry is installed, too, under the same import name: whichever is updated "
    "or removed next takes files of the other one with it"
)
_USUAL_FAILOVER: Final = 18.0  # of default settings, in seconds; docs/timeouts.md


def findings(facts: Facts) -> Iterator[Finding]:
    """Return what there is to say."""
    if facts.is_direct:
        yield Finding(
            "direct-connection",
            Level.WARNING,
            "a direct connection: this client stays with the one server, and finds no new primary",
            "Leave directConnection out, or name the replica set.",
        )
    yield from ignored(facts.client)
    yield from _pymongo(facts.client.pymongo)
    if facts.client.has_other:
        yield Finding("installed", Level.WARNING, _OTHER, f"{REPAIR}.")
    yield from _limits(facts.client)
    yield from _selection(facts.client)
    # What is not MongoDB may remember writes for another time, or not at all.
    if facts.topology != "standalone" and facts.client.retry_writes and not facts.look_alike:
        yield _memory(facts)


def ignored(client: ClientFacts) -> Iterator[Finding]:
    """Return what there is to say of options that do nothing."""
    for text in client.ignored:
        yield Finding(
            "option-ignored",
            Level.WARNING,
            f"an option of the connection string is ignored: {text}",
            "Correct it, or leave it out.",
        )


def _pymongo(version: tuple[int, ...]) -> Iterator[Finding]:
    if version < _SAFE_PYMONGO:
        text = f"PyMongo {_dotted(version)} has vulnerabilities that {_dotted(_SAFE_PYMONGO)} mends"
        yield Finding("pymongo", Level.WARNING, text, "Update PyMongo.")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _limits(client: ClientFacts) -> Iterator[Finding]:
    match client.timeout:
        case None:
            text = (
                "timeoutMS is not set: outside a deadline() block a write is retried once, and "
                "inside as often as its time allows"
            )
            yield Finding("deadline", Level.NOTE, text)
        case 0:
            yield Finding(
                "deadline",
                Level.WARNING,
                "timeoutMS=0: a write outside a deadline() block is retried without end",
                "Give it a limit, such as timeoutMS=20000.",
            )
        case seconds if seconds < _USUAL_FAILOVER:
            yield Finding(
                "deadline",
                Level.NOTE,
                f"timeoutMS allows {seconds:g} s for each write outside a deadline() block; a "
                f"failover may take {_USUAL_FAILOVER:g} s",
            )
        case seconds:
            yield Finding(
                "deadline",
                Level.NOTE,
                f"each write outside a deadline() block is retried for {seconds:g} s",
            )
    if client.socket_timeout is not None and client.timeout is None:
        yield Finding(
            "socket-timeout",
            Level.WARNING,
            f"socketTimeoutMS ends every attempt after {client.socket_timeout:g} s, slow ones too, "
            "and then costs the one retry",
            "Leave it out, and use deadline() or timeoutMS.",
        )


def _selection(client: ClientFacts) -> Iterator[Finding]:
    seconds = client.server_selection_timeout
    text = f"a write waits {seconds:g} s for a server at most (serverSelectionTimeoutMS)"
    if seconds < _USUAL_FAILOVER:
        yield Finding(
            "server-selection",
            Level.WARNING,
            f"{text}: less than a failover may take",
            "Leave the option out: deadlines limit the whole write.",
        )
    else:
        yield Finding("server-selection", Level.NOTE, text)


def _memory(facts: Facts) -> Finding:
    minutes = [each.session_minutes for each in facts.members if each.session_minutes is not None]
    trusted = min(_TRUSTED_MINUTES, min(minutes, default=30) * 5 / 6)
    return Finding(
        "resolving",
        Level.NOTE,
        f"a write whose outcome is unknown can be resolved for {trusted:.0f} minutes",
    )
