"""What is in the air in a session of PyMongo's, and whether it belongs to a run that has ended."""

import asyncio
import contextlib
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from pymongo.client_session import TransactionOptions as OwnOptions  # type: ignore[attr-defined]
from pymongo.errors import InvalidOperation
from pymongo.read_preferences import ReadPreference

from aioretry._commands.error_codes import OVERLOADED
from aioretry._drivers.port import TransactionOptions
from aioretry._drivers.transaction_runs import Runs
from aioretry.errors import ClientDraining, refusal


def like(session: Any) -> Any:
    """Return another session of PyMongo's with the same options and times."""
    options = session.options
    new = session.client.start_session(
        causal_consistency=options.causal_consistency,
        default_transaction_options=options.default_transaction_options,
    )
    tell_times(session, new)
    return new


def tell_times(source: Any, target: Any) -> None:
    """Have a session of PyMongo's know what another one has seen."""
    if source.cluster_time is not None:
        target.advance_cluster_time(source.cluster_time)
    if source.operation_time is not None:
        target.advance_operation_time(source.operation_time)


class Air:
    """The commands of a session that were made ready and not answered; lost ones stay in it.

    Args:
        before: What is in the air of a transaction that was taken from the session; whoever hears
            of it still has the session.
    """

    def __init__(self, before: "Air | None" = None) -> None:
        # A session may live for long, and lose many transactions.
        while before is not None and all(one.closed for one in before._all()):
            before = before._before
        self._before: Air | None = before
        self._lock = threading.Lock()
        # By the thread, the task or the attempt that hears the answer.
        self._commands: dict[object, list[tuple[Any, bool]]] = {}

    def add(self, connection: Any, place: object = None, *, begins: bool = False) -> None:
        """Note one that is about to be sent.

        Args:
            connection: What it is sent over.
            place: Who sends it; None if it is this task or thread.
            begins: Whether it begins a transaction.
        """
        here = place or _here()
        with self._lock:
            self._commands.setdefault(here, []).append((connection, begins))

    def remove(self, place: object = None) -> bool:
        """Note that the latest one of somebody's was answered.

        Args:
            place: Who has sent it; None if it is this task or thread.

        Returns:
            Whether that was to begin the session's transaction.
        """
        here, air = place or _here(), self._before
        begins = self._take(here)
        if begins is not None:
            return begins
        while air is not None and air._take(here) is None:
            air = air._before
        return False

    def _take(self, here: object) -> bool | None:
        """Take the latest one of somebody's; return whether it begins, or None if there is none."""
        with self._lock:
            mine = self._commands.get(here)
            if not mine:
                return None
            _, begins = mine.pop()
            if not mine:  # a session may live for long
                del self._commands[here]
            return begins

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
            return [connection for each in self._commands.values() for connection, _ in each]


class _Guarded:
    """A method of a session, or of its transaction, that is for runs that have not ended."""

    def __init__(self, owner: Any, method: Callable[..., Any], runs: Runs) -> None:
        self.runs = runs
        self._owner = weakref.ref(owner)  # which has this one
        self._method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.runs.make_ready(self._method, self._owner(), *args, **kwargs)


class _Beginning(_Guarded):
    """A method by which the last transaction is forgotten, or the number of something else taken.

    An answer to a commit in doubt can't be had any more once a later number was used.
    """

    def __init__(self, session: Any, owner: Any, method: Callable[..., Any], runs: Runs) -> None:
        super().__init__(owner, method, runs)
        self._session = weakref.ref(session)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session: Any = self._session()
        if session is not None and session._is_spent:
            session._is_spent = False
            if session._server_session is not None:
                session._server_session = like(session)._server_session
        result = super().__call__(*args, **kwargs)
        if session is not None:
            session._transaction.router = None
        return result


