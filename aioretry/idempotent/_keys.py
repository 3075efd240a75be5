"""Idempotency keys: what a user has of them."""

import secrets
from collections.abc import Callable
from functools import partial
from typing import Literal, Self, TypeAlias, cast

from aioretry import StatementSource
from aioretry._faces import Client, Collection, Database
from aioretry.idempotent._durable import DurableSource
from aioretry.idempotent._keys_derived import Names, key_of, namespace_of, secret_of
from aioretry.idempotent._keys_ending import Endings, batch_of
from aioretry.idempotent._keys_native import NativeSource
from aioretry.idempotent._keys_rate import Rate, rate_of
from aioretry.idempotent._keys_records import Records, whole_seconds
from aioretry.idempotent._once import OnceAnswer, OnceCall, Work, at_once_of
from aioretry.idempotent._once_turns import Turns

Fingerprints: TypeAlias = Literal["all", "find_one_and"]

_HOUR = 3600
_DAY = 24 * _HOUR
_SECONDS_BEFORE_A_BATCH = 5.0


class Keys:
    """Makes the keys under which writes happen once, from whichever process.

    ``async with collection.operation(key=keys("order-42")) as op:`` gives each write of the block a
    session id that follows from secret, namespace, collection, key and the write's place in the
    block, and transaction number 1. By these the servers recognise what another process has sent
    (sessions and retryable-writes specifications), do not execute it again, and answer with the
    first result.

    A key stands for one sequence of writes: the same kinds with the same arguments in the same
    order. What may have a key is insert_one, update_one, replace_one, delete_one and the
    find_one_and_* methods. After a write that failed, the whole block is to be repeated.

    The servers remember for some 30 minutes; this class relies on 25, or on five sixths of
    ``logicalSessionTimeoutMinutes`` if that is less. They remember only what has changed something:
    a write that matched nothing is executed again.

    Before each write a small record of its kind and its payload's fingerprint is written, by which
    another write under the same key is refused, and one that comes too late.

    With ``durable=True`` a key is good for as long as its record is kept: the writes of the block
    and the record with their replies are one transaction, which is committed at the end of the
    block; until then its results are provisional. Attempts of such writes are not in
    ``op.attempts``.

    Used with ``async with``, or :meth:`close` is to be awaited.

    Args:
        secret: At least 16 bytes that no one else knows: who knows it can make the servers take a
            write for another one. The same in all processes. Another secret, or another namespace,
            makes all keys new: what was done under them is done again.
        namespace: Tells services, or tenants, apart that share the secret.
        fingerprints: Which writes have records: ``all``, or ``find_one_and`` only those whose reply
            holds a document. Without one, another kind is refused by the server only where replies
            differ (a find_one_and_* after something else, and so on), another payload is answered
            with the first one's result, and a key that is too old is not recognised as such: the
            write is applied again.
        records: The collection of the records, in the database that is written to.
        keep_seconds: How long a record is kept, by a TTL index; an hour at least. After that, the
            key is as good as new: the write is applied again.
        durable_records: The collection of the records of durable keys.
        answer_records: The collection of the answers of :meth:`once`.
        durable_seconds: How long these two are kept, an hour at least. As for ``keep_seconds``,
            another value is refused by the server (code 85) while the index has the old one;
            ``collMod`` changes that.
        per_second: How many writes with keys this object lets through a second; the others wait.
            A cluster has room for a million sessions, and forgets one that was ended within five
            minutes by default.
        batch: How many sessions are ended in one command, from 1 to 10,000; fewer after 5 seconds.
        at_once: How many calls of :meth:`once` may be at work at once on one client, at most; the
            others wait for their turn. It begins with 10, or with this if that is less, and adapts:
            more where there are no write conflicts, fewer where there are. Calls that begin anew
            after one are not counted; they wait for those that want the same document.

    Raises:
        TypeError: An argument is of another type.
        ValueError: The secret is too short, the namespace is empty, or a number is out of range.
    """

    def __init__(
        self,
        secret: bytes,
        namespace: str,
        *,
        fingerprints: Fingerprints = "all",
        records: str = "aioretry.keys",
        keep_seconds: float = _DAY,
        durable_records: str = "aioretry.durable_keys",
        answer_records: str = "aioretry.answers",
        durable_seconds: float = 30 * _DAY,
        per_second: float = 200.0,
        batch: int = 500,
        at_once: int = 100,
    ) -> None:
        self._secret = secret_of(secret)
        self._namespace = namespace_of(namespace)
        if fingerprints not in {"all", "find_one_and"}:
            raise ValueError(f'fingerprints must be "all" or "find_one_and", not {fingerprints!r}')
        self._remembers_all = fingerprints == "all"
        self._records = Records(records, whole_seconds("keep_seconds", keep_seconds, _HOUR))
        durable = whole_seconds("durable_seconds", durable_seconds, _HOUR)
        self._durable_records = Records(durable_records, durable)
        self._answer_records = Records(answer_records, durable)
        self._turns = Turns(at_once_of(at_once))
        self._rate = Rate(rate_of(per_second))
        self._endings = Endings(batch_of(batch), _SECONDS_BEFORE_A_BATCH)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._namespace!r}>"

    def __call__(
        self, key: str | bytes, *, durable: bool = False, caller: str = ""
    ) -> "IdempotencyKey":
        """Return the key for one sequence of writes.

        Args:
            key: What tells it from others, such as the id of an order or of a request. It is
                neither sent nor logged.
            durable: Whether it is to be good for days, at the cost of a transaction.
            caller: Whose write it is, such as a tenant. Where writes wait for their turn
                (``per_second``), it is each caller's in rotation. It is no part of the key.

        Returns:
            What ``collection.operation(key=...)`` takes, as often as needed.

        Raises:
            TypeError: ``key`` is neither a str nor bytes.
            ValueError: ``key`` is empty.
        """
        make = partial(self._source, key_of(key), caller, durable=durable)
        return IdempotencyKey(make, durable=durable)

    async def once(
        self,
        key: str | bytes | None,
        work: Work,
        *,
        database: Database,
        payload: bytes = b"",
        caller: str = "",
    ) -> OnceAnswer:
        """Do something once, and give every call with the same key the same answer.

        What the work writes, in any collections, and at last its answer, are one transaction, with
        read and write concern "majority" and on the primary whatever the client's defaults are.
        After a transient error the work is done again inside the call
        (transactions-convenient-api). If it raises, nothing is applied, nothing is stored, and the
        key is as good as new, unless the outcome of what is raised is ``UNKNOWN``: the commit
        itself has ended in an error then.

        Where another call has done the work, it is run once more all the same, in vain: the server
        has nothing of it applied, and the stored answer is given. So it is if the work raises an
        error then, which may come of what the other call has done.

        Calls with the same key at once wait for each other in one process; of several processes
        each does the work, and one commits it.

        All of it obeys a surrounding deadline, waiting for other calls included. Work that is still
        running 0.1 seconds after it is cancelled. Without a deadline, nothing is begun anew after
        120 seconds.

        Args:
            key: What tells it from others. It is neither sent nor logged. None stands for what
                nobody can repeat: the work is done in a transaction, and no answer is kept.
            work: Does it, and returns the answer as a document; awaited with a session that is in a
                transaction, which has to be given to each of its reads and writes. It may be run
                more than once, also in vain, so that nothing else may happen in it. It must let the
                errors of its commands out: one that it catches, such as a DuplicateKeyError, has
                aborted the transaction all the same. It must not commit or abort.
            database: Where the answer is kept, and in whose codec options; its client does the
                work.
            payload: What the key stands for, such as a request's body. Only a fingerprint is kept.
            caller: Whose call it is, such as a tenant. Where calls wait for their turn
                (``at_once``), it is each caller's in rotation. It is no part of the key.

        Returns:
            The answer, and whether another call has done the work.

        Raises:
            IdempotencyConflict: The key was used with another payload.
            KeyInUseError: Another call with the key has not ended in time: one of this process, or
                one that was being committed.
            NoTurnError: Too many calls with other keys were before it; nothing is applied.
            DeadlineExceeded: The time is over. With the label ``UnknownTransactionCommitResult``,
                and the outcome ``UNKNOWN``, the work may be done; repeating the call with the same
                key tells.
            DocumentTooLarge: The answer has more than 15 MiB; nothing is applied.
            InvalidOperation: The call is made by another one's work, or by a task of its that runs
                beside it; or the work has ended its transaction; or the server had aborted that
                three times in a row before the work was done, because the work caught an error, or
                took longer than ``transactionLifetimeLimitSeconds``. Nothing is applied.
            ConfigurationError: The servers have no transactions: it is a standalone one.
            TypeError: An argument is of another type.
            ValueError: ``key`` is empty.
            Exception: Whatever the work raised.
        """
        if not isinstance(payload, bytes):
            raise TypeError(f"payload must be bytes, not {type(payload).__name__}")
        own = secrets.token_bytes() if key is None else key_of(key)
        names = Names(self._secret, self._namespace, database.name, own)
        records = None if key is None else self._answer_records
        call = OnceCall(names, database, records, self._turns, payload, work, caller)
        return await call.run()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the sessions that are left, before the clients are closed; raises nothing for them.

        For each client it takes a second at most, with a server or without one.

        Sessions are ended by themselves from time to time; those that never are take room in the
        cluster for half an hour.
        """
        await self._endings.flush()

    def _source(
        self, key: bytes, caller: str, collection: Collection, *, durable: bool
    ) -> StatementSource:
        database = cast(Database, collection.database)
        full_name = f"{database.name}.{collection.name}"
        names = Names(self._secret, self._namespace, full_name, key)
        if durable:
            return DurableSource(names, database, self._durable_records)
        return NativeSource(
            names,
            database,
            self._records,
            self._remembers_all,
            self._rate,
            caller,
            self._endings.of(cast(Client, database.client)),
        )


class IdempotencyKey:
    """One key; made by calling :class:`Keys`. Nothing of it can be seen."""

    __slots__ = ("_durable", "_make")

    def __init__(self, make: Callable[[Collection], StatementSource], *, durable: bool) -> None:
        self._make = make
        self._durable = durable

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{' durable' if self._durable else ''}>"

    def source(self, collection: Collection) -> StatementSource:
        """Return what ``collection.operation()`` asks; for its use only."""
        return self._make(collection)
