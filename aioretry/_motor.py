"""The driver's room: the only one that knows Motor's and PyMongo's client code."""

import asyncio
import contextlib
import contextvars
import logging
import math
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import bson
import pymongo
from bson.codec_options import CodecOptions
from bson.errors import InvalidDocument
from motor.core import AgnosticClientSession
from motor.motor_asyncio import (
    AsyncIOMotorClient,
    AsyncIOMotorClientSession,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
)
from pymongo import message
from pymongo.client_session import ClientSession, TransactionOptions  # type: ignore[attr-defined]
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    InvalidOperation,
    NotPrimaryError,
    PyMongoError,
)
from pymongo.lock import _create_lock
from pymongo.monitoring import CommandListener
from pymongo.server_description import ServerDescription
from pymongo.server_selectors import any_server_selector
from pymongo.server_type import SERVER_TYPE
from pymongo.topology_description import TOPOLOGY_TYPE, TopologyDescription

from aioretry import _pymongo_timeout
from aioretry._driver import (
    Address,
    AttemptCall,
    AttemptResult,
    Command,
    Ending,
    Limits,
    Numbering,
    ServerKind,
    ServerSession,
    ServerView,
    ThreadCounts,
    TopologyView,
)
from aioretry._encoded import EncodedDocuments, with_documents
from aioretry._threads import Job, ThreadPool
from aioretry._verdict import DEFAULT_MAX_ADAPTIVE_RETRIES, Policy
from aioretry.deadlines import Deadline
from aioretry.errors import Attempt

__all__ = [
    "AgnosticClientSession",
    "AsyncIOMotorClient",
    "AsyncIOMotorClientSession",
    "AsyncIOMotorCollection",
    "AsyncIOMotorDatabase",
    "ClientSession",
    "Collection",
    "Database",
    "MotorDriver",
    "TransactionOptions",
    "abandon_transaction",
    "add_requests",
    "backs_off",
    "copy_labels",
    "encode_documents",
    "encrypts",
    "policy",
    "surrounding_deadline",
    "timeout",
    "user_session",
    "wrap_reads",
]

ServerSelector = Callable[[Sequence[ServerDescription]], Sequence[ServerDescription]]

# In an OP_MSG: its header and flags, the section of an empty body, and what a section of documents
# that is called "_" begins with.
_BEFORE_DOCUMENTS = 16 + 4 + 6 + 7
_CLOSED = "Cannot use RetryClient after close"
_PROBE_AFTER = 0.1
_PROBE_EVERY = 0.5  # no server is looked at more often

_command_logger = logging.getLogger("pymongo.command")

_KINDS = {
    SERVER_TYPE.Standalone: ServerKind.STANDALONE,
    SERVER_TYPE.RSPrimary: ServerKind.PRIMARY,
    SERVER_TYPE.Mongos: ServerKind.MONGOS,
    SERVER_TYPE.LoadBalancer: ServerKind.LOAD_BALANCER,
}


def policy(delegate: pymongo.MongoClient[Any]) -> Policy:
    """Return what a client's options say about retries."""
    options: Any = delegate.options
    return Policy(
        retry_writes=options.retry_writes,
        # PyMongo has these two from 4.17 on.
        max_adaptive_retries=getattr(options, "max_adaptive_retries", DEFAULT_MAX_ADAPTIVE_RETRIES),
        overload_retargeting=getattr(options, "enable_overload_retargeting", False),
    )


def backs_off(delegate: pymongo.MongoClient[Any]) -> bool:
    """Tell whether PyMongo retries overload errors by itself, as it does from 4.17 on."""
    return hasattr(delegate.options, "max_adaptive_retries")