class _Stamp(_Guarded):
    """What adds a session to a command."""

    def __call__(
        self,
        command: Any,
        is_retryable: bool,
        read_preference: Any,
        connection: Any,
        place: object = None,
    ) -> None:
        # A connection that was opened while its server changed its state believes for good that
        # there are no sessions, and PyMongo would refuse every transaction over it. If the driver
        # has just lost the server, the server itself is to answer.
        session: Any = self._owner()
        if session._is_gone:
            raise refusal(ClientDraining("the client was drained, and the transaction aborted"))
        if not connection.supports_sessions:
            servers = session.client.topology_description.server_descriptions()
            server = servers.get(connection.address)
            connection.supports_sessions = (
                server is None
                or not server.is_server_type_known
                or server.logical_session_timeout_minutes is not None
            )
        super().__call__(command, is_retryable, read_preference, connection)
        session._air.add(connection, place, begins="startTransaction" in command)
        if "autocommit" in command:  # else it would be kept for as long as the session is
            session._latest = command


class _Numbered:
    """What adds a session to a command, with the number of one transaction."""

    def __init__(self, session: Any, number: object) -> None:
        self._session = weakref.ref(session)
        self._apply_to = type(session)._apply_to
        self._number = number

    def __call__(self, command: Any, *args: Any) -> None:
        self._apply_to(self._session(), command, *args)
        if "txnNumber" in command:
            command["txnNumber"] = self._number


def _going_on(apply_to: Callable[..., None]) -> Callable[..., None]:
    """Return PyMongo's way to add a session to a command, and a short one in transactions.

    All that come after the first statement of one get the same three fields.
    """

    def add(
        session: Any, command: Any, is_retryable: bool, preference: Any, connection: Any
    ) -> None:
        server_session = session._server_session
        goes_on = session.in_transaction and not session._starting_transaction
        is_usual = preference is ReadPreference.PRIMARY and not is_retryable
        is_usual &= connection.supports_sessions  # or PyMongo refuses it
        if not goes_on or not is_usual or server_session is None:
            apply_to(session, command, is_retryable, preference, connection)
            return
        server_session.last_use = time.monotonic()
        command["lsid"] = server_session.session_id
        command["txnNumber"] = server_session.transaction_id
        command["autocommit"] = False

    return add


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
    session._is_spent = session._is_gone = False
    session._latest = {}
    session._process_response = _Hearing(session)
    session._apply_to = _Stamp(session, _going_on(kind._apply_to), runs)
    take_number = kind._start_retryable_write
    session._start_retryable_write = _Beginning(session, session, take_number, runs)
    transaction.reset = _Beginning(session, transaction, type(transaction).reset, runs)


def router_of(transaction: Any) -> Any:
    """Return the router that a transaction of PyMongo's was pinned to first; or None.

    What was sent in it to another one after that has found nothing there.
    """
    return getattr(transaction, "router", None) or transaction.pinned_address


def twin(session: Any) -> Any:
    """Return a session of PyMongo's that has another one's server session and transaction.

    What becomes of the transaction in either is nothing to the other. What is sent in it has the
    number of that transaction, whoever may have taken another one of the server session since.
    """
    new, own = session.client.start_session(causal_consistency=False), session._transaction
    new._server_session = session._server_session
    new._cluster_time = session.cluster_time
    new._transaction = copied = type(own)(own.opts, session.client)
    copied.sharded, copied.pinned_address = own.sharded, own.pinned_address
    copied.recovery_token = own.recovery_token
    copied.router = router_of(own)
    copied.state = own.state
    number = getattr(new._server_session, "transaction_id", None)
    if number is not None:
        new._apply_to = _Numbered(new, number)
    return new


