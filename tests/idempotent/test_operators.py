"""Which updates may be run again, by their operators; no server is asked."""

import uuid

import pytest

from aioretry.idempotent import NotIdempotentError
from aioretry.idempotent._operators import OPERATORS, UpdateMany, refuse
from tests.idempotent.updates import (
    NOT_REPEATABLE,
    REFUSED_UPSERTS,
    REPEATABLE,
    UNKNOWN,
    UPSERTS,
)

# All that the manual of MongoDB 8.0 lists, and one that was removed with 3.6.
ALL_OPERATORS = {
    "$currentDate",
    "$inc",
    "$min",
    "$max",
    "$mul",
    "$rename",
    "$set",
    "$setOnInsert",
    "$unset",
    "$addToSet",
    "$pop",
    "$pull",
    "$push",
    "$pullAll",
    "$bit",
    "$pushAll",
}


def names_of(case, *, upsert=False):
    """What is refused of an update."""
    called = UpdateMany(
        case.filter,
        case.update,
        upsert,
        getattr(case, "array_filters", None) or (),
        getattr(case, "let", None),
        getattr(case, "unique_key", ()),
    )
    return tuple(dict.fromkeys(problem.name for problem in called.problems()))


def test_every_operator_is_classified():
    """There is a decision for each."""
    assert set(OPERATORS) == ALL_OPERATORS


@pytest.mark.parametrize("case", REPEATABLE, ids=str)
def test_is_accepted(case):
    """What changes nothing when it is run again is accepted."""
    assert () == names_of(case)


@pytest.mark.parametrize("case", NOT_REPEATABLE + UNKNOWN, ids=str)
def test_is_refused(case):
    """What might change something is refused, and so is what is not known; all of it is named."""
    assert case.refused == names_of(case)


@pytest.mark.parametrize("case", UPSERTS, ids=str)
def test_upsert_is_accepted(case):
    """An upsert is accepted if it finds what it has inserted."""
    assert () == names_of(case, upsert=True)


@pytest.mark.parametrize("case", REFUSED_UPSERTS, ids=str)
def test_upsert_is_refused(case):
    """It is refused if it might insert again; as an update alone it would be accepted."""
    assert case.refused == names_of(case, upsert=True)
    assert () == names_of(case)


def test_values_of_many_types_pin_an_upsert():
    """A field may be set to what the filter asks for, also to a UUID."""
    key = uuid.uuid4()
    update = {"$set": {"k": key, "a": 1}}
    assert [] == UpdateMany({"k": key}, update, upsert=True, unique_key=["k"]).problems()
    unknown = object()
    update = {"$set": {"k": unknown}}
    assert UpdateMany({"k": unknown}, update, upsert=True, unique_key=["k"]).problems()


def test_error_names_operators_and_no_values():
    """The text says which operators and why, and nothing of documents."""
    called = UpdateMany({"secret": "x"}, {"$inc": {"secret": 4711}, "$push": {"other": "y"}})
    with pytest.raises(NotIdempotentError) as caught:
        refuse("update_many", called.problems())
    assert ("$inc", "$push") == caught.value.operators
    assert str(caught.value) == (
        "update_many can't be repeated safely: $inc would add again; $push would append again"
    )
    assert isinstance(caught.value, ValueError)


def test_nothing_is_raised_without_problems():
    """An update that may be repeated is let through."""
    refuse("update_many", [])
