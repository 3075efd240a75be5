"""What is said of a bulk operation, from the answers to its commands. No server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo import InsertOne, UpdateOne
from pymongo.errors import BulkWriteError, DocumentTooLarge, InvalidDocument, OperationFailure

from aioretry import Outcome
from aioretry._drivers.motor import encode_documents
from aioretry._writes.bulk_result import BulkResult
from tests.unit.bulks import (
    INCREMENT,
    LARGE,
    breaking,
    documents,
    fill,
    held,
    inserting,
    limits,
    number_of,
    request,
    writing,
)

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN


def ok(command, **more):
    """The reply to a command that is applied."""
    return {"ok": 1, "n": len(held(command)), **more}


def write_error(index, code=11000):
    return {"index": index, "code": code, "errmsg": "scripted"}


CONCERN = {"code": 100, "errmsg": "scripted"}


def send(result, limits=LARGE, answer=ok):
    """Have the next command answered."""
    command, batch = fill(result.bulk, limits)
    result.merge(batch, answer(command), NOT_APPLIED)


def drain(bulk, limits=LARGE, answer=ok):
    """Send everything; return what came of it."""
    result = BulkResult(bulk)
    while result.has_more:
        send(result, limits, answer)
    return result


class TestMerging:
    """Replies become one result, in the indexes of the call."""

    def test_counts(self):
        """What the servers count is added up, of each kind."""
        requests = [request("i", 0), request("u", 1), request("d", 2)] * 2
        replies = iter(
            [{"n": 1}, {"n": 1, "nModified": 0}, {"n": 0}, {"n": 1}, {"n": 1, "nModified": 1}]
        )
        result = drain(writing(requests), answer=lambda _: next(replies, {"n": 1})).get()
        assert (2, 2, 1, 1) == (
            result.inserted_count,
            result.matched_count,
            result.modified_count,
            result.deleted_count,
        )

    @pytest.mark.parametrize("ordered", [True, False])
    def test_upserts(self, ordered):
        """Upserted ids are known by the index of their request, also in a second command."""
        requests = []
        for number in range(3):
            requests += [
                InsertOne({"_id": number}),
                UpdateOne({"_id": f"u{number}"}, INCREMENT, upsert=True),
            ]

        def answer(command):
            if command.name == "insert":
                return ok(command)
            upserted = [
                {"index": index, "_id": one["q"]["_id"]} for index, one in enumerate(held(command))
            ]
            return ok(command, nModified=0, upserted=upserted)

        result = drain(writing(requests, ordered=ordered), limits(statements=2), answer).get()
        assert {1: "u0", 3: "u1", 5: "u2"} == result.upserted_ids
        assert (3, 3, 0) == (result.inserted_count, result.upserted_count, result.matched_count)

    def test_write_errors_of_an_unordered_one(self):
        """They have the index of the call and the statement, sorted by index; others are sent."""
        requests = [request(kind, n) for n, kind in enumerate("uidiud")]
        result = drain(
            writing(requests, ordered=False),
            answer=lambda _: {"n": 1, "writeErrors": [write_error(1, code=7000)]},
        )
        with pytest.raises(BulkWriteError) as caught:
            result.get()
        found = caught.value.details["writeErrors"]
        assert [3, 4, 5] == [error["index"] for error in found]
        assert [3, 4, 5] == [number_of(error["op"]) for error in found]
        assert {(7000, "scripted")} == {(error["code"], error["errmsg"]) for error in found}

    def test_a_write_error_ends_an_ordered_one(self):
        """Nothing is sent after it."""
        replies = iter([{"n": 3}, {"n": 1, "writeErrors": [write_error(1)]}])
        result = drain(inserting(documents(9)), limits(statements=3), lambda _: next(replies))
        assert result.bulk.has_unsent
        with pytest.raises(BulkWriteError) as caught:
            result.get()
        assert 4 == caught.value.details["nInserted"]
        (error,) = caught.value.details["writeErrors"]
        assert (4, 4) == (error["index"], error["op"]["_id"])

    @pytest.mark.parametrize("ordered", [True, False])
    def test_concern_errors_are_gathered(self, ordered):
        """Those of every command are in the error, with their labels; none ends the operation."""
        result = drain(
            inserting(documents(9), ordered=ordered),
            limits(statements=3),
            lambda command: ok(command, writeConcernError=CONCERN, errorLabels=["some"]),
        )
        with pytest.raises(BulkWriteError) as caught:
            result.get()
        details = caught.value.details
        assert [CONCERN | {"errorLabels": ["some"]}] * 3 == details["writeConcernErrors"]
        assert (9, []) == (details["nInserted"], details["writeErrors"])

    def test_no_retryable_writes(self):
        """Code 20 in a write error is replaced by the error that tells what to do."""
        error = {"index": 0, "code": 20, "errmsg": "Transaction numbers are only allowed on a"}
        result = drain(inserting(documents(1)), answer=lambda _: {"n": 0, "writeErrors": [error]})
        with pytest.raises(OperationFailure, match="retryWrites=false") as caught:
            result.get()
        assert 20 == caught.value.code


class TestOutcomes:
    """How each statement has ended."""

    def outcomes(self, answer, *, ordered=True, count=7, denied=NOT_APPLIED):
        """Of seven documents in commands of three; the second command is answered so."""
        result = BulkResult(inserting(documents(count), ordered=ordered))
        for reply in [None, answer, None]:
            if not result.has_more:
                break
            command, batch = fill(result.bulk, limits(statements=3))
            result.merge(batch, ok(command) if reply is None else reply, denied)
        return result.partial().outcomes

    def test_all_applied(self):
        """What was acknowledged is applied."""
        assert (APPLIED,) * 7 == self.outcomes({"n": 3})

    @pytest.mark.parametrize("denied", [NOT_APPLIED, UNKNOWN])
    def test_a_write_error_in_an_ordered_one(self, denied):
        """Those before it are applied, those after it in its command ended as it did, and what was
        not sent is not applied."""
        answer = {"n": 1, "writeErrors": [write_error(1)]}
        expected = (APPLIED,) * 4 + (denied,) * 2 + (NOT_APPLIED,)
        assert expected == self.outcomes(answer, denied=denied)

    @pytest.mark.parametrize("denied", [NOT_APPLIED, UNKNOWN])
    def test_a_write_error_in_an_unordered_one(self, denied):
        """All others are applied."""
        answer = {"n": 2, "writeErrors": [write_error(1)]}
        expected = (APPLIED,) * 4 + (denied,) + (APPLIED,) * 2
        assert expected == self.outcomes(answer, ordered=False, denied=denied)

    def test_a_concern_error(self):
        """What was applied, but not as the concern asks, is unknown."""
        expected = (APPLIED,) * 3 + (UNKNOWN,) * 3 + (APPLIED,)
        assert expected == self.outcomes({"n": 3, "writeConcernError": CONCERN})

    def test_a_concern_error_beside_a_write_error(self):
        """The refused one is not applied all the same."""
        answer = {"n": 2, "writeConcernError": CONCERN, "writeErrors": [write_error(0)]}
        expected = (APPLIED,) * 3 + (NOT_APPLIED, UNKNOWN, UNKNOWN) + (APPLIED,)
        assert expected == self.outcomes(answer, ordered=False)

    @pytest.mark.parametrize("outcome", [NOT_APPLIED, UNKNOWN])
    @pytest.mark.parametrize("lazy", [True, False])
    def test_given_up(self, lazy, outcome):
        """The command without an answer ended as its attempts did; what comes after it is not
        applied, and not in the answer if nobody has taken it from an iterator."""
        result = BulkResult(inserting(iter(documents(9)) if lazy else documents(9)))
        send(result, limits(statements=3))
        _, batch = fill(result.bulk, limits(statements=3))
        result.give_up(batch, outcome)
        expected = (APPLIED,) * 3 + (outcome,) * 3 + ((NOT_APPLIED,) * 3 if not lazy else ())
        partial = result.partial()
        assert expected == partial.outcomes
        assert (3, True) == (partial.result.inserted_count, partial.result.acknowledged)

    def test_in_the_order_of_the_call(self):
        """Those of an unordered bulk_write are where their requests were."""
        requests = [request(kind, n) for n, kind in enumerate("duidui")]
        result = BulkResult(writing(requests, ordered=False))
        send(result)
        _, batch = fill(result.bulk)
        result.give_up(batch, UNKNOWN)
        expected = (NOT_APPLIED, UNKNOWN, APPLIED) * 2
        assert expected == result.partial().outcomes

    @given(
        kinds=st.lists(st.sampled_from("iud"), min_size=1, max_size=60),
        ordered=st.booleans(),
        statements=st.integers(1, 7),
    )
    def test_of_any_requests(self, kinds, ordered, statements):
        """However they are split: what all servers have acknowledged is applied."""
        requests = [request(kind, n) for n, kind in enumerate(kinds)]
        result = drain(writing(requests, ordered=ordered), limits(statements=statements))
        assert (APPLIED,) * len(kinds) == result.partial().outcomes
        assert APPLIED is result.outcome()

    @pytest.mark.parametrize("bad", [documents(1, 20_000)[0], {"x": object()}])
    def test_of_what_can_not_be_sent(self, bad):
        """What its command took is known, and not applied."""
        result = BulkResult(inserting(iter([*documents(4), bad, *documents(4)])))
        send(result, limits(statements=3))
        command, batch = result.bulk.next_command()
        with pytest.raises((DocumentTooLarge, InvalidDocument)):
            command.prepare(limits(statements=3, document=1000), encode_documents)
        result.give_up(batch, NOT_APPLIED)
        outcomes = result.partial().outcomes
        assert (APPLIED,) * 3 == outcomes[:3]
        assert set(outcomes[3:]) <= {NOT_APPLIED}

    def test_an_iterators_error_comes_too_late(self):
        """One behind the write error that ends an ordered operation is nobody's."""
        result = BulkResult(inserting(breaking(3)))
        send(
            result,
            limits(statements=3),
            lambda _: {"n": 0, "writeErrors": [write_error(0)]},
        )
        assert not result.has_more

    def test_of_all(self):
        """What they have in common; what was not sent, or differs, leaves the whole unknown."""
        result = BulkResult(inserting(iter(documents(4))))
        assert NOT_APPLIED is result.outcome()
        send(result, limits(statements=3))
        assert UNKNOWN is result.outcome()
        send(result, limits(statements=3))
        assert APPLIED is result.outcome()
