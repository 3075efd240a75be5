"""What an exception knows of the write that it came out of."""

import asyncio

import pytest

from aioretry import Attempt, Outcome, attempts_of, outcome_of, partial_result_of, resolve
from aioretry._faces import settled
from aioretry.errors import attach


class TestErrors:
    @pytest.mark.parametrize("given", ["x", None, ValueError, asyncio.Future])
    @pytest.mark.parametrize("ask", [outcome_of, attempts_of, partial_result_of, resolve])
    async def test_what_is_no_exception(self, ask, given):
        """Whoever asks about something else, such as a result or a class, is told what to give."""
        kind = type(given).__name__
        with pytest.raises(TypeError, match=f"exc must be an exception, .*, not {kind}$"):
            await settled(ask(given))

    def test_foreign_exceptions_know_nothing(self):
        """An exception that is no write's has no outcome and no attempts."""
        assert (None, ()) == (outcome_of(ValueError()), attempts_of(ValueError()))

    def test_causes_and_contexts_are_followed(self):
        """An exception raised from a write's exception, or while handling it, answers for it."""
        inner = ValueError()
        attempt = Attempt(None, 0.0, 0.0, False)
        attach(inner, Outcome.UNKNOWN, [attempt])
        from_it = RuntimeError()
        from_it.__cause__ = inner
        during = KeyError()
        during.__context__ = from_it
        assert Outcome.UNKNOWN == outcome_of(during)
        assert (attempt,) == attempts_of(during)

    def test_circles_end(self):
        """A chain of exceptions that bites its tail ends."""
        one, other = ValueError(), ValueError()
        one.__cause__, other.__cause__ = other, one
        assert outcome_of(one) is None
