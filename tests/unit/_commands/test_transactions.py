"""The commands that end a transaction."""

import pytest
from pymongo.errors import WTimeoutError
from pymongo.write_concern import WriteConcern

from aioretry._commands.transactions import abort, by_majority, commit, options

DEFAULT = WriteConcern()


@pytest.mark.parametrize(
    ("make", "operation", "name"),
    [
        (commit, "commit_transaction", "commitTransaction"),
        (abort, "abort_transaction", "abortTransaction"),
    ],
)
def test_what_is_sent(make, operation, name):
    """The name, and what routers know the transaction by."""
    command = make(DEFAULT, None)
    assert (operation, name, "admin") == (command.operation, command.name, command.namespace)
    assert {name: 1} == command.body
    token = {"recoveryShardId": "one"}
    assert {name: 1, "recoveryToken": token} == make(DEFAULT, token).body


def test_what_is_answered():
    """A write concern error is an error; all else tells nothing."""
    command = commit(DEFAULT, None)
    assert command.error_in({"ok": 1}) is None
    assert command.result({"ok": 1}) is None
    concern = {"code": 64, "errmsg": "waiting", "errInfo": {"wtimeout": True}}
    assert isinstance(command.error_in({"ok": 1, "writeConcernError": concern}), WTimeoutError)


@pytest.mark.parametrize(
    ("concern", "given", "sent"),
    [
        (DEFAULT, {}, {}),
        (DEFAULT, {"max_time_ms": 500}, {"maxTimeMS": 500}),
        (DEFAULT, {"max_time_ms": 500, "under_deadline": True}, {}),
        (WriteConcern(2, 70), {}, {"writeConcern": {"w": 2, "wtimeout": 70}}),
        (WriteConcern(2, 70), {"under_deadline": True}, {"writeConcern": {"w": 2}}),
    ],
)
def test_options(concern, given, sent):
    """A deadline takes the place of both time limits."""
    assert sent == options(concern, **{"under_deadline": False, **given})


@pytest.mark.parametrize(
    ("concern", "again"),
    [
        (DEFAULT, {"w": "majority", "wtimeout": 10_000}),
        (WriteConcern(1, j=True), {"w": "majority", "wtimeout": 10_000, "j": True}),
        (WriteConcern("majority", 70), {"w": "majority", "wtimeout": 70}),
    ],
)
def test_sent_again(concern, again):
    """By a majority, with the user's own time limit or ten seconds."""
    assert again == by_majority(concern).document