def wrap_reads(
    delegate: pymongo.MongoClient[Any], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Have a client make its reads by way of something else.

    Args:
        delegate: The client.
        wrap: Is given what makes one read, and returns what is called in its place.
    """
    client: Any = delegate
    client._retryable_read = wrap(client._retryable_read)


def encrypts(delegate: pymongo.MongoClient[Any]) -> bool:
    """Tell whether a client encrypts by itself what it sends (Client Side Encryption)."""
    encrypter: Any = delegate._encrypter
    return encrypter is not None and not encrypter._bypass_auto_encryption


def surrounding_deadline() -> Deadline | None:
    """Return the deadline of the surrounding ``pymongo.timeout()`` blocks, or None."""
    end = _pymongo_timeout.surrounding_end()
    return None if end is None else Deadline(end)


def timeout(delegate: pymongo.MongoClient[Any]) -> float | None:
    """Return a client's ``timeoutMS`` in seconds, infinite if it is 0; None if it was not given."""
    seconds = delegate.options.timeout
    return math.inf if seconds == 0 else seconds


class MotorDriver:
    """The driver's port over a Motor client's delegate."""

    def __init__(self, delegate: pymongo.MongoClient[Any], threads: int) -> None:
        self._delegate = delegate
        self._threads = ThreadPool(threads, "aioretry-attempt")
        self._prober = _Prober(delegate)
        options: Any = delegate.options
        self._selector: ServerSelector = options.server_selector
        self._latency_window: float = options.local_threshold_ms / 1000
        self._view = TopologyView({}, self._latency_window, source=None)
        self._closed = False
        listeners = options.event_listeners
        self._has_listeners = any(isinstance(one, CommandListener) for one in listeners)

    def view(self) -> TopologyView:
        """Return what is known of the deployment.

        Raises:
            InvalidOperation: The client was closed.
            ConfigurationError: A server is too old or too new for the driver.
        """
        if self._closed:
            raise InvalidOperation(_CLOSED)
        description = self._delegate.topology_description
        if description is not self._view.source or self._selector is not any_server_selector:
            description.check_compatible()
            self._view = self._view_of(description)
        return self._view

    def attempt(
        self,
        loop: asyncio.AbstractEventLoop,
        call: AttemptCall,
        deliver: Callable[[AttemptResult], None],
    ) -> None:
        """Make an attempt on a thread of our own."""
        if self._closed:
            raise InvalidOperation(_CLOSED)
        context = contextvars.copy_context()
        call.carrier = carrier = _Carrier(lambda: context.run(self._carry, loop, call, deliver))
        try:
            self._threads.submit(carrier)
        except RuntimeError:
            if self._closed:  # meanwhile, by another thread
                raise InvalidOperation(_CLOSED) from None
            raise

    def abandon(self, call: AttemptCall) -> bool:
        """Let another thread take the place of the one that carries an attempt, and end that."""
        carrier: _Carrier = call.carrier
        if not self._threads.abandon(carrier):
            return False
        carrier.end()
        return True

    def counts(self) -> ThreadCounts:
        """Return how the threads are doing."""
        return self._threads.counts()

    def start_probing(self) -> None:
        """Make the driver look for a server."""
        self._prober.start()

    def stop_probing(self) -> None:
        """Let the driver look as it likes."""
        self._prober.stop()

    def session(self) -> ServerSession:
        """Lease a server session from PyMongo's pool."""
        return _ImplicitSession(self._delegate)

    def add_label(self, error: BaseException, label: str) -> None:
        """Add a label to an error of PyMongo's."""
        if isinstance(error, PyMongoError):
            error._add_error_label(label)

    def close(self) -> None:
        """End the threads once what they carry has ended; wait for none."""
        self._closed = True
        self._prober.stop()
        self._threads.close()

    def _carry(
        self,
        loop: asyncio.AbstractEventLoop,
        call: AttemptCall,
        deliver: Callable[[AttemptResult], None],
    ) -> None:
        result = self._attempt(call)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, result)

    def _attempt(self, call: AttemptCall) -> AttemptResult:
        started, clock = time.time(), time.perf_counter()
        server: ServerView | None = None
        numbered = False
        reply: dict[str, Any] | None = None
        error: Exception | None = None
        try:
            server = self._choose(call)
            self._prepare(call, server)
            call.numbered = numbered = _is_numbered(call, server)
            call.server = server
            reply = self._send(call, server, numbered=numbered)
        except _NotSentError as exc:
            return AttemptResult(exc.ending, reason=exc.reason)
        except _AbandonedError as exc:
            error = exc.error
        except Exception as exc:  # noqa: BLE001 - the verdict is the coordinator's
            error = exc
        except BaseException as exc:  # noqa: BLE001 - of a listener or decoder of the user's
            error = RuntimeError(f"an attempt was ended by {exc!r}")
            error.__cause__ = exc
        duration = time.perf_counter() - clock
        sent = call.token.is_sending and not self._was_found_before(error)
        record = Attempt(call.address, started, duration, sent, error, reply)
        ending = Ending.REPLIED if error is None else Ending.FAILED
        return AttemptResult(ending, record, server, numbered)

    def _was_found_before(self, error: Exception | None) -> bool:
        """Tell whether what an error says is wrong was found before anything was sent."""
        if isinstance(error, InvalidOperation):
            # An encrypter that was closed meanwhile refuses to decrypt the reply by it.
            return self._delegate._encrypter is None
        return isinstance(error, _NEVER_SENT)

    def _choose(self, call: AttemptCall) -> ServerView:
        if call.token.is_revoked or (call.deadline is not None and call.deadline.is_over):
            raise _NotSentError(Ending.EXPIRED)
        if self._closed:  # the event loop will find out
            raise _NotSentError(Ending.NO_SERVER)
        server = call.choose(self.view())
        if server is None:
            raise _NotSentError(Ending.NO_SERVER)
        if call.numbering is Numbering.REQUIRED and not server.can_retry_writes:
            raise _NotSentError(Ending.INELIGIBLE)
        return server

    def _prepare(self, call: AttemptCall, server: ServerView) -> None:
        if call.command.prepare is None:
            return
        try:
            call.command.prepare(server.limits, encode_documents)
        except Exception as exc:
            raise _NotSentError(Ending.UNPREPARED, exc) from exc

    def _send(self, call: AttemptCall, view: ServerView, *, numbered: bool) -> dict[str, Any]:
        # What PyMongo's own write path does once a server is selected, less its retry loop: its
        # public `Database.command` retries by itself and can't be told which server to use.
        delegate, command = self._delegate, call.command
        server = delegate._get_topology().get_server_by_address(view.address)
        if server is None:
            raise _NotSentError(Ending.NO_SERVER)
        held = call.lease.carry()
        try:
            session = held.open(has_sessions=view.has_sessions)
            is_shown = command.is_part and self._is_watched
            body = with_documents(command.body) if is_shown else dict(command.body)
            if numbered:
                body["txnNumber"] = bson.Int64(call.number.take(held))
            # Not before: a second attempt must not prepare or number the command at the same time.
            call.is_waiting = True
            if view.address not in self.view().writable:  # the race may have seen that before
                raise _NotSentError(Ending.NO_SERVER)
            with _timeout(call.deadline, server), delegate._checkout(server, session) as connection:
                # A connection that was opened while its server changed its state believes for good
                # that there are no sessions, and PyMongo would then write without protection.
                connection.supports_sessions = connection.supports_sessions or view.has_sessions
                if _has_time(call.deadline, server):
                    reply = self._exchange(call, connection, body, session)
                    if reply is not None:
                        self._learn_of_concern(reply, view, connection)
                        return reply
            raise _NotSentError(Ending.EXPIRED)
        finally:
            call.lease.drop()

    def _exchange(
        self, call: AttemptCall, connection: Any, body: dict[str, Any], session: object
    ) -> dict[str, Any] | None:
        command, carrier = call.command, call.carrier
        carrier.begin(connection)
        try:
            if not call.token.begin_sending():
                return None
            with _admitting(connection, command):
                return connection.command(  # type: ignore[no-any-return]
                    command.database,
                    body,
                    codec_options=command.codec_options,
                    session=session,
                    client=self._delegate,
                    user_fields=command.user_fields,
                )
        except ConnectionFailure as exc:
            if carrier.is_abandoned:
                # It says nothing of a server that may be well by now; PyMongo must not learn of it.
                raise _AbandonedError(exc) from exc
            raise
        finally:
            carrier.finish()

    def _learn_of_concern(
        self, reply: Mapping[str, Any], view: ServerView, connection: Any
    ) -> None:
        # A server that is deposed while it waits for others says so in an answer that is none of
        # an error. What a router passes on is not about itself.
        concern = reply.get("writeConcernError")
        if not concern or view.kind is not ServerKind.PRIMARY:
            return
        details = {"code": concern.get("code"), "topologyVersion": reply.get("topologyVersion")}
        news: Any = _News(
            NotPrimaryError("a write concern error", details),
            connection.max_wire_version,
            connection.generation,
            completed_handshake=True,
            service_id=connection.service_id,
        )
        self._delegate._get_topology().handle_error(view.address, news)

    @property
    def _is_watched(self) -> bool:
        # By a listener, or by PyMongo's log, which at this level shows commands.
        return self._has_listeners or _command_logger.isEnabledFor(logging.DEBUG)

    def _view_of(self, description: TopologyDescription) -> TopologyView:
        servers = list(description.server_descriptions().values())
        if description.topology_type in {TOPOLOGY_TYPE.Single, TOPOLOGY_TYPE.LoadBalanced}:
            taking = [server for server in servers if server.is_server_type_known]
        else:
            taking = list(self._selector([server for server in servers if server.is_writable]))
        views = {server.address: self._server_view_of(server) for server in taking}
        return TopologyView(views, self._latency_window, source=description)

    def _server_view_of(self, server: ServerDescription) -> ServerView:
        version = server.topology_version
        kind = _KINDS.get(server.server_type, ServerKind.OTHER)
        timeout = server.logical_session_timeout_minutes
        return ServerView(
            address=server.address,
            kind=kind,
            max_wire_version=server.max_wire_version,
            # Nobody asks a load balancer; the servers behind it have sessions.
            has_sessions=timeout is not None or kind is ServerKind.LOAD_BALANCER,
            topology_version=None if not version else (version["processId"], version["counter"]),
            round_trip_time=server.round_trip_time or 0.0,
            limits=Limits(
                server.max_bson_size, server.max_message_size, server.max_write_batch_size
            ),
            operation_count=partial(self._operation_count, server.address),
            source=server,
            session_minutes=timeout,
        )

    def _operation_count(self, address: Address) -> int:
        server: Any = self._delegate._get_topology().get_server_by_address(address)
        return 0 if server is None else int(server.pool.operation_count)


