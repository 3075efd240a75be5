"""What retries cost, and successes earn."""

from aioretry._retry.budget import RetryBudget


def retries_of(budget):
    """How many retries it pays for now."""
    count = 0
    while budget.take():
        count += 1
    return count


def test_as_many_as_it_holds():
    assert retries_of(RetryBudget(3)) == 3


def test_successes_earn_a_tenth():
    """And a retry that succeeds its own back."""
    budget = RetryBudget(5)
    assert retries_of(budget) == 5
    for _ in range(19):
        budget.earn(by_retry=False)
    assert retries_of(budget) == 1
    budget.earn(by_retry=True)
    assert retries_of(budget) == 2


def test_no_more_than_it_holds():
    budget = RetryBudget(2)
    for _ in range(100):
        budget.earn(by_retry=True)
    assert retries_of(budget) == 2


def test_repr():
    budget = RetryBudget(10)
    budget.take()
    assert repr(budget) == "<RetryBudget 9.0 of 10>"
