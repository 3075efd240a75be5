"""Whose a read is, and that it leaves no doubt."""

from types import SimpleNamespace

import pytest
from pymongo import ReadPreference
from pymongo.read_concern import ReadConcern

from aioretry._commands.command import Reading
from aioretry._commands.reads import FindOne
from aioretry._writes.reading import ReadingArguments, ReadingCollection
from aioretry._writes.under_way import UnderWay


class Collection(ReadingCollection):
    read_preference = ReadPreference.PRIMARY

    def __init__(self, *, encrypts, is_load_balanced=True):
        self._write_path = SimpleNamespace(
            encrypts=encrypts,
            makes_transactions=not is_load_balanced,
            under_way=UnderWay(),
        )


def session(*, in_transaction=False, snapshot=False):
    return SimpleNamespace(
        in_transaction=in_transaction, options=SimpleNamespace(snapshot=snapshot)
    )


@pytest.mark.parametrize(
    ("encrypts", "given", "is_drivers"),
    [
        (False, None, False),
        (True, None, True),
        (False, session(), False),
        (False, session(in_transaction=True), True),
        (False, session(snapshot=True), True),
        (False, SimpleNamespace(in_transaction=False), False),
    ],
)
def test_whose_it_is(encrypts, given, is_drivers):
    assert Collection(encrypts=encrypts)._is_drivers_read(given) is is_drivers


def test_in_a_transaction_that_is_behind_no_load_balancer():
    given = session(in_transaction=True)
    collection = Collection(encrypts=False, is_load_balanced=False)
    assert not collection._is_drivers_read(given)
    collection.read_preference = ReadPreference.SECONDARY  # which the driver refuses
    assert collection._is_drivers_read(given)


def test_arguments_know_their_method():
    reading = Reading(ReadPreference.PRIMARY, ReadConcern())
    assert "find_one" == ReadingArguments(FindOne(), reading).operation
