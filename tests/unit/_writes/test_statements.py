"""What is told of a statement of a transaction."""

import asyncio
from types import SimpleNamespace

import pytest
from pymongo.errors import AutoReconnect, InvalidOperation, OperationFailure, PyMongoError

from aioretry import DeadlineExceeded, Outcome, attempts_of, outcome_of
from aioretry._writes.statements import Statement
from aioretry.errors import refusal

TRANSIENT = "TransientTransactionError"


class Lease:
    """A hold on the session of a transaction that a router knows."""

    has_begun = True
    is_pinned = True

    def unpin(self):
        self.is_pinned = False


@pytest.fixture
def lease():
    return Lease()


@pytest.fixture
def statement(event_loop_of_test, lease):
    """One that was not begun."""
    driver = SimpleNamespace(add_label=PyMongoError._add_error_label)
    coordinator = SimpleNamespace(loop=event_loop_of_test, driver=driver, running=set())
    return Statement(coordinator, lease, None, None, None)


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


def labelled():
    """What a server says of a transaction that has ended."""
    return OperationFailure("gone", 251, {"errorLabels": [TRANSIENT]})


@pytest.mark.parametrize(
    ("error", "is_sent", "has_begun", "is_pinned"),
    [
        (DeadlineExceeded("over"), False, True, True),
        (DeadlineExceeded("over"), False, False, False),  # any router may begin it
        (DeadlineExceeded("over"), True, True, False),
        (AutoReconnect("could not connect"), False, True, False),
        (AutoReconnect("lost"), True, True, False),
        (labelled(), True, True, False),
        (OperationFailure("no", 11000), True, True, True),
    ],
)
def test_an_abort_goes_to_another_router(statement, lease, error, is_sent, has_begun, is_pinned):
    """Then the one that knows the transaction may be lost (transactions, "When to unpin")."""
    lease.has_begun = has_begun
    statement._execution = SimpleNamespace(attempts=[SimpleNamespace(sent=is_sent)])
    statement._explain(error)
    assert is_pinned is lease.is_pinned


def test_one_that_was_refused_says_so(statement):
    error = refusal(InvalidOperation("the run has ended"))
    statement._explain(error)
    assert Outcome.NOT_APPLIED is outcome_of(error)
