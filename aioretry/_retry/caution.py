"""One line of log for the first write that can't be retried."""

import logging
from typing import Final

from aioretry._commands.look_alikes import look_alike_of
from aioretry._drivers.port import Address, ServerKind, ServerView
from aioretry.events import name_of

_logger = logging.getLogger("aioretry")

_ONCE: Final = "each is sent once, and where its answer is lost its outcome stays unknown"
_UNABLE: Final = {
    ServerKind.STANDALONE: (
        "is a standalone server",
        (
            "Run it as a replica set, if need be of one member; if it is not MongoDB (FerretDB), "
            "have retryWrites=false."
        ),
    ),
    ServerKind.OTHER: (
        "is no primary and no router",
        "Leave directConnection out, or connect to a server that takes writes.",
    ),
}
_TOO_OLD: Final = ("has no sessions", "Use MongoDB 4.2 or newer.")
_WITHOUT_OPTION: Final = "Leave the option out, if this is MongoDB."  # not all others are known


class Caution:
    """Says once, at WARNING, why writes can't be retried. Of one client.

    Args:
        retry_writes: Whether the client's options let it.
    """

    def __init__(self, *, retry_writes: bool) -> None:
        self._retry_writes = retry_writes
        self._seen: dict[Address, object] = {}
        self._is_over = False

    def look(self, server: ServerView) -> None:
        """Look at a server that has got a write which could be retried elsewhere."""
        if self._is_over or self._seen.get(server.address) is server.source:
            return
        self._seen[server.address] = server.source  # routers are written to in turn
        found = why_not(server, retry_writes=self._retry_writes)
        if found is not None:
            self._is_over, self._seen = True, {}
            _logger.warning("writes can't be retried: %s; %s. %s", *found)


def why_not(server: ServerView, *, retry_writes: bool) -> tuple[str, str, str] | None:
    """Say why writes can't be retried on a server.

    Args:
        server: The server.
        retry_writes: Whether the client's options let it.

    Returns:
        Why, what that means, and what to do; None if they can, for all that is known.
    """
    hosts = {host for host, _ in (server.address, *server.hosts)}
    look_alike = look_alike_of(hosts, server.max_wire_version)
    if not retry_writes:
        advice = _WITHOUT_OPTION if look_alike is None else look_alike.advice
        return "the client has retryWrites=false", _ONCE, advice
    name = name_of(server.address)
    if not server.can_retry_writes:
        what, advice = _UNABLE.get(server.kind, _TOO_OLD)
        return f"{name} {what}", _ONCE, advice
    if look_alike is not None and not look_alike.may_retry:
        return f"{name} is {look_alike.name}", look_alike.retries, look_alike.advice
    return None
