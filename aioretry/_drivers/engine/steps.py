"""What an attempt is, whoever makes it: its command, its server, and what came of it."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import bson
from bson.errors import InvalidDocument
from pymongo.errors import ConfigurationError, InvalidOperation, NotPrimaryError
from pymongo.read_preferences import PrimaryPreferred

from aioretry import deadlines
from aioretry._commands.encoded import shown
from aioretry._drivers.engine.calls import ClientCalls
from aioretry._drivers.engine.listening import Listening
from aioretry._drivers.engine.messages import encode_documents
from aioretry._drivers.engine.private_names import OP_ID
from aioretry._drivers.engine.views import Views
from aioretry._drivers.port import (
    AttemptCall,
    Expired,
    Failed,
    NoServer,
    NotTried,
    Sending,
    ServerKind,
    ServerSession,
    ServerView,
    Unprepared,
)
from aioretry.deadlines import Deadline

# What these say is wrong was found before sending: in encoding, also if the command is too large
# for the server, or in what the client was given.
_NEVER_SENT = (InvalidDocument, ConfigurationError)

_command_logger = logging.getLogger("pymongo.command")
_connection_logger = logging.getLogger("pymongo.connection")

_UNLIMITED = nullcontext()


class NotSentError(Exception):
    """Nothing was tried after all; never leaves the driver's room."""

    def __init__(self, result: NotTried) -> None:
        super().__init__(result)
        self.result = result


class Steps:
    """What all attempts of a client have in common.

    Args:
        calls: The client.
        views: What is known of the deployment.
        listeners_may_block: Whether command listeners are not to be called on the event loop.
    """

    def __init__(self, calls: ClientCalls, views: Views, *, listeners_may_block: bool) -> None:
        self.calls = calls
        self.delegate = delegate = calls.delegate
        self.view = views.look
        self.is_closed = False
        options: Any = delegate.options
        self.max_connecting: int = options.pool_options.max_connecting
        self.listening = Listening(options.event_listeners)
        self._may_block = listeners_may_block and self.listening.are_any

    @property
    def are_watched(self) -> bool:
        """Whether somebody is shown commands: a listener, or PyMongo's log."""
        return self.listening.are_any or _command_logger.isEnabledFor(logging.DEBUG)

    @property
    def need_jobs(self) -> bool:
        """Whether what may block is told of commands or connections: PyMongo does so."""
        return (
            self._may_block
            or _command_logger.isEnabledFor(logging.DEBUG)
            or _connection_logger.isEnabledFor(logging.DEBUG)
        )

    def prepare(self, call: AttemptCall) -> None:
        """Complete the command for its server.

        Raises:
            NotSentError: It can't be made.
        """
        prepare = call.command.prepare
        if prepare is not None:
            try:
                prepare(call.server.limits, encode_documents)
            except Exception as exc:
                raise NotSentError(Unprepared(exc)) from exc

    def driver_server(self, call: AttemptCall) -> Any:
        """Return PyMongo's own object for the server that is to be asked.

        Raises:
            NotSentError: The deployment has lost it, or the client was closed, or nobody waits.
        """
        if call.token.is_revoked:
            raise NotSentError(Expired())
        if self.is_closed:  # the event loop will find out
            raise NotSentError(NoServer())
        server = self.calls.topology().get_server_by_address(call.server.address)
        if server is None:
            raise NotSentError(NoServer())
        return server

    def body(
        self, call: AttemptCall, held: ServerSession, *, is_watched: bool = False
    ) -> dict[str, Any]:
        """Return the command as it is sent, with its transaction number.

        Args:
            call: The attempt.
            held: The session that it goes over.
            is_watched: Whether somebody is shown it.
        """
        command = call.command
        body = {**command.body}
        if is_watched:
            body = shown(body, command.codec_options, is_sent=True)
        body.update(call.options)
        if call.has_transaction_id:
            body["txnNumber"] = bson.Int64(call.number.take(held))
        # Not before: a second attempt must not prepare or number the command at the same time.
        call.is_waiting = True
        return body

    def note(self, call: AttemptCall, body: Mapping[str, Any], connection: Any, at: float) -> None:
        """Say what is sent, for whoever watches.

        Args:
            call: The attempt.
            body: The command, to which its session may add something still.
            connection: PyMongo's connection.
            at: What the event loop's clock says.
        """
        call.sending = Sending(body, connection.id, connection.server_connection_id, at)

    def hear(self, reply: Mapping[str, Any]) -> None:
        """Have PyMongo learn the cluster's time from a reply."""
        self.calls.hear_time(reply.get("$clusterTime"))

    def learn_of_concern(self, reply: Mapping[str, Any], view: ServerView, connection: Any) -> None:
        """Have PyMongo learn from a server that it was deposed while it waited for others."""
        # It says so in an answer that is none of an error. What a router passes on is not about
        # itself.
        concern = reply.get("writeConcernError")
        if not concern or view.kind is not ServerKind.PRIMARY:
            return
        details = {"code": concern.get("code"), "topologyVersion": reply.get("topologyVersion")}
        self.learn_of(NotPrimaryError("a write concern error", details), view, connection)

    def learn_of(self, error: Exception, view: ServerView, connection: Any) -> None:
        """Have PyMongo learn of a server from an error over an established connection."""
        news: Any = News(
            error,
            connection.max_wire_version,
            connection.generation,
            completed_handshake=True,
            service_id=connection.service_id,
        )
        self.calls.handle_error(view.address, news)

    def failed(
        self, call: AttemptCall, error: BaseException, *, is_server_well: bool = False
    ) -> Failed | NotTried:
        """Return what came of an attempt that was ended by an error."""
        if isinstance(error, NotSentError):
            return error.result
        if not isinstance(error, Exception):
            # Of a listener or decoder of the user's.
            cause, error = error, RuntimeError(f"an attempt was ended by {error!r}")
            error.__cause__ = cause
        sent = call.token.is_sending and not self._was_found_before(error)
        return Failed(error, sent, is_server_well)

    def _was_found_before(self, error: Exception) -> bool:
        """Tell whether what an error says is wrong was found before anything was sent."""
        if isinstance(error, InvalidOperation):
            # An encrypter that was closed meanwhile refuses to decrypt the reply by it.
            return self.delegate._encrypter is None
        return isinstance(error, _NEVER_SENT)


