"""Servers that have fallen silent, found out by asking them while somebody waits for them."""

import logging
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from pymongo.errors import AutoReconnect, NetworkTimeout

from aioretry._drivers.engine import private_names
from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.connection import spared_by_loops
from aioretry._drivers.engine.steps import News
from aioretry._drivers.engine.views import pools_of
from aioretry._drivers.port import Address

LOOK_EVERY = 0.25
_ASK_EVERY = 1.0
# Nobody gains anything by waiting for one that the others have deposed.
_DOUBT_UNKNOWN_AFTER = 1.0
# A busy server took up to 1.6 seconds to accept a connection and greet.
_TO_CONNECT = 2.0
# If as much time as that has passed between two looks, nobody was there to hear an answer.
_LATE = 3 * LOOK_EVERY
# For so long after the last use it is worth to go on looking.
_LINGER = 5.0

_NEVER = float("-inf")

_logger = logging.getLogger("aioretry")


class Use(NamedTuple):
    """What is in use of a server at one moment."""

    contexts: frozenset[Any]
    """One for each connection, as PyMongo cancels them."""

    is_known: bool
    """Whether its state is known; it is not once the others have deposed it."""

    heard: float = _NEVER
    """When something was answered last, in seconds."""


class Silence:
    """Decides whom to ask, and who is silent. Pure: the clock and the looks are the caller's.

    Silent is who does not answer a question over a connection of its own for so long, while
    somebody waits for it, and nobody who waits gets an answer. A slow command is no silence, nor is
    a lost question.

    Args:
        limit: How long a server may be silent, in seconds.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._servers: dict[Address, _Server] = {}
        self._looked = 0.0

    def look(
        self, now: float, in_use: Mapping[Address, Use], slack: float = 0.0
    ) -> tuple[list[Address], list[Address]]:
        """Return who is to be asked, and who is silent.

        Args:
            now: The time, in seconds.
            in_use: The servers of which something is in use.
            slack: How much longer a question takes because of whoever asks, in seconds.
        """
        was_away, self._looked = now - self._looked > _LATE, now
        to_ask, silent = [], []
        for address in self._servers.keys() - in_use.keys():
            self._servers[address].note(now, frozenset(), was_away=was_away)
        for address, use in in_use.items():
            server = self._servers.get(address)
            if server is None:
                self._servers[address] = server = _Server()
            server.note(now, use.contexts, was_away=was_away)
            server.lively = max(server.lively, use.heard)
            if server.asked is None:
                if now - server.answered >= _ASK_EVERY:
                    server.asked, server.is_being_asked = now, True
                    to_ask.append(address)
                continue
            if not server.is_being_asked:
                server.is_being_asked = True
                to_ask.append(address)
            limit = self._limit if use.is_known else min(self._limit, _DOUBT_UNKNOWN_AFTER)
            patience = limit if server.is_connected else limit + _TO_CONNECT
            if now - server.alive_at() >= patience + slack:
                silent.append(address)
                server.asked = None
        return to_ask, silent

    def unanswered(self, address: Address) -> None:
        """Take note that a question has taken as long as it may: it is asked anew.

        Args:
            address: Who was asked.
        """
        server = self._servers.get(address)
        if server is not None:
            server.is_being_asked = False

    def answered(self, address: Address, now: float, *, is_well: bool) -> None:
        """Take note of the end of a question.

        Args:
            address: Who was asked.
            now: The time.
            is_well: Whether there was an answer; an error is none, and no silence either.
        """
        server = self._servers.get(address)
        if server is not None:
            server.asked, server.answered = None, now
            server.is_connected = is_well


class _Server:
    """What was heard of a server."""

    __slots__ = ("answered", "asked", "is_being_asked", "is_connected", "lively", "since")

    def __init__(self) -> None:
        self.asked: float | None = None
        """When, if there was no answer yet, however often it was asked since."""

        self.is_being_asked = False
        self.answered = _NEVER
        self.lively = _NEVER
        self.is_connected = False
        self.since: dict[Any, float] = {}
        """The connections in use, and when they were seen first."""

    def note(self, now: float, contexts: frozenset[Any], *, was_away: bool) -> None:
        if was_away:
            self.lively = now
        # What was looked at twice, and was not closed, has got its answer.
        for context in self.since.keys() - contexts:
            seen = self.since.pop(context)
            if now - seen > LOOK_EVERY and not context.cancelled:
                self.lively = now
        for context in contexts - self.since.keys():
            self.since[context] = now

    def alive_at(self) -> float:
        """Return when it was known to be alive, or nobody knew otherwise."""
        return self.lively if self.asked is None else max(self.asked, self.lively)


class Uses:
    """Tells a client's watch when one of its connections is used."""

    def __init__(self) -> None:
        # Weakly: the pools have it, which PyMongo's monitors have for as long as the client lives.
        self._watch: weakref.ref[ServerWatch] | None = None

    def be_told_to(self, watch: "ServerWatch") -> None:
        """Have a watch told, as long as its client has it."""
        self._watch = weakref.ref(watch)

    def note(self) -> None:
        """Have somebody look."""
        watch = None if self._watch is None else self._watch()
        if watch is not None:
            watch.note()


def given_up(address: Address) -> AutoReconnect:
    """Return the error of who was to open a connection to a server that is lost."""
    host, port = address
    return AutoReconnect(f"{host}:{port}: the server was lost while a connection to it was opened")


