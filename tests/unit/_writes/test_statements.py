"""What is told of a statement of a transaction."""

import asyncio
from types import SimpleNamespace

import pytest
from pymongo.errors import AutoReconnect, InvalidOperation, OperationFailure, PyMongoError

from aioretry import DeadlineExceeded, Outcome, attempts_of, outcome_of
from aioretry._writes.statements import Statement
from aioretry.errors import refusal

TRANSIENT = "TransientTransactionError"


@pytest.fixture
def statement(event_loop_of_test):
    """One that was not begun."""
    driver = SimpleNamespace(add_label=PyMongoError._add_error_label)
    coordinator = SimpleNamespace(loop=event_loop_of_test, driver=driver)
    return Statement(coordinator, SimpleNamespace(unpin=lambda: None), None, None, None)


@pytest.fixture
def event_loop_of_test():
    """A loop that does not run."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize(
    ("error", "is_transient"),
    [
        (AutoReconnect("lost"), True),
        (DeadlineExceeded("over"), True),
        (OperationFailure("no", 11000), False),
        (InvalidOperation("ended"), False),
    ],
)
def test_a_lost_connection_has_the_transaction_run_again(statement, error, is_transient):
    assert not statement._explain(error)
    assert is_transient is error.has_error_label(TRANSIENT)
    assert outcome_of(error) is None
    assert () == attempts_of(error)


def test_one_that_was_refused_says_so(statement):
    error = refusal(InvalidOperation("the run has ended"))
    statement._explain(error)
    assert Outcome.NOT_APPLIED is outcome_of(error)