class EngineSessionCalls(ABC):
    """What is asked of the sessions that users start, to run transactions in them."""

    states: Any
    """PyMongo's names for the states of a transaction."""

    @abstractmethod
    def own(self, session: Any) -> Any:
        """Return PyMongo's session that one of the user's is about; or that itself."""

    def runs_of(self, session: Any) -> Runs:
        """Return the runs of a session's transactions, which whatever is sent in it belongs to."""
        own = self.own(session)
        stamp = vars(own).get("_apply_to")
        if not isinstance(stamp, _Stamp):
            keep_apart(own, Runs())
        runs: Runs = own._apply_to.runs
        return runs

    def has_pending(self, session: Any) -> bool:
        """Tell whether a command of it is under way."""
        return bool(self.own(session)._air.is_pending)

    def latest(self, session: Any) -> Mapping[str, Any]:
        """Return the command of transactions that was made ready last in a session; {} if none."""
        latest: Mapping[str, Any] = self.own(session)._latest
        return latest

    def may_arrive(self, session: Any) -> bool:
        """Tell whether a command of it is under way, or was lost."""
        air = self.own(session)._air
        return bool(air.is_pending or air.has_lost)

    def has_begun_transaction(self, session: Any) -> bool:
        """Tell whether a transaction is in progress of which the server may know."""
        own = self.own(session)
        return bool(own.in_transaction and not own._starting_transaction)

    def transaction_options(self, session: Any) -> TransactionOptions:
        """Return what is to be known of a session's transaction."""
        transaction = self.own(session)._transaction
        options = transaction.opts
        return TransactionOptions(
            options.read_preference,
            options.write_concern,
            options.max_commit_time_ms,
            transaction.recovery_token,
            router_of(transaction),
        )

    def begin_commit(self, session: Any) -> Any:
        """Have a session commit from now on; return the transaction, or None if that is empty.

        Raises:
            InvalidOperation: There is no transaction, or it was aborted, or the session was ended.
        """
        own = self.own(session)
        own._check_ended()
        transaction = own._transaction
        match transaction.state:
            case self.states.NONE:
                raise InvalidOperation("No transaction started")
            case self.states.ABORTED:
                raise InvalidOperation(
                    "Cannot call commitTransaction after calling abortTransaction"
                )
            case self.states.STARTING | self.states.COMMITTED_EMPTY:
                transaction.state = self.states.COMMITTED_EMPTY
                return None
            case _:
                transaction.state = self.states.IN_PROGRESS
                return transaction

    def begin_abort(self, session: Any) -> Any:
        """Have a session abort from now on; returns and raises as :meth:`begin_commit`."""
        own = self.own(session)
        own._check_ended()
        transaction = own._transaction
        match transaction.state:
            case self.states.NONE:
                raise InvalidOperation("No transaction started")
            case self.states.ABORTED:
                raise InvalidOperation("Cannot call abortTransaction twice")
            case self.states.COMMITTED | self.states.COMMITTED_EMPTY:
                raise InvalidOperation(
                    "Cannot call abortTransaction after calling commitTransaction"
                )
            case self.states.STARTING:
                transaction.state = self.states.ABORTED
                return None
            case _:
                return transaction

    def keep_open(self, session: Any) -> None:
        """Have a session whose transaction is gone be in one, of which nothing is sent.

        Whoever still writes in it, be it by the driver's own commands, would do so outside of a
        transaction.
        """
        own = self.own(session)
        own._is_gone = True
        transaction = own._transaction
        transaction.state = self.states.IN_PROGRESS
        transaction.opts = transaction.opts or OwnOptions()

    def end_commit(self, transaction: Any, *, unpin: bool) -> None:
        """Have a transaction be in progress no more, because it was committed, or may be."""
        transaction.state = self.states.COMMITTED
        if unpin:
            transaction.pinned_address = None

    def end_abort(self, transaction: Any) -> None:
        """Have a transaction be in progress no more, because it was aborted, or may be."""
        transaction.state = self.states.ABORTED
        transaction.pinned_address = None


class _Hearing:
    """What a session learns from a reply."""

    def __init__(self, session: Any) -> None:
        self._session = weakref.ref(session)  # which has this one

    def __call__(self, reply: Mapping[str, Any], place: object = None) -> None:
        session: Any = self._session()
        begins = session._air.remove(place)
        transaction = session._transaction
        if reply.get("ok"):
            transaction.has_completed_command = True
        elif begins and OVERLOADED in reply.get("errorLabels", ()) and transaction.active():
            transaction.set_starting()  # it was refused, and goes once more
        type(session)._process_response(session, reply)


def _here() -> object:
    task = None
    with contextlib.suppress(RuntimeError):  # a thread without a loop
        task = asyncio.current_task()
    return task or threading.get_ident()
