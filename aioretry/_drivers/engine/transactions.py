"""What is in the air in a session of PyMongo's, and whether it belongs to a run that has ended."""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from aioretry._drivers.transaction_runs import Runs


def runs_of(session: Any) -> Runs | None:
    """Return the runs that PyMongo's session was kept apart by; None if it was not."""
    stamp = vars(session).get("_apply_to")
    return stamp.runs if isinstance(stamp, _Guarded) else None


def like(session: Any) -> Any:
    """Return another session of PyMongo's with the same options and times."""
    options = session.options
    new = session.client.start_session(
        causal_consistency=options.causal_consistency,
        default_transaction_options=options.default_transaction_options,
    )
    if session.cluster_time is not None:
        new.advance_cluster_time(session.cluster_time)
    if session.operation_time is not None:
        new.advance_operation_time(session.operation_time)
    return new


class Air:
    """The commands of a session that were made ready and not answered; lost ones stay in it.

    Args:
        before: What is in the air of a transaction that was taken from the session; whoever hears
            of it still has the session.
    """

    def __init__(self, before: "Air | None" = None) -> None:
        self._before = before
        self._lock = threading.Lock()
        # By the thread, the task or the attempt that hears the answer.
        self._connections: dict[object, list[Any]] = {}

    def add(self, connection: Any) -> None:
        """Note one that is about to be sent from here."""
        with self._lock:
            self._connections.setdefault(_here(), []).append(connection)

    def remove(self) -> None:
        """Note that the latest one from here was answered."""
        with self._lock:
            mine = self._connections.get(_here())
            if mine:
                mine.pop()
                return
        if self._before is not None:
            self._before.remove()

    @property
    def is_pending(self) -> bool:
        """Whether one waits for its answer, or is about to be sent."""
        return any(one.active and not one.closed for one in self._all())

    @property
    def has_lost(self) -> bool:
        """Whether the connection of one broke, or was closed since it could not be encoded."""
        return any(one.closed for one in self._all())

    def _all(self) -> list[Any]:
        with self._lock:
            return [one for each in self._connections.values() for one in each]


class _Guarded:
    """A method of a session, or of its transaction, that is for runs that have not ended."""

    def __init__(self, owner: Any, method: Callable[..., Any], runs: Runs) -> None:
        self.runs = runs
        self._owner = weakref.ref(owner)  # which has this one
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self.runs.sending():
            return self._method(self._owner(), *args, **kwargs)


class _Stamp(_Guarded):
    """What adds a session to a command."""

    def __call__(
        self, command: Any, is_retryable: bool, read_preference: Any, connection: Any
    ) -> None:
        # A connection that was opened while its server changed its state believes for good that
        # there are no sessions, and PyMongo would refuse every transaction over it. If the driver
        # has just lost the server, the server itself is to answer.
        session: Any = self._owner()
        servers = session.client.topology_description.server_descriptions()
        server = servers.get(connection.address)
        if (
            server is None
            or not server.is_server_type_known
            or server.logical_session_timeout_minutes is not None
        ):
            connection.supports_sessions = True
        super().__call__(command, is_retryable, read_preference, connection)
        session._air.add(connection)


def keep_apart(session: Any, runs: Runs, air: Air | None = None) -> None:
    """Have a session refuse what comes from runs that have ended, and know what is in the air.

    Args:
        session: PyMongo's session.
        runs: The runs of its transactions.
        air: What is in the air already.
    """
    # The places that everything passes: where it is forgotten how the last transaction has ended,
    # where a number is taken, and where a command gets its session. Threads decide long before
    # whether they are in a transaction.
    kind, transaction = type(session), session._transaction
    session._air = air or Air()
    session._process_response = _Hearing(session)
    session._apply_to = _Stamp(session, kind._apply_to, runs)
    session._start_retryable_write = _Guarded(session, kind._start_retryable_write, runs)
    transaction.reset = _Guarded(transaction, type(transaction).reset, runs)


class _Hearing:
    """What a session learns from a reply."""

    def __init__(self, session: Any) -> None:
        self._session = weakref.ref(session)  # which has this one

    def __call__(self, reply: Mapping[str, Any]) -> None:
        session: Any = self._session()
        session._air.remove()
        type(session)._process_response(session, reply)


@contextlib.contextmanager
def at(place: object) -> Iterator[None]:
    """Take what is sent or heard in the block for sent or heard there, and not by this task."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def _here() -> object:
    place = _place.get()
    if place is None:
        with contextlib.suppress(RuntimeError):  # a thread without a loop
            place = asyncio.current_task()
    return place or threading.get_ident()


_place: ContextVar[object] = ContextVar("aioretry_place", default=None)
