"""Writes that are safe to repeat across processes, requests and days.

A module imports only from lower ones, and from aioretry's public names:

    _keys                               idempotency keys, and what operations ask of them
    _once  _once_turns                  work that is done once for a key, and its stored answer
    _keys_native  _durable              a key's writes: remembered by the servers, or by a record
    _durable_transaction                the writes of a durable key, in one transaction
    _keys_records  _keys_ending         records of keys; ending the sessions that were chosen
    _keys_rate  _keys_derived           whose turn it is; session ids and fingerprints (pure)
    _per_client  _errors                what is kept for each client; what they raise
    _pending                            updates of any kind, exactly once, by a token
    _pending_apply  _pending_cleanup    one update in two steps; finishing those that were left
    _pending_sending                    sending a step until it is answered
    _pending_update  _pending_values    what is stored with a token (pure); results and errors
    _insert_once                        inserting a document once
    _many                               updating and deleting many, as often as it takes
    _operators  _pipelines  _filters    what an update does when it is run again (pure)
    _repeat  _paths  _collections       runs that are repeated; paths of fields; collections (pure)
    _versioned                          documents that carry the hash of their content
    _versioned_steps                    their commands, and what the answers mean
    _versions  _canonical               who has won (pure); one form of BSON for one content (pure)
"""

from aioretry.idempotent._errors import (
    IdempotencyConflict,
    KeyExpiredError,
    KeyInUseError,
    NoTurnError,
)
from aioretry.idempotent._insert_once import InsertConflict, InsertOnceResult, insert_once
from aioretry.idempotent._keys import IdempotencyKey, Keys
from aioretry.idempotent._many import DeleteManyResult, UpdateManyResult, delete_many, update_many
from aioretry.idempotent._once import OnceAnswer
from aioretry.idempotent._operators import NotIdempotentError
from aioretry.idempotent._pending import PendingUpdates
from aioretry.idempotent._pending_values import (
    AppliedUpdate,
    CleanUpReport,
    FailedToken,
    PendingError,
    PendingStatus,
    TokenConflictError,
    TokenExpiredError,
    TooManyPendingError,
    UpdateInterruptedError,
    UpdateRefusedError,
)
from aioretry.idempotent._versioned import VersionedDocuments
from aioretry.idempotent._versions import VersionConflict, Versioned

__all__ = [
    "AppliedUpdate",
    "CleanUpReport",
    "DeleteManyResult",
    "FailedToken",
    "IdempotencyConflict",
    "IdempotencyKey",
    "InsertConflict",
    "InsertOnceResult",
    "KeyExpiredError",
    "KeyInUseError",
    "Keys",
    "NoTurnError",
    "NotIdempotentError",
    "OnceAnswer",
    "PendingError",
    "PendingStatus",
    "PendingUpdates",
    "TokenConflictError",
    "TokenExpiredError",
    "TooManyPendingError",
    "UpdateInterruptedError",
    "UpdateManyResult",
    "UpdateRefusedError",
    "VersionConflict",
    "Versioned",
    "VersionedDocuments",
    "delete_many",
    "insert_once",
    "update_many",
]