class _Carrier(Job):
    """An attempt on its thread; it can be ended from another one while it waits for its answer."""

    __slots__ = ("_connection", "_guard")

    def __init__(self, run: Callable[[], object]) -> None:
        super().__init__(run)
        self._guard = threading.Lock()
        self._connection: Any = None

    def end(self) -> None:
        """Have the thread give up what it waits for."""
        with self._guard:
            connection = self._connection
            if connection is not None:
                connection.cancel_context.cancel()
                _hang_up(connection)

    def begin(self, connection: Any) -> None:
        """Allow that what is done over a connection is ended."""
        self._connection = connection

    def finish(self) -> None:
        """Allow it no longer; the connection may be somebody else's soon."""
        with self._guard:
            connection, self._connection = self._connection, None
        if connection.cancel_context.cancelled:
            connection.close_conn(None)


def _hang_up(connection: Any) -> None:
    # PyMongo looks at the context twice a second, and never while it sends.
    end = getattr(connection.conn, "sock", connection.conn)
    with contextlib.suppress(OSError, TypeError):  # it is closed; or none of the standard library's
        # Not an SSL socket's own, which takes the encryption from under whoever uses it.
        socket.socket.shutdown(end, socket.SHUT_RDWR)


class _News(NamedTuple):
    """What PyMongo's topology wants to know of an error."""

    error: Exception
    max_wire_version: int
    sock_generation: int
    completed_handshake: bool
    service_id: Any


