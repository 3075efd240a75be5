"""Keys that the servers remember by themselves, for as long as they remember transaction ids."""

from dataclasses import dataclass
from typing import Any

from pymongo.errors import OperationFailure

from aioretry import Deadline, KeyedStatement, SessionId
from aioretry._faces import Database
from aioretry.idempotent._errors import IdempotencyConflict
from aioretry.idempotent._keys_derived import Names
from aioretry.idempotent._keys_ending import SessionEnder
from aioretry.idempotent._keys_rate import Rate
from aioretry.idempotent._keys_records import Records, remember

# A server's answer to a statement of another kind under a transaction id that it remembers.
_OTHER_KIND = frozenset({40606, 40608, 40609, 40610, 40611, 40612, 40613, 40638})
_OTHER_KIND_TEXT = "not compatible with previous write"


@dataclass(frozen=True, slots=True)
class NativeSource:
    """Gives each statement of an operation the session that its key says."""

    names: Names
    database: Database
    records: Records
    remembers_all: bool
    """Whether a record is kept of every statement, and not only of those that give a document."""

    rate: Rate
    caller: str
    """Whose turns it takes."""

    ending: SessionEnder

    @property
    def in_doubt(self) -> bool:
        """Closing applies nothing."""
        return False

    def open(self, limit: Deadline | None) -> None:
        """Do nothing: each statement is for itself."""
        del limit

    def new_id(self, index: int) -> Any:
        """Return the ``_id`` of a document that is inserted without one."""
        return self.names.document_id(index)

    async def begin(self, statement: KeyedStatement) -> SessionId:
        """Give the session, if the statement is the one that the key was used for."""
        await self.rate.turn(statement.deadline, self.caller)
        names, index = self.names, statement.index
        age = None
        if self.remembers_all or statement.operation.startswith("find_one_and_"):
            age = await remember(
                await self.records.of(self.database),
                names.record_id(index),
                statement,
                names.fingerprint(index, statement.command),
            )
        return SessionId(names.session_id(index), age)

    def end(self, answer: SessionId) -> None:
        """Have the session ended."""
        self.ending.add(answer.id)

    def explain(self, error: Exception) -> Exception | None:
        """Say that a server has recognised another kind of statement."""
        if isinstance(error, OperationFailure) and (
            error.code in _OTHER_KIND or _OTHER_KIND_TEXT in str(error)
        ):
            return IdempotencyConflict(
                "another kind of write was sent under this key before, says the server"
            )
        return None

    async def close(self, error: BaseException | None, *, failed: bool) -> bool:
        """Do nothing: each statement is for itself."""
        del error, failed
        return False
