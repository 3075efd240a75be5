"""The statements of bulk operations, taken from the front, and their kinds."""

import pytest
from pymongo.errors import WriteConcernError, WriteError

from aioretry._commands.statements import Batch, Kind, Run


class BrokenError(Exception):
    """What an iterator of the user raises."""


def numbered(count, error=None):
    """So many documents, and then an error."""
    yield from ({"_id": number} for number in range(count))
    if error is not None:
        raise error


def run_of(form, count, indexes=None):
    """A run of inserts."""
    return Run(Kind.INSERT, form(numbered(count)), indexes)


def numbers(statements):
    """The ids of documents."""
    return [statement["_id"] for statement in statements]


class TestKind:
    @pytest.mark.parametrize(
        ("name", "field"),
        [("insert", "documents"), ("update", "updates"), ("delete", "deletes")],
    )
    def test_field(self, name, field):
        """A kind is known by its command's name, and has its statements where that has them."""
        assert field == Kind(name).field

    @pytest.mark.parametrize(
        ("kind", "statements", "expected"),
        [
            (Kind.INSERT, [{"multi": True, "limit": 0}], False),
            (Kind.UPDATE, [{"multi": False}, {}], False),  # a replacement does not say
            (Kind.UPDATE, [{"multi": False}, {"multi": True}], True),
            (Kind.UPDATE, [], False),
            (Kind.DELETE, [{"limit": 1}, {"limit": 1}], False),
            (Kind.DELETE, [{"limit": 1}, {"limit": 0}], True),
            (Kind.DELETE, [], False),
        ],
    )
    def test_holds_multi(self, kind, statements, expected):
        """One statement without a limit is enough; a document's own fields say nothing."""
        assert expected is kind.holds_multi(statements)


@pytest.mark.parametrize("form", [list, iter])
class TestRun:
    def test_peeking_takes_nothing(self, form):
        """What was looked at comes again, and fewer or more of it if that is asked."""
        run = run_of(form, 5)
        assert [[0, 1], [0], [0, 1, 2, 3, 4], [0, 1]] == [
            numbers(run.peek(count)) for count in (2, 1, 9, 2)
        ]

    @pytest.mark.parametrize(
        ("indexes", "expected"),
        [(None, [[0, 1], [2], [3, 4]]), ([2, 3, 5, 7, 11], [[2, 3], [5], [7, 11]])],
    )
    def test_taking(self, form, indexes, expected):
        """Statements go on where the last ones ended, and so do their indexes."""
        run = run_of(form, 5, indexes)
        taken, found = [], []
        for count in (2, 1, 2):
            found.append(numbers(run.peek(count)))
            taken.append(list(run.take(count)))
        assert [[0, 1], [2], [3, 4]] == found
        assert expected == taken
        assert (Kind.INSERT, [], True) == (run.kind, run.peek(3), run.is_over())

    def test_index_at(self, form):
        """The offset counts from the next one, in the indexes of the call."""
        for indexes, expected in ((None, [2, 4]), (range(10, 20, 2), [14, 18])):
            run = run_of(form, 5, indexes)
            run.peek(2)
            run.take(2)
            assert expected == [run.index_at(0), run.index_at(2)]

    @pytest.mark.parametrize("count", [0, 1])
    def test_is_over(self, form, count):
        """It is when the last one is taken, and not before; to ask takes nothing."""
        run = run_of(form, count)
        assert (not count) is run.is_over()
        assert list(range(count)) == numbers(run.peek(1))
        run.take(count)
        assert run.is_over()


def test_a_list_is_not_changed():
    """What was taken stays in the user's list."""
    given = list(numbered(3))
    run = Run(Kind.INSERT, given)
    run.peek(2)
    run.take(2)
    assert [0, 1, 2] == numbers(given)
    assert [2] == numbers(run.peek(2))


class TestIterators:
    def test_are_read_as_far_as_is_asked(self):
        """What was read before is not read again, and to ask whether it is over reads one."""
        documents = numbered(9)
        run = Run(Kind.INSERT, documents)
        for count in (3, 3, 2):
            run.peek(count)
        run.take(1)
        run.peek(4)
        assert {"_id": 5} == next(documents)
        run.take(4)
        run.is_over()
        assert {"_id": 7} == next(documents)

    def test_that_fail(self):
        """The error comes when all before it are taken, and then each time."""
        run = Run(Kind.INSERT, numbered(3, BrokenError()))
        assert [0, 1, 2] == numbers(run.peek(5))
        assert [0, 1] == numbers(run.peek(2))
        run.take(2)
        assert ([2], False) == (numbers(run.peek(2)), run.is_over())
        run.take(1)
        for _ in range(2):
            assert not run.is_over()
            with pytest.raises(BrokenError):
                run.peek(1)

    def test_that_fail_are_not_asked_again(self):
        """One that would go on after its error would leave a gap."""

        class Stumbling:
            asked = 0

            def __iter__(self):
                return self

            def __next__(self):
                self.asked += 1
                if self.asked == 2:
                    raise BrokenError
                return {"_id": self.asked}

        documents = Stumbling()
        run = Run(Kind.INSERT, documents)
        assert [1] == numbers(run.peek(4)) == numbers(run.peek(4))
        assert 2 == documents.asked

    def test_that_are_interrupted(self):
        """What is no error of the iterator goes through at once, whatever it gave before."""
        run = Run(Kind.INSERT, numbered(2, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run.peek(3)

    def test_when_nobody_waits(self):
        """A run that is stopped ends its reading with the document that it gets."""
        read = []

        def documents():
            for number in range(9):
                run.is_stopped = number >= 2
                read.append(number)
                yield {"_id": number}

        run = Run(Kind.INSERT, documents())
        assert [0, 1, 2] == numbers(run.peek(9))
        assert [0, 1, 2] == read


class TestBatch:
    @pytest.mark.parametrize(
        "reply",
        [
            {"n": 1},
            {"n": 0, "writeErrors": [{"index": 0, "code": 91}]},
            {"n": 1, "writeConcernError": {"code": 64}},
        ],
    )
    def test_parts_of_the_result(self, reply):
        """What would not have the command sent again is no error of it, and not kept."""
        batch = Batch(Kind.INSERT)
        assert (None, {}) == (batch.error_in(reply), batch.answers)

    def test_answers(self):
        """Each error knows its reply, also where two are the same."""
        batch = Batch(Kind.UPDATE)
        concern = {"n": 1, "writeConcernError": {"code": 91}}
        labelled = {"writeErrors": [{"code": 8}], "errorLabels": ["RetryableWriteError"]}
        replies = [concern, labelled, dict(concern)]
        found = [batch.error_in(reply) for reply in replies]
        assert [WriteConcernError, WriteError, WriteConcernError] == list(map(type, found))
        assert found == list(batch.answers)
        assert all(
            batch.answers[error] is reply for error, reply in zip(found, replies, strict=True)
        )

    def test_begins_empty(self):
        """No two commands share their lists."""
        first, second = Batch(Kind.INSERT), Batch(Kind.INSERT)
        first.indexes.append(0)
        first.statements.append({})
        first.answers[WriteError("x")] = {}
        assert ([], [], [], {}, False) == (
            second.indexes,
            second.statements,
            second.encoded,
            second.answers,
            second.is_merged,
        )


def test_no_room_for_more_is_no_reason_to_tell_of_an_error():
    """What was read before the iterator broke is sent first, however little a server takes."""
    run = Run(Kind.INSERT, numbered(2, BrokenError()))
    assert [0, 1] == numbers(run.peek(3))
    assert [] == run.peek(0)
    assert [0, 1] == numbers(run.peek(2))