class _AbandonedError(Exception):
    """An attempt that nobody waits for any more was ended; never leaves this module."""

    def __init__(self, error: ConnectionFailure) -> None:
        super().__init__(error)
        self.error = error


class _NotSentError(Exception):
    """Nothing was tried after all; never leaves this module."""

    def __init__(self, ending: Ending, reason: Exception | None = None) -> None:
        super().__init__(ending)
        self.ending = ending
        self.reason = reason


@contextlib.contextmanager
def _admitting(connection: Any, command: Command[Any]) -> Iterator[None]:
    # PyMongo's `command` takes the largest document for the largest command; a bulk operation has
    # looked at its documents one by one, and its commands may be as large as a message.
    if not command.is_part:
        yield
        return
    largest = connection.max_bson_size
    connection.max_bson_size = connection.max_message_size
    try:
        yield
    finally:
        connection.max_bson_size = largest


def _is_numbered(call: AttemptCall, server: ServerView) -> bool:
    return (
        call.numbering is not Numbering.NEVER
        and server.can_retry_writes
        and not call.command.holds_multi
    )


def encode_documents(
    documents: list[Mapping[str, Any]], codec_options: CodecOptions[Any]
) -> EncodedDocuments:
    """Encode documents as PyMongo does, each with its ``_id`` first."""
    # Public encoding takes one document a call, which costs more than a small document does.
    _, sent, _, largest = message._op_msg_uncompressed(0, {}, "_", documents, codec_options)
    return EncodedDocuments(sent[_BEFORE_DOCUMENTS:], len(documents), largest)


