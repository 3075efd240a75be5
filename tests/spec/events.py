"""What a client under test did, as its listeners saw it, beside what a test expects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
    ConnectionPoolListener,
)

from tests.spec.matching import MismatchError, match
from tests.spec.unsupported import UnsupportedError, require_known

_SENSITIVE = {
    "authenticate",
    "saslStart",
    "saslContinue",
    "getnonce",
    "createUser",
    "updateUser",
    "copydbgetnonce",
    "copydbsaslstart",
    "copydb",
}
_COMMAND_EVENTS = {
    "commandStartedEvent": {"command", "commandName", "databaseName"},
    "commandSucceededEvent": {"reply", "commandName"},
    "commandFailedEvent": {"commandName"},
}
_POOL_EVENTS = {
    "poolCreatedEvent",
    "poolReadyEvent",
    "poolClearedEvent",
    "poolClosedEvent",
    "connectionCreatedEvent",
    "connectionReadyEvent",
    "connectionClosedEvent",
    "connectionCheckOutStartedEvent",
    "connectionCheckOutFailedEvent",
    "connectionCheckedOutEvent",
    "connectionCheckedInEvent",
}
_EXPECTATION = {"client", "events", "eventType", "ignoreExtraEvents"}


@dataclass(frozen=True, slots=True)
class Seen:
    """An event that was seen."""

    name: str
    event: Any


class Recorder(CommandListener, ConnectionPoolListener):
    """Records the events of one client that its entity asks for.

    Args:
        observed: The names of the events.
        ignored: Commands whose events nobody wants to see.

    Raises:
        UnsupportedError: An event is not known here.
    """

    def __init__(self, observed: Sequence[str], ignored: Sequence[str]) -> None:
        for name in observed:
            if name not in _COMMAND_EVENTS and name not in _POOL_EVENTS:
                raise UnsupportedError(f"observing {name}")
        self.seen: list[Seen] = []
        self.ready = 0
        """How many connections were ever ready."""

        self._observed = set(observed)
        self._ignored = {"configureFailPoint", *ignored} | _SENSITIVE

    def forget(self) -> None:
        """Begin anew."""
        self.seen.clear()

    def started(self, event: CommandStartedEvent) -> None:
        self._add_command("commandStartedEvent", event)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self._add_command("commandSucceededEvent", event)

    def failed(self, event: CommandFailedEvent) -> None:
        self._add_command("commandFailedEvent", event)

    def pool_created(self, event: Any) -> None:
        self._add("poolCreatedEvent", event)

    def pool_ready(self, event: Any) -> None:
        self._add("poolReadyEvent", event)

    def pool_cleared(self, event: Any) -> None:
        self._add("poolClearedEvent", event)

    def pool_closed(self, event: Any) -> None:
        self._add("poolClosedEvent", event)

    def connection_created(self, event: Any) -> None:
        self._add("connectionCreatedEvent", event)

    def connection_ready(self, event: Any) -> None:
        self.ready += 1
        self._add("connectionReadyEvent", event)

    def connection_closed(self, event: Any) -> None:
        self._add("connectionClosedEvent", event)

    def connection_check_out_started(self, event: Any) -> None:
        self._add("connectionCheckOutStartedEvent", event)

    def connection_check_out_failed(self, event: Any) -> None:
        self._add("connectionCheckOutFailedEvent", event)

    def connection_checked_out(self, event: Any) -> None:
        self._add("connectionCheckedOutEvent", event)

    def connection_checked_in(self, event: Any) -> None:
        self._add("connectionCheckedInEvent", event)

    def _add_command(self, name: str, event: Any) -> None:
        if event.command_name not in self._ignored:
            self._add(name, event)

    def _add(self, name: str, event: Any) -> None:
        if name in self._observed:
            self.seen.append(Seen(name, event))


def check_events(
    expectation: Mapping[str, Any], recorder: Recorder, lsids: Mapping[str, Any]
) -> None:
    """Compare what was seen with what a test expects.

    Args:
        expectation: What the test says of one client.
        recorder: That client's.
        lsids: Those of the test's sessions.

    Raises:
        MismatchError: They differ.
        UnsupportedError: The test expects something that is not known here.
    """
    require_known("expectEvents", expectation, _EXPECTATION)
    kinds = {"command": _COMMAND_EVENTS.keys(), "cmap": _POOL_EVENTS}
    kind = expectation.get("eventType", "command")
    if kind not in kinds:
        raise UnsupportedError(f"events of the type {kind}")
    expected = _with_lsids(expectation["events"], lsids)
    seen = [each for each in list(recorder.seen) if each.name in kinds[kind]]
    found = _shown(seen)
    if len(seen) < len(expected) or (
        len(seen) > len(expected) and not expectation.get("ignoreExtraEvents", False)
    ):
        raise MismatchError(f"events: expected {len(expected)}, found {found}")
    for index, (each, other) in enumerate(zip(expected, seen, strict=False)):
        _check_event(each, other, f"event {index} of {found}")


def _check_event(expected: Mapping[str, Any], seen: Seen, where: str) -> None:
    [(name, content)] = expected.items()
    if name not in _COMMAND_EVENTS and name not in _POOL_EVENTS:
        raise UnsupportedError(f"the event {name}")
    require_known(name, content, _COMMAND_EVENTS.get(name, set()))
    if name != seen.name:
        raise MismatchError(f"{where}: expected {name}")
    event = seen.event
    if "commandName" in content:
        match(content["commandName"], event.command_name, f"{where}: commandName")
    if "databaseName" in content:
        match(content["databaseName"], event.database_name, f"{where}: databaseName")
    if "command" in content:
        match(content["command"], event.command, f"{where}: command")
    if "reply" in content:
        match(content["reply"], event.reply, f"{where}: reply")


def _with_lsids(expected: Any, lsids: Mapping[str, Any]) -> Any:
    """Put the ids of sessions where a test has their names."""
    match expected:
        case {"$$sessionLsid": name}:
            return lsids[name]
        case {**fields}:
            return {field: _with_lsids(value, lsids) for field, value in fields.items()}
        case [*elements]:
            return [_with_lsids(element, lsids) for element in elements]
        case _:
            return expected


def _shown(seen: Sequence[Seen]) -> str:
    return str([f"{each.name}:{getattr(each.event, 'command_name', '')}" for each in seen])
