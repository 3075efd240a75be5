"""What the reply to an accepted command means."""

import copy
from types import MappingProxyType

import pytest
from bson.son import SON
from pymongo.errors import DuplicateKeyError, WriteConcernError, WriteError, WTimeoutError

from aioretry._commands.replies import (
    alone,
    concern_error_document,
    error_in,
    has_retryable_concern_error,
    leaves_out,
    retryable_error_in,
    says_time_is_over,
    tells_each,
)

REFUSED = {"index": 0, "code": 121, "errmsg": "invalid"}
DUPLICATE = {"index": 0, "code": 11000, "errmsg": "twice"}
CONCERN = {"code": 100, "errmsg": "too few"}
WTIMEOUT = {"code": 64, "errmsg": "late", "errInfo": {"wtimeout": True}}


def errors(*indexes, code=11000):
    """Write errors with these indexes."""
    return [{"index": index, "code": code} for index in indexes]


class TestErrorIn:
    @pytest.mark.parametrize(
        "reply",
        [
            {"ok": 1, "n": 0},
            {"n": 1, "writeErrors": []},
            {"n": 1, "writeConcernError": None},
            {"n": 1, "writeConcernError": {}},
            {"n": 1, "errorLabels": ["RetryableWriteError"]},
        ],
    )
    def test_none(self, reply):
        """Neither what is empty nor a label alone is an error."""
        assert error_in(reply) is None

    @pytest.mark.parametrize(
        ("reply", "kind", "told"),
        [
            ({"writeErrors": [REFUSED]}, WriteError, REFUSED),
            ({"writeErrors": [DUPLICATE]}, DuplicateKeyError, DUPLICATE),
            ({"writeErrors": [DUPLICATE, REFUSED]}, WriteError, REFUSED),
            ({"writeErrors": [REFUSED], "writeConcernError": CONCERN}, WriteError, REFUSED),
            ({"writeConcernError": CONCERN}, WriteConcernError, CONCERN),
            ({"writeConcernError": WTIMEOUT}, WTimeoutError, WTIMEOUT),
            ({"writeConcernError": {"code": 50}}, WTimeoutError, {"code": 50}),
            (
                {"writeConcernError": {**CONCERN, "errInfo": None}},
                WriteConcernError,
                {**CONCERN, "errInfo": None},
            ),
            (
                {"writeConcernError": {**CONCERN, "errInfo": {"wtimeout": False}}},
                WriteConcernError,
                {**CONCERN, "errInfo": {"wtimeout": False}},
            ),
        ],
    )
    def test_kinds(self, reply, kind, told):
        """It is PyMongo's for it, of the last write error, or else of the concern."""
        error = error_in(reply)
        assert (kind, told["code"], told) == (type(error), error.code, error.details)
        assert str(error).startswith(told.get("errmsg", "") + ", full error: ")

    def test_the_cause(self):
        """Beside a write error, that of the concern is the cause, with the labels."""
        reply = {
            "writeErrors": [REFUSED],
            "writeConcernError": WTIMEOUT,
            "errorLabels": ["some"],
        }
        cause = error_in(reply).__cause__
        assert (WTimeoutError, 64, True) == (type(cause), cause.code, cause.has_error_label("some"))
        assert error_in({"writeErrors": [REFUSED], "writeConcernError": {}}).__cause__ is None


class TestConcernErrorDocument:
    def test_is_not_changed(self):
        """The labels are added to a copy."""
        reply = {"writeConcernError": {**CONCERN}, "errorLabels": ["some"]}
        before = copy.deepcopy(reply)
        assert {**CONCERN, "errorLabels": ["some"]} == concern_error_document(reply)
        assert before == reply

    @pytest.mark.parametrize("labels", [{}, {"errorLabels": []}])
    def test_without_labels(self, labels):
        """There is nothing to add."""
        reply = {"writeConcernError": CONCERN, **labels}
        assert CONCERN is concern_error_document(reply)

    @pytest.mark.parametrize(("made", "kind"), [(SON, SON), (MappingProxyType, dict)])
    def test_keeps_its_class(self, made, kind):
        """A dict stays what it is; what is none becomes one."""
        reply = {"writeConcernError": made(CONCERN), "errorLabels": ["some"]}
        document = concern_error_document(reply)
        assert (kind, ["some"]) == (type(document), document["errorLabels"])


