"""The commit of a transaction: how it ended, and how that is found out later."""

import asyncio
from itertools import takewhile
from typing import Any

from pymongo.errors import InvalidOperation, PyMongoError

from aioretry._commands import transactions
from aioretry._commands.error_codes import RETRYABLE_WRITE
from aioretry._drivers.port import TransactionOptions
from aioretry._retry.command_execution import Execution, trusted_seconds
from aioretry._retry.monitoring import Watch
from aioretry._retry.transactions import (
    TRANSIENT,
    UNKNOWN_COMMIT,
    Commit,
    has_label,
    is_unknown_commit,
    outcome_of_commit,
)
from aioretry._retry.verdict import code_of
from aioretry._writes.aborts import abort_for_certain, leave_given_up
from aioretry._writes.context import TransactionalSession, WritePath
from aioretry._writes.single import Write
from aioretry.deadlines import Deadline
from aioretry.errors import (
    ClientDraining,
    DeadlineExceeded,
    Doubt,
    Outcome,
    attach,
    copy_report,
    links_of,
    own_report_of,
    refusal,
)
from aioretry.events import RetryScheduled

_GIVEN_UP = "the client was drained before the transaction was committed; it is aborted"


def commit(session: TransactionalSession) -> asyncio.Future[None]:
    """Commit: once more after an error that allows it, or as often as the deadline allows.

    A commit that was sent is not given up by a cancellation, though it is not sent again; one that
    was not is never sent, and the transaction is aborted.

    Args:
        session: The user's session, with a transaction that was committed or is to be.

    Returns:
        A running future, which tells a cancellation how the transaction has ended.

    Raises:
        InvalidOperation: There is nothing to commit.
    """
    path, calls = session._write_path, session._calls
    if not path.makes_transactions:
        return asyncio.ensure_future(_drivers_commit(session))
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        if leave_given_up(session):
            raise refusal(ClientDraining(_GIVEN_UP))
        transaction = calls.begin_commit(session)
    except InvalidOperation as exc:  # told by the future, as Motor does
        done.set_exception(exc)
        return done
    if transaction is None:
        session._watch.end(None)
        done.set_result(None)
        return done
    if session._commit is None:
        session._commit = TransactionCommit(session, path, calls.transaction_options(session))
    latest: TransactionCommit = session._commit
    return latest.send(path.deadline(), session, transaction)


async def _drivers_commit(session: TransactionalSession) -> None:
    try:
        await asyncio.shield(session._calls.drivers_commit(session))
    except BaseException as exc:
        is_denied = isinstance(exc, InvalidOperation)
        attach(exc, Outcome.NOT_APPLIED if is_denied else Outcome.UNKNOWN, [])
        session._watch.end(exc)
        raise
    session._watch.end(None)


class TransactionCommit:
    """The commit of one transaction, and what it takes to send it, however often.

    Args:
        session: The user's session.
        path: Its client's.
        options: What is known of the transaction.
    """

    def __init__(
        self, session: TransactionalSession, path: WritePath, options: TransactionOptions
    ) -> None:
        self.progress = Commit(options.write_concern, options.max_commit_time_ms)
        self.coordinator = path.coordinator()
        self._command = transactions.commit(options.write_concern, options.recovery_token)
        self.lease = path.ending_lease(session)
        self._latest: Execution | None = None

    def send(
        self,
        deadline: Deadline | None,
        session: TransactionalSession | None = None,
        transaction: object = None,
        operation: str | None = None,
    ) -> "CommitCall":
        """Send it.

        Args:
            deadline: When that has to be over, or None.
            session: The user's session that is in the transaction; None if none is any more.
            transaction: What its driver knows that by.
            operation: What hooks are told that it is, if it is not the commit.
        """
        progress, coordinator, command = self.progress, self.coordinator, self._command
        progress.under_deadline = deadline is not None
        if progress.was_sent:
            progress.repeat()
        within = None if session is None else session._watch.latest
        watch = coordinator.watchers.watch(
            operation or command.operation, command.namespace, within
        )
        execution = coordinator.ending(command, self.lease, deadline, progress, watch)
        if self._latest is not None:
            execution.follow(self._latest)
        self._latest = execution
        call = CommitCall(self, deadline, watch)
        call.session, call.transaction = session, transaction
        return call.execute(execution)

    @property
    def outcome(self) -> Outcome:
        """How the transaction has ended, as far as is known."""
        return outcome_of_commit(self.progress)

    def age(self) -> float:
        """Return the seconds since it was first sent."""
        return 0.0 if self._latest is None else self._latest.age(self.coordinator.loop.time())

    def explain(self, exc: BaseException) -> Outcome:
        """Say on an exception how the transaction has ended."""
        outcome, attempts = self.outcome, [each.attempt for each in self.progress.sendings]
        doubt = CommitDoubt(self) if outcome is Outcome.UNKNOWN else None
        attach(exc, outcome, attempts, doubt=doubt)
        return outcome


