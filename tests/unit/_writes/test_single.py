"""What is said of a write of one command; no driver is asked."""

import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import AutoReconnect
from pymongo.write_concern import WriteConcern

from aioretry import Attempt, Outcome, attempts_of, outcome_of
from aioretry._commands.single import Insert
from aioretry._commands.target import Target
from aioretry._retry.command_execution import Execution, Numbering
from aioretry._retry.sessions import NO_LEASE
from aioretry._writes.single import WriteDoubt, explain, result_of, tried_for
from aioretry.errors import report_of

TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
A = ("a", 1)


def execution(*attempts):
    """A command that was tried so."""
    command = Insert({"_id": 7, "secret": "s3cr3t"}).command(TARGET)
    return Execution(command, NO_LEASE, None, Numbering.IF_SUPPORTED, attempts=list(attempts))


def lost(seconds=0.1, address=A):
    """An attempt without an answer."""
    return Attempt(address, 0.0, seconds, True, AutoReconnect("s3cr3t"))


class TestTriedFor:
    def test_each(self):
        """Who was asked, what came of it, and after how long."""
        tried = [lost(0.25), Attempt(None, 0.0, 1.0, False, AutoReconnect("no"))]
        tried += [Attempt(A, 0.0, 0.5, True), Attempt(A, 0.0, 0.75, True, None, {"ok": 1})]
        assert (
            "a:1 AutoReconnect after 0.250 s; no server AutoReconnect after 1.000 s; "
            "a:1 no answer after 0.500 s; a:1 success after 0.750 s"
        ) == tried_for(execution(*tried))

    @pytest.mark.parametrize(("count", "parts"), [(6, 6), (7, 7), (1000, 7)])
    def test_it_has_a_bounded_length(self, count, parts):
        """Of thousands of attempts the first and the last ones are told."""
        told = tried_for(execution(*(lost(number) for number in range(count)))).split("; ")
        assert parts == len(told)
        assert told[0].endswith("after 0.000 s")
        assert told[-1].endswith(f"after {count - 1}.000 s")
        assert [f"{count - 6} more"] * (count > 6) == [one for one in told if one.endswith("more")]


class TestExplain:
    def test_before_there_was_a_command(self):
        """Nothing was sent."""
        error = TypeError()
        assert Outcome.NOT_APPLIED is explain(error, None, None)
        assert (Outcome.NOT_APPLIED, ()) == (outcome_of(error), attempts_of(error))

    def test_one_attempt_of_known_outcome_has_no_note(self):
        """It says nothing that the error does not say."""
        attempt = Attempt(A, 0.0, 0.1, False, AutoReconnect("refused"))
        error = AutoReconnect("refused")
        assert Outcome.NOT_APPLIED is explain(error, execution(attempt), None)
        assert not hasattr(error, "__notes__")
        assert report_of(error).doubt is None

    def test_an_unknown_outcome(self):
        """It can be resolved, and the note says what was tried, but not of which document."""
        error, tried = AutoReconnect("lost"), execution(lost())
        assert Outcome.UNKNOWN is explain(error, tried, None)
        (note,) = error.__notes__
        assert note == (
            "aioretry: insert_one on db.c: a:1 AutoReconnect after 0.100 s; outcome: unknown"
        )
        doubt = report_of(error).doubt
        assert isinstance(doubt, WriteDoubt)
        assert tried is doubt.execution

    def test_again(self):
        """What resolving ends with is explained by all attempts."""
        tried = execution(lost())
        doubt, error = WriteDoubt(None, tried), AutoReconnect("again")
        tried.attempts.append(lost())
        doubt.explain(error)
        assert (Outcome.UNKNOWN, 2) == (outcome_of(error), len(attempts_of(error)))


def test_a_reply_that_is_not_what_it_should_be():
    """The write is applied all the same."""
    tried = execution(Attempt(A, 0.0, 0.1, True, None, {"ok": 1, "n": 1}))

    def fail(reply):
        raise ValueError(reply)

    assert 7 == result_of(tried, {"n": 1}).inserted_id
    tried.command.result = fail
    with pytest.raises(ValueError, match="'n': 1") as caught:
        result_of(tried, {"n": 1})
    assert (Outcome.APPLIED, 1) == (outcome_of(caught.value), len(attempts_of(caught.value)))
