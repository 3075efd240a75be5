"""Who is what in a replica set: initiating, finding and deposing primaries; all blocking."""

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aioretry.testing._admin import CommandFailedError
from aioretry.testing._server import PAUSE, START_TIMEOUT, MemberState, Server

_HELLO: Final = {"isMaster": 1}  # every server version knows this name
_TIMEOUT: Final = 10.0
_NOBODY_CAUGHT_UP: Final = 262  # ExceededTimeLimit
_NOTE_TIMEOUT: Final = 50  # milliseconds
_CATCH_UP: Final = 2  # seconds that a primary may wait for its secondaries before it steps down


class NoPrimaryError(RuntimeError):
    """No member of the replica set is a primary."""


def initiate(
    servers: Sequence[Server],
    addresses: Sequence[str],
    set_name: str,
    settings: Mapping[str, int],
) -> None:
    """Make running servers one replica set, and wait until every member is ready.

    Args:
        servers: its future members; the first one becomes the primary.
        addresses: how the members reach each of them.
        set_name: its name.
        settings: the replica set's settings.

    Raises:
        MongodStartError: it takes more than a minute.
    """
    deadline = time.monotonic() + START_TIMEOUT
    members = [{"_id": index, "host": address} for index, address in enumerate(addresses)]
    config = {"_id": set_name, "version": 1, "members": members, "settings": dict(settings)}
    servers[0].command({"replSetInitiate": config}, timeout=START_TIMEOUT)
    while find_primary(servers) is None:
        _check(deadline, servers[0], "did not become a primary")
        servers[0].ask({"replSetStepUp": 1})  # without it, it waits for an election timeout
        time.sleep(PAUSE)
    if len(servers) > 1:
        _let_oplogs_meet(servers, deadline)
    for server in servers:
        wait_until_ready(server, deadline)


def _let_oplogs_meet(servers: Sequence[Server], deadline: float) -> None:
    """Have the primary write notes into its oplog until every member has one of them.

    The oplog of each other one begins where its initial sync ended. If the primary is lost before
    they have gone on from there, who lags by an entry finds the oplog of its successor to begin too
    late, and takes no part for a minute. Without the notes, a member that has all there is would
    also wait for a second before it looks again.
    """
    everywhere = {"w": len(servers), "wtimeout": _NOTE_TIMEOUT}
    note = {"appendOplogNote": 1, "data": {"of": "aioretry"}, "writeConcern": everywhere}
    while True:
        primary = find_primary(servers)
        reply = None if primary is None else primary.ask(note)
        if reply is not None and "writeConcernError" not in reply:
            return
        _check(deadline, servers[0], "got no entry of an oplog to all members")
        time.sleep(PAUSE)


def wait_until_ready(server: Server, deadline: float) -> None:
    """Wait until a member is primary or secondary.

    Args:
        server: the member.
        deadline: until when, on the monotonic clock.

    Raises:
        MongodStartError: it did not become either in time.
    """
    while True:
        reply = server.ask(_HELLO)
        if reply is not None and (reply.get("ismaster") or reply.get("secondary")):
            return
        _check(deadline, server, "did not become a primary or secondary")
        time.sleep(PAUSE)


def wait_until_settled(servers: Sequence[Server], deadline: float) -> None:
    """Wait until one member is the primary, and every other one follows it.

    A deposed primary may take itself for one for a while, and be neither primary nor secondary
    after that, until it has taken back what its successor doesn't have.

    Args:
        servers: the members, all of them running.
        deadline: until when, on the monotonic clock.

    Raises:
        MongodStartError: there is one, and another one did not follow it in time.
        NoPrimaryError: none became primary in time.
    """
    while not _are_settled(replies := [reply for _, reply in _ask_all(servers)], len(servers)):
        if time.monotonic() > deadline and not any(reply.get("ismaster") for reply in replies):
            raise no_primary_error(servers, START_TIMEOUT)
        for server in servers:
            _check(deadline, server, "did not follow a primary")
        time.sleep(PAUSE)


def find_primary(servers: Iterable[Server]) -> Server | None:
    """Ask all members at once which one is the primary.

    Returns:
        The primary of the latest election, if one answers.
    """
    primaries = [(reply, server) for server, reply in _ask_all(servers) if reply.get("ismaster")]
    # A deposed one may not know it yet; election ids grow.
    return max(primaries, key=lambda found: _election_of(found[0]), default=(None, None))[1]


def find_secondaries(servers: Iterable[Server]) -> list[Server]:
    """Ask all members at once which ones are secondaries."""
    return [server for server, reply in _ask_all(servers) if reply.get("secondary")]


def no_primary_error(servers: Iterable[Server], timeout: float) -> NoPrimaryError:
    """Make an error that says what each member is instead.

    Args:
        servers: all members.
        timeout: how long a primary was waited for, in seconds.
    """
    states = ", ".join(f"{server.address} is {_state_of(server)}" for server in servers)
    return NoPrimaryError(f"no member became primary within {timeout:g} seconds: {states}")


def depose(primary: Server, seconds: float, *, alone: bool) -> None:
    """Make a primary step down, whether or not its secondaries have caught up in time.

    Args:
        primary: the primary.
        seconds: how long it must not become primary again; rounded up.
        alone: whether there is nobody who could catch up.

    Raises:
        CommandFailedError: it refused.
    """
    period = max(1, math.ceil(seconds))
    gentle = {"replSetStepDown": period, "secondaryCatchUpPeriodSecs": min(_CATCH_UP, period)}
    forced = {"replSetStepDown": period, "secondaryCatchUpPeriodSecs": 0, "force": True}
    with contextlib.suppress(ConnectionError):  # a server may answer by closing it
        if not alone:
            # Only an unforced one makes a secondary stand for election at once.
            try:
                primary.command(gentle, timeout=_CATCH_UP + _TIMEOUT)
            except CommandFailedError as exc:
                if exc.code != _NOBODY_CAUGHT_UP:
                    raise
            else:
                return
        primary.command(forced, timeout=_TIMEOUT)


def _ask_all(servers: Iterable[Server]) -> list[tuple[Server, dict[str, Any]]]:
    asked = [server for server in servers if server.state is MemberState.RUNNING]
    if len(asked) <= 1:
        replies = [server.ask(_HELLO) for server in asked]
    else:
        with ThreadPoolExecutor(len(asked)) as pool:
            replies = list(pool.map(lambda server: server.ask(_HELLO), asked))
    return [(server, reply) for server, reply in zip(asked, replies, strict=True) if reply]


def _state_of(server: Server) -> str:
    if server.state is not MemberState.RUNNING:
        return str(server.state.value)
    status = server.ask({"replSetGetStatus": 1})
    if status is None:
        return "silent"
    own = next(member for member in status["members"] if member.get("self"))
    return f"{own['stateStr']} with entries until term {own['optime']['t']}"


def _are_settled(replies: Sequence[Mapping[str, Any]], count: int) -> bool:
    primaries = [reply for reply in replies if reply.get("ismaster")]
    secondaries = [reply for reply in replies if reply.get("secondary")]
    terms = {reply.get("lastWrite", {}).get("opTime", {}).get("t") for reply in replies}
    return len(primaries) == 1 and len(secondaries) == count - 1 and len(terms) == 1


def _election_of(reply: Mapping[str, Any]) -> bytes:
    election = reply.get("electionId")
    return b"" if election is None else bytes(election.binary)


def _check(deadline: float, server: Server, what: str) -> None:
    server.require_process()
    if time.monotonic() > deadline:
        raise server.start_error(f"{what} within {START_TIMEOUT:.0f} seconds")
