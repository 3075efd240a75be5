"""What a client's writes have in common, from the user's call down to the coordinator."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import anyio
from pymongo.errors import InvalidOperation

from aioretry._coordinator import Coordinator
from aioretry._driver import AttemptResult, Command, Driver, Ending, ServerSession, ThreadCounts
from aioretry._flight import Flight, Statement
from aioretry._sessions import SessionLease
from aioretry._verdict import Policy, outcome_of_attempts
from aioretry.deadlines import Deadline, current_deadline
from aioretry.errors import Attempt, Outcome, attach
from aioretry.events import Hook

T = TypeVar("T")


class WritePath:
    """The parts that the writes of one client share."""

    def __init__(
        self,
        driver: Driver,
        policy: Policy,
        *,
        get_loop: Callable[[], asyncio.AbstractEventLoop],
        surrounding_deadline: Callable[[], Deadline | None],
        user_session: Callable[[object], ServerSession],
        server_selection_timeout: float,
        timeout: float | None,
        encrypts: bool,
        hooks: tuple[Hook, ...],
    ) -> None:
        self.encrypts = encrypts
        self._driver = driver
        self._timeout = timeout
        self._policy = policy
        self._get_loop = get_loop
        self._surrounding_deadline = surrounding_deadline
        self._user_session = user_session
        self._server_selection_timeout = server_selection_timeout
        self._hooks = hooks
        self._coordinator: Coordinator | None = None
        self._turns: WeakKeyDictionary[Any, anyio.Lock] = WeakKeyDictionary()

    def coordinator(self) -> Coordinator:
        """Return the coordinator of the client's event loop.

        Raises:
            InvalidOperation: Another loop is running.
        """
        loop = self._get_loop()
        if _running_loop() not in {None, loop}:
            raise InvalidOperation(
                "this client is bound to another event loop, the one it was first used on; "
                "make one client for each event loop"
            )
        if self._coordinator is None or self._coordinator.loop is not loop:
            self._coordinator = Coordinator(
                self._driver,
                loop,
                self._policy,
                server_selection_timeout=self._server_selection_timeout,
                hooks=self._hooks,
            )
        return self._coordinator

    def thread_counts(self) -> ThreadCounts:
        """Return how the threads are doing that carry attempts."""
        return self._driver.counts()

    def close(self, patience: float) -> None:
        """End what is under way, because the client is closed; from any thread.

        Args:
            patience: How long a command that was sent may wait for its answer, in seconds.
        """
        coordinator = self._coordinator
        if coordinator is not None:
            with contextlib.suppress(RuntimeError):  # its loop was closed: nobody waits any more
                coordinator.loop.call_soon_threadsafe(coordinator.close, patience)

    def surrounding_deadline(self) -> Deadline | None:
        """Return the nearest of the ``deadline()`` and ``pymongo.timeout()`` blocks, or None."""
        ours, pymongos = current_deadline(), self._surrounding_deadline()
        return ours if pymongos is None else pymongos.nearer(ours)

    def deadline(self, seconds: float | None = None) -> Deadline | None:
        """Return the deadline that an operation has to obey here, or None.

        Args:
            seconds: A limit from now on, or None. The surrounding deadline counts if it is nearer;
                if there is neither, the client's ``timeoutMS`` from now on.
        """
        limit = self.surrounding_deadline()
        if seconds is not None:
            return Deadline.after(seconds).nearer(limit)
        if limit is None and self._timeout is not None:
            return Deadline.after(self._timeout)
        return limit

    def lease(self, session: object = None) -> SessionLease:
        """Return a lease of an implicit session, or of one that the user started.

        Whether that is a session of this client shows when it is first needed.
        """
        if session is None:
            return SessionLease(self._driver.session)
        return SessionLease(partial(self._user_session, session), self._turn_in(session))

    def _turn_in(self, session: object) -> anyio.Lock | None:
        # The server takes no transaction number below one that it has seen, and commands that are
        # sent at the same time arrive in any order.
        shared = getattr(session, "delegate", session)
        try:
            return self._turns.setdefault(shared, anyio.Lock(fast_acquire=True))
        except TypeError:  # no session; its first use says so
            return None


class RunningWrite(asyncio.Future[T]):
    """A write that is under way, whether or not anybody awaits it.

    Args:
        loop: The client's event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_error: asyncio.CancelledError | None = None

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the write: nothing more is sent for it."""
        if self.done():
            return False
        if self._task is not None:
            return self._task.cancel(msg)
        error = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        self._abandon(error)
        self._settle(error)
        self._cancelled_error = error
        return super().cancel(msg)

    def result(self) -> T:
        """Return what the write gave, or raise what it ended with."""
        if self._cancelled_error is not None:
            raise self._cancelled_error
        return super().result()

    def exception(self) -> BaseException | None:
        """Return what the write ended with, or None."""
        if self._cancelled_error is not None:
            raise self._cancelled_error
        return super().exception()

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            yield from super().__await__()
        return self.result()

    __iter__ = __await__

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        # What asyncio.gather() raises; it is to answer outcome_of() too.
        return self._cancelled_error or asyncio.CancelledError()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._task = self.get_loop().create_task(coroutine)
        # Not a step of the task: one that is cancelled before it begins takes no step.
        self._task.add_done_callback(self._end_with)

    def _end_with(self, task: asyncio.Task[Any]) -> None:
        self._task = None
        try:
            value = task.result()
        except asyncio.CancelledError as exc:
            self._settle(exc)
            self._cancelled_error = exc
            super().cancel()
        except Exception as exc:  # noqa: BLE001 - raised where the write is awaited
            self._fail(exc)
        else:
            self._succeed(value)

    def _fail(self, exc: Exception) -> None:
        self._settle(exc)
        if isinstance(exc, StopIteration):  # a future can't hold it
            raise exc
        self.set_exception(exc)

    def _abandon(self, reason: BaseException) -> None:
        """Give up what is under way outside a task."""

    def _succeed(self, value: Any) -> None:
        """End with what the task gave."""
        raise NotImplementedError

    def _settle(self, exc: BaseException) -> None:
        """Give back what the write holds, and say on the exception how it ended."""
        raise NotImplementedError


class Write(RunningWrite[T]):
    """A write of one command.

    The first attempt begins at once, and if it succeeds there is nothing more to it. Whatever else
    happens is the coordinator's, in a task.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        build: Callable[[], Command[T]],
        lease: SessionLease,
        deadline: Deadline | None,
    ) -> None:
        super().__init__(coordinator.loop)
        self._coordinator = coordinator
        self._lease = lease
        self._statement: Statement | None = None
        self._flight: Flight | None = None
        try:
            self._statement = coordinator.statement(build(), lease, deadline)
            if lease.turn is None and coordinator.can_launch(self._statement):
                self._flight = coordinator.launch(self._statement, self._land)
                return
        except Exception as exc:  # noqa: BLE001 - raised where the write is awaited, as by Motor
            self._fail(exc)
            return
        self._run(coordinator.execute(self._statement))

    def _abandon(self, reason: BaseException) -> None:
        if self._flight is not None:
            self._flight.abandon(reason)

    def _land(self, result: AttemptResult) -> None:
        self._flight = None
        if self._statement is None or self.done():
            return
        reply = None if result.record is None else result.record.reply
        if result.ending is Ending.REPLIED and reply is not None:
            self._succeed(reply)
        else:
            self._run(self._coordinator.execute(self._statement, result))

    def _succeed(self, value: Any) -> None:
        self._lease.finish(discard=False)
        if self._statement is None:
            raise AssertionError("a reply without a command")
        try:
            result = result_of(self._statement, value)
        except Exception as exc:  # noqa: BLE001 - raised where the write is awaited
            self.set_exception(exc)
        else:
            self.set_result(result)

    def _settle(self, exc: BaseException) -> None:
        outcome = explain(exc, self._statement)
        self._lease.finish(discard=outcome is Outcome.UNKNOWN)


