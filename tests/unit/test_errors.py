"""What an exception knows of the write that it came out of."""

from aioretry import Attempt, Outcome, attempts_of, outcome_of
from aioretry.errors import attach


class TestErrors:
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
