"""What a collection has its writes travel by; a client that only notes."""

from types import SimpleNamespace

import pytest

from aioretry._commands.single import Delete, Insert
from aioretry._writes.group.kinds import DELETES, INSERTS
from aioretry._writes.under_way import UnderWay
from aioretry._writes.writing import WritingCollection, is_in_transaction


class Queue:
    """Takes what travels, unless it is of no use."""

    def __init__(self, *, is_of_use=True):
        self.is_of_use = is_of_use
        self.loop = "loop"
        self.taken = []

    def add(self, arguments, deadline):
        self.taken.append((arguments, deadline))
        return "a future"


class Things(WritingCollection):
    """A collection whose queues are there."""

    def __init__(self, **queues):
        self._own_queues = queues
        coordinator = SimpleNamespace(loop="loop")
        self._write_path = SimpleNamespace(
            coordinator=lambda: coordinator,
            deadline=lambda: "its deadline",
            under_way=UnderWay(),
        )

    def _copy(self):
        copy = type(self)()
        copy._own_queues = self._own_queues
        return copy


@pytest.fixture
def queues():
    return {INSERTS: Queue(), DELETES: Queue(is_of_use=False)}


@pytest.fixture
def view(queues):
    """A coalesced view."""
    things = Things()
    things._own_queues = queues
    return things.coalesced()


class TestTogether:
    def test_in_a_view(self, view, queues):
        """It is taken by the queue of its kind, with its deadline."""
        document = Insert({})
        assert "a future" == view._together(INSERTS, document, None)
        assert [(document, "its deadline")] == queues[INSERTS].taken

    def test_alone(self, view, queues):
        """With a session or with options, where the queue is of no use, and outside of views."""
        assert view._together(INSERTS, Insert({}), object()) is None
        assert view._together(INSERTS, Insert({}, comment="why"), None) is None
        assert view._together(DELETES, Delete("delete_one", {"_id": 1}), None) is None
        plain = Things()
        plain._own_queues = queues
        assert plain._together(INSERTS, Insert({}), None) is None
        assert [] == queues[INSERTS].taken + queues[DELETES].taken

    @pytest.mark.parametrize("options", [{"max_documents": 0}, {"max_bytes": 40_000_001}])
    def test_out_of_range(self, options):
        """It is told when the view is made."""
        with pytest.raises(ValueError, match=next(iter(options))):
            Things().coalesced(**options)


def test_in_a_transaction():
    """Whatever has none is in none."""
    assert is_in_transaction(SimpleNamespace(in_transaction=True))
    for session in None, object(), SimpleNamespace(in_transaction=False):
        assert not is_in_transaction(session)