class CommitCall(Write[None]):
    """A commit that is under way.

    Args:
        commit: What it takes to send it.
        deadline: When it has to be over, or None.
        watch: Who is told of its attempts and of its end, or None.
    """

    __slots__ = ("_commit", "session", "transaction")

    def __init__(
        self, commit: TransactionCommit, deadline: Deadline | None, watch: Watch | None
    ) -> None:
        super().__init__(commit.coordinator, commit.lease, deadline, watch)
        self._commit = commit
        self.session: TransactionalSession | None = None
        """The user's session that is in the transaction; None if none is any more."""

        self.transaction: object = None
        """What its driver knows that by."""

    def _leaves_doubt(self, value: Any) -> bool:  # noqa: ARG002
        return False

    def _result_of(self, value: Any) -> None:  # noqa: ARG002
        self._end_transaction()

    def _explain(self, exc: BaseException) -> bool:
        if is_unknown_commit(exc):
            self._coordinator.driver.add_label(exc, UNKNOWN_COMMIT)
        outcome = self._commit.explain(exc)
        session = self.session
        is_unsent = not self._commit.progress.was_sent
        is_over = isinstance(exc, asyncio.CancelledError | DeadlineExceeded)
        if session is not None and is_unsent and is_over:
            # As long as it is open, it bars others.
            session._commit = None
            abort_for_certain(session)
            return False
        # transactions, "Unpinning"
        self._end_transaction(unpin=has_label(exc, TRANSIENT) or has_label(exc, RETRYABLE_WRITE))
        return outcome is Outcome.UNKNOWN

    def _tell_end(self, exc: BaseException | None) -> None:
        super()._tell_end(exc)
        if self.session is not None:
            self.session._watch.end(exc)

    def _end_transaction(self, *, unpin: bool = False) -> None:
        if self.session is not None:
            self.session._calls.end_commit(self.transaction, unpin=unpin)


def explain(
    session: TransactionalSession,
    exc: BaseException,
    *,
    outer: BaseException | None = None,
    before: TransactionCommit | None = None,
    was_in_doubt: bool = False,
) -> None:
    """Say on an exception how the session's latest transaction ended, if it does not say so.

    Args:
        session: The user's session.
        exc: What the transaction ends with.
        outer: What was being handled when it began, if anything was.
        before: The commit of a transaction before it.
        was_in_doubt: Whether an earlier run of it may be committed, too.
    """
    own = own_report_of(exc)
    attempts = () if own is None else own.attempts
    latest = None if session._commit is before else session._commit
    if was_in_doubt:
        attach(exc, Outcome.UNKNOWN, attempts)
    elif own is not None and own.outcome is Outcome.UNKNOWN:
        pass  # that of the commit, or of a write that was no part of the transaction
    elif (beside := _in_doubt_beside(exc, outer)) is not None:
        copy_report(beside, exc)
    elif latest is not None:
        latest.explain(exc)
    else:
        attach(exc, Outcome.NOT_APPLIED, attempts)


def _in_doubt_beside(exc: BaseException, outer: BaseException | None) -> BaseException | None:
    """Return the error of a write in doubt, no part of the transaction, that it ends with.

    A time limit hides it, or a cancellation while the transaction was being aborted.
    """
    for link in takewhile(lambda each: each is not outer, links_of(exc)):
        report = own_report_of(link)
        if report is not None and report.outcome is not None:
            is_beside = not isinstance(report.doubt, CommitDoubt)
            return link if is_beside and report.outcome is Outcome.UNKNOWN else None
    return None


class CommitDoubt(Doubt):
    """A commit whose outcome is unknown.

    Args:
        commit: The commit; its session may be used for something else since.
    """

    def __init__(self, commit: TransactionCommit) -> None:
        self._commit = commit

    def why_unresolvable(self) -> str | None:
        """Return why the commit can't be sent once more, or None if it can."""
        if asyncio.get_running_loop() is not self._commit.coordinator.loop:
            return "its client is used on another event loop, where it has to be resolved"
        if self._is_answered():
            return None
        if self._commit.lease.is_given_back:
            return "the transaction was found not to be committed when it was resolved before"
        if self._time_left() > 0:
            return None
        return (
            "the server may have forgotten it: the commit was first sent "
            f"{self._commit.age():.0f} s ago, and what is answered can be relied on for "
            f"{self._trusted_seconds():.0f} s"
        )

    def admit(self) -> None:
        """Let it be resolved, unless its client begins nothing any more."""
        self._commit.coordinator.admit()

    async def resolve(self, timeout: float | None) -> None:  # noqa: ASYNC109
        """Send the commit once more, unless it was answered meanwhile.

        Args:
            timeout: How long this may take, in seconds, or None.
        """
        if self._is_answered():
            return
        limit = self._commit.coordinator.deadline(timeout)
        if limit is not None:
            limit = Deadline.after(self._time_left()).nearer(limit)
        with self._commit.lease.held():  # a late answer would have others use the session
            await self._commit.send(limit, operation="resolve")

    def _is_answered(self) -> bool:
        return self._commit.outcome is Outcome.APPLIED

    def _trusted_seconds(self) -> float:
        return trusted_seconds(self._commit.progress.session_minutes)

    def _time_left(self) -> float:
        return self._trusted_seconds() - self._commit.age()


def tell_retry(
    session: TransactionalSession,
    operation: str,
    error: PyMongoError | BaseException,
    number: int,
    wait: float,
) -> None:
    """Tell hooks that a transaction, or its commit, failed and that it will be tried again."""
    latest = session._commit
    sendings = [] if latest is None else latest.progress.sendings
    address = sendings[-1].attempt.address if sendings else None
    event = RetryScheduled(
        operation,
        transactions.DATABASE,
        address,
        type(error).__name__,
        code_of(error),
        number,
        wait,
        {} if session._watch.call is None else session._watch.call.notes,
    )
    session._write_path.tell(event)