def result_of(statement: Statement, reply: Mapping[str, Any]) -> Any:
    """Turn the reply of a successful write into what the user awaits.

    Raises:
        Exception: The reply is not what it should be; the write is applied all the same.
    """
    try:
        return statement.command.result(reply)
    except Exception as exc:
        attach(exc, Outcome.APPLIED, statement.attempts)
        raise


def explain(exc: BaseException, statement: Statement | None) -> Outcome:
    """Say on an exception that leaves a write how the write ended.

    Args:
        exc: The exception.
        statement: The command; None if there was none yet.

    Returns:
        The outcome.
    """
    attempts = [] if statement is None else statement.attempts
    holds_multi = statement is not None and statement.command.holds_multi
    outcome = outcome_of_attempts(attempts, holds_multi=holds_multi, is_atomic=not holds_multi)
    attach(exc, outcome, attempts)
    if statement is not None and (len(attempts) > 1 or outcome is Outcome.UNKNOWN):
        exc.add_note(_note(statement, outcome))
    return outcome


def tried_for(statement: Statement) -> str:
    """Return what was tried for a command, in less than one line."""
    return "; ".join(
        f"{_host(attempt)} {_answer(attempt)} after {attempt.duration:.3f} s"
        for attempt in statement.attempts
    )


def _note(statement: Statement, outcome: Outcome) -> str:
    command, tried = statement.command, tried_for(statement)
    return (
        f"aioretry: {command.operation} on {command.namespace}: {tried}; outcome: {outcome.value}"
    )


def _host(attempt: Attempt) -> str:
    return "no server" if attempt.address is None else f"{attempt.address[0]}:{attempt.address[1]}"


def _answer(attempt: Attempt) -> str:
    if attempt.error is not None:
        return type(attempt.error).__name__
    return "no answer" if attempt.reply is None else "success"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
