"""What the command of a group commit is made of."""

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.errors import DocumentTooLarge

from aioretry import DeadlineExceeded
from aioretry._commands.command import CommandLimits
from aioretry._commands.encoded import EncodedDocuments
from aioretry._writes.group.command import _joined, _refusal, latest, past
from aioretry.deadlines import Deadline

LIMITS = CommandLimits(100, 48_000_000, 100_000)


class Insert:
    """A member, as far as it is looked at."""

    def __init__(self, size, deadline=None):
        self.raw, self.deadline = b"x" * size, deadline


class TestDeadlines:
    def test_of_the_whole(self):
        """That which comes last; of those without any there is none."""
        soon, late = Deadline.after(1), Deadline.after(100)
        assert late is latest([soon, None, late, None])
        assert latest([None, None]) is None
        assert latest([]) is None

    @pytest.mark.parametrize(
        ("is_sent", "text"), [(False, "nothing was sent"), (True, "the server has not answered")]
    )
    def test_that_are_over(self, is_sent, text):
        """The error says whether the insert is on its way."""
        error = past("insert_one", is_sent=is_sent)
        assert isinstance(error, DeadlineExceeded)
        assert f"the deadline of insert_one is over; {text}" == str(error)


class TestRefusals:
    @pytest.mark.parametrize(("size", "is_refused"), [(110, False), (111, True)])
    def test_by_size(self, size, is_refused):
        """One that no server takes would have all of them refused."""
        error = _refusal(Insert(size), "insert_one", 110, LIMITS)
        assert is_refused is isinstance(error, DocumentTooLarge)
        assert not is_refused or ("111 bytes" in str(error) and "up to 100 bytes" in str(error))

    def test_by_time(self):
        """It is not sent any more."""
        assert isinstance(
            _refusal(Insert(1, Deadline.after(0)), "insert_one", 110, LIMITS), DeadlineExceeded
        )
        assert _refusal(Insert(1, Deadline.after(100)), "insert_one", 110, LIMITS) is None


class TestDocuments:
    RAWS = tuple(bson.encode({"_id": number, "x": "y" * number}) for number in range(3))

    def test_one_is_sent_as_any_insert(self):
        """So that the driver looks at its size as usual."""
        part = _joined([self.RAWS[1]])
        assert isinstance(part, RawBSONDocument)
        assert self.RAWS[1] == part.raw

    def test_several_are_one_piece(self):
        """In their order, with what the driver has to know of their sizes."""
        part = _joined(list(self.RAWS))
        assert isinstance(part, EncodedDocuments)
        assert [0, 1, 2] == [document["_id"] for document in part.documents()]