def add_requests(requests: Iterable[Any], bulk: object) -> None:
    """Have the requests of a ``bulk_write`` add themselves to a bulk operation.

    Raises:
        TypeError: One is no request.
    """
    for request in requests:
        try:
            request._add_to_bulk(bulk)
        except AttributeError:
            raise TypeError(f"{request!r} is not a valid request") from None


def user_session(delegate: pymongo.MongoClient[Any], session: object) -> ServerSession:
    """Return a session that the user started, for the ``lsid`` and the counter that it has.

    Raises:
        TypeError: It is not a session.
        InvalidOperation: It is another client's session.
    """
    own = session.delegate if isinstance(session, AsyncIOMotorClientSession) else session
    if not isinstance(own, ClientSession):
        raise TypeError(
            "session must be what `await client.start_session()` returned, "
            f"not {type(session).__name__}"
        )
    if own.client is not delegate:
        raise InvalidOperation("Can only use session with the MongoClient that started it")
    return _UserSession(own)


def copy_labels(source: BaseException, target: PyMongoError) -> None:
    """Give an error of PyMongo's the labels of another one."""
    if isinstance(source, PyMongoError):
        for label in source._error_labels:
            target._add_error_label(label)


def abandon_transaction(session: AsyncIOMotorClientSession, timeout: float) -> Callable[[], None]:
    """Take a session's transaction away from it, and from whoever still writes in it.

    A cancelled operation goes on in its thread. Once PyMongo's session says that the transaction is
    aborted, such an operation is sent *outside* of it, and applied. So this one never says so: the
    user's session goes on with another one, and the old one is closed for good.

    Args:
        session: The user's session, with a transaction in progress.
        timeout: How long the abort may take, in seconds.

    Returns:
        What aborts the transaction; it blocks, and raises nothing.
    """
    old: Any = session.delegate
    options = old.options
    new = old.client.start_session(
        causal_consistency=options.causal_consistency,
        default_transaction_options=options.default_transaction_options,
    )
    if old.cluster_time is not None:
        new.advance_cluster_time(old.cluster_time)
    if old.operation_time is not None:
        new.advance_operation_time(old.operation_time)
    session.delegate = new

    def abort() -> None:
        with contextlib.suppress(PyMongoError), _pymongo_timeout.fresh(timeout):
            if not old._starting_transaction:
                old._finish_transaction_with_retry("abortTransaction")
        # Dropped, not pooled: what is on its way may still reach the server under its id.
        old._server_session = None
        old._unpin()

    return abort


class _UserSession:
    """A session that the user started: its ``lsid`` and its counter, and nothing is given back."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def next_number(self) -> int:
        """Take the next transaction number of the user's session."""
        return _next_number(self._session)

    def latest_number(self) -> int:
        """Return the one that was taken last."""
        return int(_server_session(self._session).transaction_id)

    def open(self, *, has_sessions: bool) -> ClientSession:
        """Return the user's session, so that its times advance."""
        del has_sessions  # PyMongo says what is wrong
        if self._session.in_transaction:
            # PyMongo would make the write a part of it, where a retry is executed twice.
            raise InvalidOperation(
                "a transaction was started on the session before this write over it was sent"
            )
        return self._session

    def close(self, *, discard: bool) -> None:
        """Leave it to the user; when it is ended later, it is pooled only if it is not in doubt."""
        if discard:
            with contextlib.suppress(InvalidOperation):  # the user has ended it
                _server_session(self._session).mark_dirty()