def preference_at(call: AttemptCall) -> Any:
    """Return the read preference that a server is sent; None if it is sent none.

    One that is no primary and is asked alone would refuse to be read from (Server Selection,
    "Topology type Single").
    """
    reading = call.command.reading
    if reading is None:
        return None
    if reading.is_of_primary and call.server.kind is ServerKind.OTHER:
        return PrimaryPreferred()
    return reading.preference


def reading_at(call: AttemptCall) -> dict[str, Any]:
    """Return what PyMongo's own command is told of how to read."""
    reading = call.command.reading
    if reading is None:
        return {}
    return {"read_preference": preference_at(call), "read_concern": reading.concern}


@contextmanager
def shown_as(operation_id: int) -> Iterator[None]:
    """Have PyMongo show the commands sent inside as parts of an operation."""
    token = OP_ID.set(operation_id)
    try:
        yield
    finally:
        OP_ID.reset(token)


def time_limit(deadline: Deadline | None, server: Any) -> AbstractContextManager[object]:
    """Return a block that limits what PyMongo does inside.

    Args:
        deadline: When it is to end, if that is known.
        server: PyMongo's own object for the server that is asked.
    """
    if deadline is None or not deadline.is_limited:
        return _UNLIMITED
    return deadlines.limited(deadline.remaining(), server.description.min_round_trip_time)


class News(NamedTuple):
    """What PyMongo's topology wants to know of an error."""

    error: Exception
    max_wire_version: int
    sock_generation: int
    completed_handshake: bool
    service_id: Any