class ServerWatch(ABC):
    """Asks servers while somebody waits for them, and frees whoever waits for one that is silent.

    Whatever carries what waits: a read or a cursor of the driver's own on any thread or task, or an
    attempt. Only what the event loop itself sends is not interrupted here: it is looked after by
    :mod:`aioretry._retry.pending`, which sees that the server is lost.

    Args:
        calls: The client.
        limit: How long a server may be silent, in seconds.
    """

    def __init__(self, calls: ClientCalls, limit: float) -> None:
        self._calls = calls
        self._limit = limit
        self._silence = Silence(limit)
        self._pools: dict[Address, Any] = {}
        """A connection to each server that questions go over, while somebody waits."""

        self._is_noted = False
        self._slack = 0.0
        self._used = 0.0
        self._is_possible: bool | None = None

    def note(self) -> None:
        """Look, from now on until nothing is in use any more; called on any thread."""
        self._is_noted = True
        if not self._is_looking():
            self._begin()

    @abstractmethod
    def close(self) -> None:
        """Look no more."""

    @abstractmethod
    def _is_looking(self) -> bool:
        """Tell whether somebody looks."""

    @abstractmethod
    def _begin(self) -> None:
        """Have somebody look every so often."""

    @abstractmethod
    def _ask(self, address: Address, pool: Any) -> None:
        """Ask a server, and have :meth:`_told` called."""

    @abstractmethod
    def _cut(self, connection: Any) -> None:
        """Break a connection that somebody else waits for."""

    @abstractmethod
    def _close(self, pool: Any) -> None:
        """Close a pool of this watch's own, and whatever is under way in it."""

    def _look(self) -> bool:
        """Look once; return whether it is worth to go on."""
        now = time.monotonic()
        in_use = self._in_use()
        if in_use or self._is_noted:
            self._is_noted = False
            self._used = now
        to_ask, silent = self._silence.look(now, in_use, self._slack)
        for address in to_ask:
            self._ask(address, self._pool_of(address))
        for address in silent:
            self._free(address)
        return now - self._used < _LINGER

    def _in_use(self) -> dict[Address, Use]:
        delegate = self._calls.delegate
        if delegate.options.load_balanced:  # behind whose address there are many
            return {}
        if self._is_possible is None:
            self._is_possible = self._has_names()
        if not self._is_possible:
            return {}
        known = delegate.topology_description.server_descriptions()
        in_use = {}
        for address, pool in pools_of(delegate):
            with self._calls.locked(pool):
                contexts = frozenset(
                    context for context in pool.active_contexts if hasattr(context, "cancelled")
                )
                # What was given back had got its answer.
                heard = max(
                    *(one.last_checkin_time for one in getattr(pool, "opened", pool.conns)),
                    *(getattr(one, "heard", _NEVER) for one in pool.active_contexts),
                    *(_NEVER, _NEVER),
                )
            if contexts:
                description = known.get(address)
                is_known = description is not None and description.is_server_type_known
                in_use[address] = Use(contexts, is_known, heard)
        return in_use

    def _has_names(self) -> bool | None:
        """Tell whether this PyMongo's objects have what is used of them, once there are any."""
        for _, pool in pools_of(self._calls.delegate):
            topology = self._calls.topology()
            names = (pool, private_names.OF_POOL), (topology, private_names.OF_TOPOLOGY)
            return not private_names.missing(names)
        return None

    def _pool_of(self, address: Address) -> Any:
        if address not in self._pools:
            # As a monitor's: without credentials, and nobody is told of it.
            self._pools[address] = self._calls.topology()._create_pool_for_monitor(address)
        return self._pools[address]

    def _told(self, address: Address, error: BaseException | None) -> None:
        if isinstance(error, NetworkTimeout):  # by connectTimeoutMS, which may be less than ours
            self._silence.unanswered(address)
        else:
            self._silence.answered(address, time.monotonic(), is_well=error is None)

    def _free(self, address: Address) -> None:
        server = self._calls.topology().get_server_by_address(address)
        if server is None:
            return
        host, port = address
        text = f"{host}:{port}: the server is silent, and was for {self._limit:.1f} seconds"
        pool = server.pool
        with self._calls.locked(pool):
            contexts = {*pool.active_contexts}
            opened = [*getattr(pool, "opened", ())]
        _logger.warning("%s; %d connections are freed", text, len(contexts))
        news: Any = News(
            AutoReconnect(text),
            server.description.max_wire_version,
            pool.gen.get_overall(),
            completed_handshake=True,
            service_id=None,
        )
        # Nobody takes it again before it has answered its monitor.
        self._calls.handle_error(address, news)
        spared = spared_by_loops(contexts)
        for connection in opened:
            if connection.cancel_context in contexts:
                contexts.discard(connection.cancel_context)
                if connection not in spared:
                    self._cut(connection)
        for context in contexts:
            if hasattr(context, "cancelled"):  # it is being opened
                context.cancel()
        self._end_questions(address)

    def _end_questions(self, address: Address) -> None:
        pool = self._pools.pop(address, None)
        if pool is not None:
            self._close(pool)

    def _end(self) -> None:
        """Leave nothing open."""
        for address in [*self._pools]:
            self._end_questions(address)