class _ImplicitSession:
    """A session from PyMongo's pool."""

    def __init__(self, delegate: pymongo.MongoClient[Any]) -> None:
        self._delegate = delegate
        self._first = delegate.start_session(causal_consistency=False)
        self._server_session: Any = None

    def next_number(self) -> int:
        return _next_number(self._first)

    def latest_number(self) -> int:
        return int(self._server_session.transaction_id)

    def open(self, *, has_sessions: bool) -> ClientSession | None:
        if not has_sessions:
            return None
        # ClientSession objects are not thread-safe, and an attempt that was left behind still has
        # its own: every further one gets another object over the same server session.
        if self._server_session is None:
            self._server_session = _server_session(self._first)
            return self._first
        sibling: Any = self._delegate.start_session(causal_consistency=False)
        sibling._server_session = self._server_session
        return sibling  # type: ignore[no-any-return]

    def close(self, *, discard: bool) -> None:
        if discard and self._server_session is not None:
            # Not pooled, but kept: the command may be sent once more.
            self._server_session.mark_dirty()
            return
        with contextlib.suppress(InvalidOperation):  # the client was closed
            self._first.end_session()


class _Prober:
    """One thread that keeps PyMongo looking for a server while somebody waits for one.

    PyMongo looks at a sleeping server every ``heartbeatFrequencyMS`` unless somebody sits in its
    server selection, which is what this thread does. It sends nothing that a listener would see.
    """

    def __init__(self, delegate: pymongo.MongoClient[Any]) -> None:
        self._delegate = weakref.ref(delegate)
        self._wanted = threading.Event()
        self._unwanted = threading.Event()
        # Guards the thread's beginning and end; whole again in a forked child.
        self._lock = _create_lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._lock:
            self._wanted.set()
            self._unwanted.clear()
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="aioretry-prober", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        self._wanted.clear()
        self._unwanted.set()

    def _run(self) -> None:
        while self._goes_on():
            delegate = self._delegate()
            if delegate is None:
                return
            # Whatever fails here, the writes that wait tell their callers in the end.
            with contextlib.suppress(Exception):
                topology: Any = delegate._get_topology()
                # Whoever connects for the first time is spared the hurry.
                if not self._unwanted.wait(_PROBE_AFTER):
                    topology.request_check_all(_PROBE_EVERY)

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._wanted.is_set():
                self._thread = None
                return False
            return True


def _has_time(deadline: Deadline | None, server: Any) -> bool:
    # PyMongo refuses by itself to send what can't be answered in time, but its error does not tell
    # that nothing was sent.
    if deadline is None or not deadline.is_limited:
        return True
    round_trip_time: float = server.description.min_round_trip_time
    return deadline.remaining() > round_trip_time


def _timeout(deadline: Deadline | None, server: Any) -> contextlib.AbstractContextManager[object]:
    if deadline is None or not deadline.is_limited:
        return _UNLIMITED
    return _pymongo_timeout.limited(deadline.remaining(), server.description.min_round_trip_time)


_UNLIMITED = contextlib.nullcontext()


def _server_session(session: ClientSession) -> Any:
    session.session_id  # noqa: B018 - takes one from the pool if there is none yet
    server_session: Any = session
    return server_session._server_session


def _next_number(session: ClientSession) -> int:
    with _numbers:  # a user may share a session between tasks
        server_session = _server_session(session)
        server_session.inc_transaction_id()
        return int(server_session.transaction_id)


_numbers = _create_lock()  # whole again in a forked child

# What these say is wrong was found before sending: in encoding, also if the command is too large
# for the server, or in what the client was given.
_NEVER_SENT = (InvalidDocument, ConfigurationError)
