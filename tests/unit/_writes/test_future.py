"""How writes end: in one way, once, whoever awaits them and whatever goes wrong with it."""

import asyncio
import contextvars
from types import SimpleNamespace

import pytest

from aioretry import Attempt, Outcome, attempts_of, outcome_of
from aioretry._writes.future import RunningWrite
from aioretry.errors import attach

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
TRIED = Attempt(("a", 1), 0.0, 0.0, True)
CALLER = contextvars.ContextVar("CALLER", default=None)


class Lease:
    """A session's lease that tells how it ended."""

    def __init__(self):
        self.ended = []

    def end_write(self, exc, *, in_doubt):
        self.ended.append((exc, in_doubt))


class Watch:
    """Who is told of the end."""

    def __init__(self):
        self.ended = []

    def end(self, exc):
        self.ended.append((exc, None if exc is None else outcome_of(exc)))


class Write(RunningWrite):
    """A write whose parts do what a test says."""

    def __init__(self, lease=None):
        self.running = set()
        coordinator = SimpleNamespace(loop=asyncio.get_running_loop(), running=self.running)
        super().__init__(coordinator, Watch(), lease)
        self.abandoned = []
        self.outcome = UNKNOWN
        self.result_error = self.explain_error = self.abandon_error = None

    def attempts(self):
        return [TRIED]

    def _abandon(self, reason):
        self.abandoned.append(reason)
        if self.abandon_error is not None:
            raise self.abandon_error

    def _leaves_doubt(self, value):
        return value["doubt"]

    def _result_of(self, value):
        if self.result_error is not None:
            raise self.result_error
        return value["result"]

    def _explain(self, exc):
        if self.explain_error is not None:
            raise self.explain_error
        attach(exc, self.outcome, self.attempts())
        return self.outcome is UNKNOWN


async def give(value):
    """Return something."""
    return value


async def fail(error):
    """Raise something."""
    raise error


async def ended(write):
    """What a write ends with, if that is an exception."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        await write
    return caught.value


class TestAnswers:
    @pytest.mark.parametrize("doubt", [True, False])
    async def test_a_result(self, doubt):
        """The lease ends as the answer says, the watch is told, and the result is kept."""
        lease = Lease()
        write = Write(lease)
        write._run(give({"doubt": doubt, "result": 7}))
        assert [7, 7, 7] == [await write, await write, write.result()]
        assert ([(None, doubt)], [(None, None)]) == (lease.ended, write.watch.ended)
        assert write.exception() is None

    async def test_that_can_not_be_read(self):
        """What the result raises is told as it is; the session ends by the answer all the same."""
        lease = Lease()
        write = Write(lease)
        write.result_error = error = ZeroDivisionError()
        attach(error, APPLIED, [])
        write._run(give({"doubt": False}))
        assert error is await ended(write)
        assert ([(None, False)], [(error, APPLIED)]) == (lease.ended, write.watch.ended)

    async def test_that_make_no_sense(self):
        """What can't even be looked at leaves the session as its error says."""
        lease = Lease()
        write = Write(lease)
        write._run(give({}))
        error = await ended(write)
        assert (KeyError, UNKNOWN) == (type(error), outcome_of(error))
        assert [(error, True)] == lease.ended


class TestErrors:
    @pytest.mark.parametrize("outcome", [NOT_APPLIED, UNKNOWN])
    async def test_tell_how_it_ended(self, outcome):
        """Before anybody is told; what is in doubt spoils the session."""
        lease, error = Lease(), ValueError("no")
        write = Write(lease)
        write.outcome = outcome
        write._run(fail(error))
        assert error is await ended(write)
        assert [(error, outcome is UNKNOWN)] == lease.ended
        assert [(error, outcome)] == write.watch.ended
        assert write.exception() is error

    async def test_that_a_future_can_not_hold(self):
        """A StopIteration is the cause of another error."""
        write = Write()
        error = StopIteration(7)
        write._fail(error)
        found = await ended(write)
        assert (RuntimeError, error) == (type(found), found.__cause__)
        assert [(found, UNKNOWN)] == write.watch.ended

    async def test_that_can_not_be_explained(self):
        """It ends all the same, and its session counts as in doubt."""
        lease, error = Lease(), ValueError("no")
        write = Write(lease)
        write.explain_error = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            write._fail(error)
        assert error is await ended(write)
        assert ([(error, True)], [(error, None)]) == (lease.ended, write.watch.ended)


class TestTasks:
    async def test_that_can_not_be_made(self):
        """The write ends with what a task factory raises, and nothing is left unawaited."""
        write, error, coroutine = Write(), ZeroDivisionError(), give({})

        def refuse(*_, **__):
            raise error

        loop = asyncio.get_running_loop()
        loop.set_task_factory(refuse)
        try:
            write._run(coroutine)
        finally:
            loop.set_task_factory(None)
        assert (None, True) == (coroutine.cr_frame, write.done())
        assert error is await ended(write)

    @pytest.mark.parametrize("is_given", [True, False])
    async def test_their_context(self, is_given):
        """It is the one that is given, else that of whoever begins them."""
        write, context = Write(), contextvars.copy_context()
        context.run(CALLER.set, "given")
        CALLER.set("beginning")

        async def tell():
            return {"doubt": False, "result": CALLER.get()}

        write._run(tell(), context if is_given else None)
        assert ("given" if is_given else "beginning") == await write


class TestCancelling:
    async def test_what_has_no_task(self):
        """It ends at once, as the reason for which it is given up says; a second time is late."""
        lease = Lease()
        write = Write(lease)
        write.outcome = NOT_APPLIED
        assert [True, False] == [write.cancel("enough"), write.cancel("again")]
        assert write.cancelled()
        error = await ended(write)
        assert ([error], ("enough",)) == (write.abandoned, error.args)
        assert ([(error, False)], [(error, NOT_APPLIED)]) == (lease.ended, write.watch.ended)
        for ask in (write.result, write.exception):
            with pytest.raises(asyncio.CancelledError) as caught:
                ask()
            assert error is caught.value

    async def test_whatever_is_raised_meanwhile(self):
        """Nobody waits for ever."""
        write = Write()
        write.abandon_error = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            write.cancel()
        assert isinstance(await ended(write), asyncio.CancelledError)
        assert 1 == len(write.watch.ended)

    async def test_a_task_that_goes_on(self):
        """The task is told, and may still come to an end of its own."""
        write = Write()

        async def stubborn():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as exc:
                return {"doubt": False, "result": exc.args}

        write._run(stubborn())
        await asyncio.sleep(0)
        assert write.cancel("enough")
        assert ([], False) == (write.abandoned, write.done())
        assert ("enough",) == await write
        assert not write.cancelled()

    @pytest.mark.parametrize("outcome", [APPLIED, NOT_APPLIED, UNKNOWN])
    async def test_whoever_awaits_what_has_just_ended(self, outcome):
        """The cancellation knows how the write ended, and what was tried."""
        write = Write()

        async def wait():
            await write

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        if outcome is APPLIED:
            write._take({"doubt": False, "result": 7})
        else:
            write.outcome = outcome
            write._fail(ValueError("no"))
        task.cancel()
        error = await ended(task)
        assert (asyncio.CancelledError, outcome) == (type(error), outcome_of(error))
        assert (TRIED,) == attempts_of(error)