class TestRetryable:
    @pytest.mark.parametrize(
        ("reply", "expected"),
        [
            ({}, False),
            ({"writeConcernError": None}, False),
            ({"writeConcernError": {"errmsg": "no code"}}, False),
            ({"writeConcernError": CONCERN}, False),
            ({"writeConcernError": {"code": 91}}, True),
            ({"code": 91, "writeErrors": errors(0, code=91)}, False),
        ],
    )
    def test_concern_errors(self, reply, expected):
        """Only the code of the concern's own error counts."""
        assert expected is has_retryable_concern_error(reply)

    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            ({"writeConcernError": {"code": 91}}, WriteConcernError),
            ({"writeErrors": [REFUSED], "writeConcernError": {"code": 91}}, WriteConcernError),
            ({"writeErrors": [REFUSED], "errorLabels": ["RetryableWriteError"]}, WriteError),
            ({"writeErrors": [REFUSED], "errorLabels": ["SystemOverloadedError"]}, WriteError),
            (
                {"writeConcernError": CONCERN, "errorLabels": ["RetryableWriteError"]},
                WriteConcernError,
            ),
            ({"writeConcernError": CONCERN}, None),
            ({"writeErrors": errors(0, code=91)}, None),
            ({"writeErrors": [REFUSED], "errorLabels": ["RetryableError"]}, None),
            ({"writeErrors": [REFUSED], "errorLabels": ["NoWritesPerformed"]}, None),
            ({"n": 1, "errorLabels": ["RetryableWriteError"]}, None),
            ({"n": 1}, None),
        ],
    )
    def test_in_a_bulk_operation(self, reply, kind):
        """A label or the concern's code has it sent again; a write error's code does not."""
        error = retryable_error_in(reply)
        assert kind is (None if error is None else type(error))


class TestSeveralInserts:
    @pytest.mark.parametrize("told", [None, {"index": 5, "code": 11000, "errmsg": "twice"}])
    def test_alone(self, told):
        """The parts that are shared stay, and nothing that was given changes."""
        reply = {"ok": 1, "n": 6, "writeErrors": errors(5), "writeConcernError": CONCERN}
        before = copy.deepcopy((reply, told))
        own = alone(reply, told)
        expected = (1, []) if told is None else (0, [{**told, "index": 0}])
        assert (*expected, CONCERN) == (own["n"], own["writeErrors"], own["writeConcernError"])
        assert before == (reply, told)

    @pytest.mark.parametrize(
        ("reply", "expected"),
        [
            ({"n": 3}, False),
            ({"n": 2}, True),
            ({"n": 2, "writeErrors": errors(1)}, False),
            ({"n": 1, "writeErrors": errors(1)}, True),
            ({"n": 0, "writeErrors": errors(0, 1, 2)}, False),
            ({"n": 2.0}, True),
            ({}, False),
        ],
    )
    def test_leaves_out(self, reply, expected):
        """Those that are done and those that are refused are all of them, or some are missing."""
        assert expected is leaves_out(reply, 3)

    @pytest.mark.parametrize(
        ("reply", "expected"),
        [
            ({"n": 3}, True),
            ({}, True),
            ({"n": 0, "writeErrors": errors(0, 1, 2)}, True),
            ({"n": 2, "writeErrors": errors(2)}, True),
            ({"n": 2, "writeErrors": errors(1)}, False),
            ({"n": 2, "writeErrors": errors(0)}, False),
            ({"n": 1, "writeErrors": errors(1, 2)}, False),
            ({"n": 2}, False),
            ({"n": 3, "writeErrors": errors(2)}, False),
        ],
    )
    def test_tells_each(self, reply, expected):
        """All, none, or all but the last: nothing else is sure of the indexes."""
        assert expected is tells_each(reply, 3)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"n": 1}, False),
        ({"writeErrors": errors(0), "writeConcernError": None}, False),
        ({"writeErrors": [*errors(0), *errors(1, code=50), *errors(2)]}, True),
        ({"writeErrors": errors(0), "writeConcernError": {"code": 50}}, True),
        ({"writeConcernError": WTIMEOUT}, False),
        ({"code": 50}, False),
    ],
)
def test_says_time_is_over(reply, expected):
    """Any of its errors may say so, by its code."""
    assert expected is says_time_is_over(reply)
