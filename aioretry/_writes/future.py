"""What all writes have in common: they run whoever awaits them, and end in one way."""

import asyncio
import contextvars
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Self, TypeVar

from aioretry._retry.loop import Coordinator
from aioretry._retry.monitoring import Watch
from aioretry._retry.sessions import SessionLease
from aioretry.errors import Attempt, Outcome, attach, copy_report

T = TypeVar("T")


class RunningWrite(asyncio.Future[T]):
    """A write that is under way, whether or not anybody awaits it.

    Args:
        coordinator: Of the client's event loop.
        watch: Who is told of its end, or None.
        lease: The session that it goes over; None if that is somebody else's to end.
    """

    __slots__ = ("_cancelled_error", "_lease", "_running", "_task", "watch")

    _outcome_of_success: Outcome | None = Outcome.APPLIED
    """How it ended if it gave a result; None if it has no outcome of its own."""

    def __init__(
        self,
        coordinator: Coordinator,
        watch: Watch | None,
        lease: SessionLease | None = None,
    ) -> None:
        super().__init__(loop=coordinator.loop)
        self._running = coordinator.running
        self._running.add(self)
        self.watch = watch
        self._lease = lease
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_error: asyncio.CancelledError | None = None

    def as_part(self) -> Self:
        """Be counted with the operations that it is a part of, and not for itself."""
        self._running.discard(self)
        return self

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the write: nothing more is sent for it."""
        if self.done():
            return False
        if self._task is not None:
            return self._task.cancel(msg)
        error = asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg)
        try:
            self._abandon(error)
            self._settle(error)
        finally:  # whatever that raises, nobody waits for ever
            self._cancelled_error = error
            super().cancel(msg)
            self._tell_end(error)
        return True

    def result(self) -> T:
        """Return what the write gave, or raise what it ended with."""
        if self._cancelled_error is not None:
            raise self._cancelled_error
        return asyncio.Future.result(self)  # super() costs more than this does

    def exception(self) -> BaseException | None:
        """Return what the write ended with, or None."""
        if self._cancelled_error is not None:
            raise self._cancelled_error
        return super().exception()

    @property
    def failure(self) -> BaseException | None:
        """What it has ended with, if it has; to whoever looks after futures, nobody has asked."""
        return self._cancelled_error or self._exception

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            try:
                return (yield from asyncio.Future.__await__(self))
            except asyncio.CancelledError as exc:
                if self.done() and exc is not self._cancelled_error:
                    self._tell(exc)
                raise
        return self.result()

    __iter__ = __await__

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        # What asyncio.gather() raises; it is to answer outcome_of() too.
        return self._cancelled_error or asyncio.CancelledError()

    def _run(
        self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context | None = None
    ) -> None:
        create = self.get_loop().create_task
        try:
            # Task factories need not know contexts.
            self._task = create(coroutine) if context is None else context.run(create, coroutine)
        except BaseException as exc:
            coroutine.close()
            self._fail(exc)
            if not isinstance(exc, Exception):
                raise
            return
        # Not a step of the task: one that is cancelled before it begins takes no step.
        self._task.add_done_callback(self._end_with)

    def _fail_to_begin(self, exc: BaseException, *, may_be_under_way: bool = False) -> None:
        """End with what a beginning has raised; if it is no Exception, raise it at once."""
        if isinstance(exc, Exception):
            self._fail(exc)
            return
        self._running.discard(self)
        if self.watch is not None and not may_be_under_way:
            self.watch.end(exc)
        raise exc

    def _end_with(self, task: asyncio.Task[Any]) -> None:
        self._task = None
        try:
            value = task.result()
        except asyncio.CancelledError as exc:
            try:
                self._settle(exc)
            finally:
                self._cancelled_error = exc
                super().cancel()
                self._tell_end(exc)
        except BaseException as exc:  # noqa: BLE001 - raised where the write is awaited
            self._fail(exc)
        else:
            self._take(value)

    def _take(self, value: Any) -> None:
        """End with an answer, or with what goes wrong with it."""
        try:
            if self._lease is not None:
                self._lease.end_write(None, in_doubt=self._leaves_doubt(value))
        except Exception as exc:  # noqa: BLE001 - raised where the write is awaited
            self._fail(exc)
            return
        try:
            result = self._result_of(value)
        except Exception as exc:  # noqa: BLE001 - raised where the write is awaited
            self._end(exc)
        else:
            self.set_result(result)
            self._tell_end(None)

    def _fail(self, exc: BaseException) -> None:
        try:
            self._settle(exc)
        finally:  # whatever that raises, nobody waits for ever
            self._end(exc)

    def _settle(self, exc: BaseException) -> None:
        """Say on the exception how the write ended, and give back what it holds."""
        in_doubt = True
        try:
            in_doubt = self._explain(exc)
        finally:
            if self._lease is not None:
                self._lease.end_write(exc, in_doubt=in_doubt)

    def _end(self, exc: BaseException) -> None:
        """End with an exception that says already how the write ended."""
        if isinstance(exc, StopIteration):  # a future can't hold it
            error = RuntimeError("StopIteration was raised")
            error.__cause__ = exc
            exc = error
        self.set_exception(exc)
        self._tell_end(exc)

    def _tell_end(self, exc: BaseException | None) -> None:
        self._running.discard(self)
        if self.watch is not None:
            self.watch.end(exc)

    def _tell(self, exc: BaseException) -> None:
        """Say on a cancellation how the write ended that whoever was cancelled awaited."""
        error = self._cancelled_error or self.exception()
        if error is None:
            attach(exc, self._outcome_of_success, self.attempts())
        else:
            copy_report(error, exc)

    def attempts(self) -> Sequence[Attempt]:
        """Return what was tried for the write."""
        raise NotImplementedError

    def _abandon(self, reason: BaseException) -> None:
        """Give up what is under way outside a task."""

    def _leaves_doubt(self, value: Any) -> bool:
        """Tell whether an answer leaves the session in doubt that the write went over."""
        raise NotImplementedError

    def _result_of(self, value: Any) -> T:
        """Turn an answer into what the user awaits.

        Raises:
            Exception: It says already how the write ended.
        """
        raise NotImplementedError

    def _explain(self, exc: BaseException) -> bool:
        """Say on an exception how the write ended; return whether that is in doubt."""
        raise NotImplementedError
