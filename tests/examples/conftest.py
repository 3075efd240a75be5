"""What the tests of the examples share."""

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from aioretry.testing import ReplicaSet
from tests.examples.services import new_name, with_database


@pytest.fixture
def stored_database(plain: MongoClient[dict[str, Any]]) -> Iterator[Database[dict[str, Any]]]:
    """A database of the test's own, read by PyMongo."""
    database = plain[new_name()]
    yield database
    plain.drop_database(database.name)


@pytest.fixture
def uri(replica_set: ReplicaSet, stored_database: Database[dict[str, Any]]) -> str:
    """The URI of the test's own database."""
    return with_database(replica_set.uri, stored_database.name)
