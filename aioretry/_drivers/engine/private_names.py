"""PyMongo's private names that are used here, all of them, and what is done where one is missing.

What is needed for attempts over open connections only has a substitute: PyMongo's own command, in a
task or on a thread. Without one of the others there is no client.
"""

from collections.abc import Iterable
from contextvars import ContextVar

import bson
import pymongo
from pymongo import _csot, errors, helpers_shared, message, pool_shared
from pymongo.errors import ConfigurationError, PyMongoError
from pymongo.pool_options import PoolOptions

OP_ID: ContextVar[int | None]
try:
    from pymongo._op_id import OP_ID
except ImportError:  # before 4.18, which shows who listens to commands the request's id
    OP_ID = ContextVar("OP_ID", default=None)

Names = Iterable[tuple[object, Iterable[str]]]

SENDING: Names = (
    (bson, ("_decode_all_selective",)),
    (errors, ("_OperationCancelled",)),
    (helpers_shared, ("_check_command_response",)),
    (
        message,
        (
            "_COMMAND_OVERHEAD",
            "_OpMsg",
            "_op_msg",
            "_op_msg_uncompressed",
            "_raise_document_too_large",
        ),
    ),
    (pool_shared, ("_get_timeout_details", "_raise_connection_failure")),
    (PoolOptions, ("_credentials", "_event_listeners")),
)
"""What attempts over open connections need, beside what follows."""

OF_POOL = (
    "_perished",
    "active_contexts",
    "active_sockets",
    "checkin",
    "conns",
    "gen",
    "lock",
    "max_pool_size",
    "operation_count",
    "pid",
    "requests",
    "stale_generation",
)
OF_WAITING_POOL = ("_max_connecting_cond", "lock", "size_cond")
OF_WAITING_TOPOLOGY = ("_condition", "_lock")
"""Without these two, PyMongo's asynchronous client keeps its own locks."""

OF_CONNECTION = (
    "_raise_connection_failure",
    "active",
    "add_server_api",
    "cancel_context",
    "close_conn",
    "compression_context",
    "conn",
    "generation",
    "max_bson_size",
    "max_message_size",
    "max_wire_version",
    "opts",
    "send_cluster_time",
    "service_id",
    "set_conn_timeout",
    "supports_sessions",
)
OF_TOPOLOGY = ("_create_pool_for_monitor", "_receive_cluster_time_no_lock", "handle_error")

OF_CLIENT = (
    "_checkout",
    "_encrypter",
    "_end_sessions",
    "_get_bound_session",
    "_get_topology",
    "_return_server_session",
    "_topology",
)
OF_SESSION = (
    "_apply_to",
    "_check_ended",
    "_client",
    "_cluster_time",
    "_process_response",
    "_server_session",
    "_start_retryable_write",
    "_starting_transaction",
    "_transaction",
    "_update_read_concern",
)
OF_TRANSACTION = ("opts", "pinned_address", "recovery_token", "reset", "sharded", "state")
OF_SESSIONS = ("_TxnState",)
OF_ERROR = ("_add_error_label",)
OF_TIMEOUTS = ("DEADLINE", "RTT", "TIMEOUT", "get_deadline", "get_timeout", "set_rtt")
OF_REQUEST = ("_add_to_bulk",)
OF_ENCRYPTER = ("_bypass_auto_encryption",)
OF_LOCKS = ("Condition", "Lock", "_create_lock")  # imported


def check(client: object, session: object) -> None:
    """Look for what nothing works without.

    Args:
        client: PyMongo's client.
        session: A session of it.

    Raises:
        ConfigurationError: This PyMongo does not have it.
    """
    encrypter = getattr(client, "_encrypter", None)
    needed: Names = (
        (client, OF_CLIENT),
        (session, OF_SESSION),
        (getattr(session, "_transaction", None), OF_TRANSACTION),
        (PyMongoError(), OF_ERROR),
        (_csot, OF_TIMEOUTS),
        (pymongo.InsertOne, OF_REQUEST),
        *(((encrypter, OF_ENCRYPTER),) if encrypter is not None else ()),
    )
    gone = missing(needed)
    if gone:
        raise ConfigurationError(
            f"PyMongo {pymongo.version} does not have what aioretry uses of it "
            f"({', '.join(gone)}); install one that this version of aioretry was tested with, "
            "from 4.17 to 4.20: pip install 'pymongo>=4.17,<4.21'"
        )


def missing(names: Names) -> list[str]:
    """Return which names are not there."""
    return [name for owner, its in names for name in its if not hasattr(owner, name)]
