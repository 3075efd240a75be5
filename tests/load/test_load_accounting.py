"""The accounting of the load test, by tables."""

import pytest

from tests.load.accounting import (
    Answer,
    Asked,
    Complaint,
    Delivered,
    Stored,
    compare,
    complaints_of,
    figures_of,
    handed_on,
    longest_pause,
    percentile,
)

A = Stored("a", "tea", 2)
BEFORE = {"tea": 10, "milk": 5}


def asked(*ids: str, refused: int | None = None, quantity: int = 2) -> Asked:
    """An order of tea."""
    return Asked("key", "tea", quantity, set(ids), refused)


@pytest.mark.parametrize(
    ("orders", "stored", "tea_left", "wrong"),
    [
        ([asked("a")], [A], 8, {}),
        ([asked()], [], 10, {}),
        ([asked()], [A], 8, {}),
        ([asked("a")], [], 10, {"lost": 1}),
        ([asked("a", quantity=1)], [A], 8, {"lost": 1}),
        ([asked("a")], [A, Stored("b", "tea", 2)], 6, {"doubled": 1}),
        ([asked("a"), asked()], [A, Stored("b", "tea", 2)], 6, {}),
        ([asked(refused=422)], [A], 8, {"refused": 1, "doubled": 1}),
        ([asked("a", "b")], [A, Stored("b", "tea", 2)], 6, {"renamed": 1, "doubled": 1}),
        ([asked("a", "b")], [A], 8, {"renamed": 1, "lost": 1}),
        ([asked("a")], [A], 6, {"stock_off": 2}),
        ([asked("a")], [A], 10, {"stock_off": 2}),
    ],
    ids=[
        "once",
        "not there, not accepted",
        "there, client does not know",
        "lost",
        "another quantity",
        "doubled",
        "two, one of them undecided",
        "refused, yet there",
        "two ids, both there",
        "two ids, one there",
        "stock taken twice",
        "stock not taken",
    ],
)
def test_books(orders, stored, tea_left, wrong):
    """What is wrong is found, and nothing else."""
    books = compare(orders, stored, BEFORE, {"tea": tea_left, "milk": 5})
    fields = ("refused", "doubled", "lost", "renamed", "stock_off")
    assert wrong == {name: getattr(books, name) for name in fields if getattr(books, name)}
    assert books.is_true is not bool(wrong)


@pytest.mark.parametrize(
    ("statuses", "broken"),
    [([201, 504, 409], 0), ([500], 1), ([503, 201], 1), ([None, 502], 2), ([], 0)],
)
def test_broken_answers(statuses, broken):
    """Any 5xx but 504 is one, and so is a broken connection."""
    answers = [Answer(1.0, 0.1, status) for status in statuses]
    assert broken == figures_of(answers, seconds=2.0, deadline=5.0, grace=1.0).broken


def test_late_answers():
    """An answer is late when deadline and grace are over, whatever it says."""
    answers = [Answer(9.0, seconds, 504) for seconds in (4.0, 5.9, 6.1, 30.0)]
    assert 2 == figures_of(answers, seconds=40.0, deadline=5.0, grace=1.0).late


def test_complaints():
    """What was broken or late is put together by what it said."""
    answers = [
        Answer(1.0, 0.5, 201),
        Answer(3.0, 0.7, 500, "oh"),
        Answer(2.0, 0.5, 500, "oh"),
        Answer(4.0, 6.5, 504),
        Answer(5.0, 9.0, None, "reset"),
    ]
    assert complaints_of(answers, 6.0) == [
        Complaint("broken: 500 oh", 2, 2.0, 3.0, 0.7),
        Complaint("late: 504", 1, 4.0, 4.0, 6.5),
        Complaint("broken: no answer reset", 1, 5.0, 5.0, 9.0),
    ]


@pytest.mark.parametrize(
    ("times", "pause"),
    [
        ([], (0.0, 10.0)),
        ([1.0], (1.0, 9.0)),
        ([9.0, 1.0, 4.0], (4.0, 5.0)),
        ([6.0, 12.0], (0.0, 6.0)),
        ([0.0, 4.0, 10.0], (4.0, 6.0)),
    ],
)
def test_longest_pause(times, pause):
    """The ends of the run count; what comes after it does not."""
    assert pause == longest_pause(times, 10.0)


@pytest.mark.parametrize(
    ("values", "share", "value"),
    [([], 0.5, 0.0), ([1.0], 0.99, 1.0), ([1.0, 2.0, 3.0], 0.5, 2.0), (range(100), 0.99, 99)],
)
def test_percentile(values, share, value):
    """It is one of the values, and 0 where there are none."""
    assert value == percentile(values, share)


B = Stored("b", "tea", 1)
FIRST, SECOND = Delivered("1", "tea", "a", 8), Delivered("2", "tea", "b", 7)


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ([FIRST, SECOND], {}),
        ([FIRST, FIRST, SECOND, FIRST], {"again": 2}),  # by a relay that died meanwhile
        ([FIRST], {"lost": 1}),
        ([SECOND, FIRST], {"disordered": 1}),
        ([SECOND, FIRST, SECOND], {"disordered": 1, "again": 1}),
        ([FIRST, SECOND, Delivered("3", "tea", "c", 6)], {"strange": 1}),
        ([FIRST, SECOND, Delivered("3", "tea", "a", 6)], {"strange": 1}),
        ([FIRST, SECOND, Delivered("3", "milk", "c", 9)], {"strange": 1}),
    ],
)
def test_what_an_outbox_has_told(told, wrong):
    """Each stored order, with one id, those of an article in their order."""
    handed = handed_on([A, B], told)
    names = "again", "lost", "strange", "disordered"
    assert {name: getattr(handed, name) for name in names if getattr(handed, name)} == wrong
    assert handed.deliveries == len(told)
    assert handed.is_true == (wrong.keys() <= {"again"})
