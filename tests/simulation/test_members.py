"""The simulated replica set does what facts about the real one say. No library, no client."""

from random import Random

import pytest

from tests.simulation.commands import MAX_TIME
from tests.simulation.routers import Router
from tests.simulation.state import REMEMBERED_FOR

INSERT = [{"_id": 1}]
INCREMENT = [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}, "upsert": True}]


class TestTransactionIds:
    """What was done under one is known again."""

    def test_answers_from_memory(self, world):
        """The same id is executed once, and answered alike; the reply says so."""
        first = world.ask("update", INCREMENT, number=1)
        again = world.ask("update", INCREMENT, number=1)
        assert {**first, "retriedStmtIds": [0]} == again
        assert {"_id": 1, "n": 1} == world.document(1)

    def test_whatever_is_asked(self, world):
        """The id counts, and not what is asked."""
        world.ask("insert", INSERT, number=1)
        again = world.ask("insert", [{"_id": 2}], number=1)
        assert (1, [0]) == (again["n"], again["retriedStmtIds"])
        assert world.document(2) is None

    def test_an_older_one(self, world):
        """After a later number of the session, 225."""
        world.ask("insert", INSERT, number=2)
        assert 225 == world.ask("insert", [{"_id": 2}], number=1)["code"]

    def test_one_that_has_changed_nothing(self, world):
        """It is on no record, and executed when it is asked again; but its number counts."""
        nothing = [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]
        assert 0 == world.ask("update", nothing, number=1)["n"]
        world.ask("insert", INSERT, session=b"other", number=1)
        assert 1 == world.ask("update", nothing, number=1)["n"]
        assert 225 == world.ask("update", nothing, number=0)["code"]

    def test_in_parts(self, world):
        """Of an unordered insert, what was refused is tried again, and the rest is remembered."""
        world.ask("insert", INSERT, session=b"other", number=1)
        documents = [{"_id": 0}, {"_id": 1}, {"_id": 2}]
        first = world.ask("insert", documents, number=1, ordered=False)
        assert (2, [1]) == (first["n"], [error["index"] for error in first["writeErrors"]])
        world.ask("delete", [{"q": {"_id": 1}, "limit": 1}], session=b"other", number=2)
        again = world.ask("insert", documents, number=1, ordered=False)
        assert (3, [0, 2]) == (again["n"], again["retriedStmtIds"])
        assert "writeErrors" not in again

    def test_history_that_has_left_the_oplog(self, world):
        """217."""
        world.ask("insert", INSERT, number=1)
        world.set.primary.state.lose_history()
        assert 217 == world.ask("insert", INSERT, number=1)["code"]

    def test_find_and_modify(self, world):
        """It gives the same document again."""
        more = {"query": {"_id": 1}, "update": {"$inc": {"n": 1}}, "upsert": True, "new": True}
        first = world.ask("findAndModify", [], number=1, **more)
        again = world.ask("findAndModify", [], number=1, **more)
        assert {"_id": 1, "n": 1} == first["value"] == again["value"]

    def test_multi(self, world):
        """Multi statements have none."""
        multi = [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}]
        assert 72 == world.ask("update", multi, number=1)["code"]

    @pytest.mark.parametrize("is_used", [True, False])
    def test_forgotten(self, world, is_used):
        """Half an hour after the session was used for the last time, and not before."""
        world.ask("insert", INSERT, number=1)
        for _ in range(4):
            world.go_on(REMEMBERED_FOR / 3)
            if is_used:
                world.ask("insert", INSERT, number=1)
        world.go_on(600)
        again = world.ask("insert", INSERT, number=1)
        assert is_used == ("retriedStmtIds" in again)
        assert is_used == ("writeErrors" not in again)


class TestMajority:
    """What a majority has stays, and what it has not may go."""

    def cut_off_primary(self, world):
        """Take the primary from the others until there is another one."""
        old = world.set.primary
        world.set.cut_off(old)
        world.go_on(30.0)
        assert world.set.primary is not old
        return old

    def test_a_primary_that_is_cut_off(self, world):
        """It answers w: 1, and what it has answered is rolled back, with its record."""
        old = world.set.primary
        world.set.cut_off(old)
        world.send("insert", INSERT, to=old, number=1, w=1)
        world.send("insert", [{"_id": 2}], to=old, session=b"m", number=1)
        assert 1 == world.answers.pop()["n"]  # and none to the other one
        world.go_on(30.0)
        assert 11602 == world.answers.pop()["writeConcernError"]["code"]
        world.set.join(old)
        world.go_on(30.0)
        assert world.document(1) is None
        assert old.oplog == world.set.primary.oplog
        assert 1 == world.ask("insert", INSERT, number=1)["n"]

    def test_what_a_majority_has(self, world):
        """It is still there, with its record, whoever is the primary."""
        world.ask("update", INCREMENT, number=1)
        self.cut_off_primary(world)
        assert [0] == world.ask("update", INCREMENT, number=1)["retriedStmtIds"]
        assert {"_id": 1, "n": 1} == world.document(1)

    def test_what_has_settled(self, world):
        """All have it at once, whoever dies or is cut off then."""
        old = world.set.primary
        world.send("insert", INSERT, number=1)
        world.set.settle()
        assert 1 == world.answers.pop()["n"]
        world.set.kill(old, loses=True)
        world.go_on(30.0)
        assert world.set.primary is not old
        assert [0] == world.ask("insert", INSERT, number=1)["retriedStmtIds"]

    def test_an_answer_from_memory_waits_for_a_majority(self, world):
        """It is no better than what it is about."""
        primary = world.set.primary
        for member in world.set.members:
            if member is not primary:
                world.set.freeze(member)
        world.send("insert", INSERT, number=1, w=1)
        assert 1 == world.answers.pop()["n"]
        world.send("insert", INSERT, number=1, wtimeout=0.5)
        world.go_on(1.0)
        assert 64 == world.answers.pop()["writeConcernError"]["code"]

    def test_a_frozen_primary(self, world):
        """What it was sent meanwhile it executes when it goes on, and then rolls it back."""
        old = world.set.primary
        world.set.freeze(old)
        world.send("insert", INSERT, to=old, number=1, w=1)
        world.go_on(30.0)
        assert [] == world.answers
        world.set.thaw(old)
        assert 1 == world.answers.pop()["n"]
        world.go_on(5.0)
        assert not old.is_primary
        assert world.document(1) is None

    def test_a_crash(self, world):
        """What is not in the journal is lost with the process, and its memory too."""
        primary = world.set.primary
        world.send("insert", INSERT, number=1, w=1)
        world.set.kill(primary, loses=True)
        world.go_on(30.0)
        world.set.start(primary)
        world.go_on(30.0)
        assert world.document(1) is None
        assert 1 == world.ask("insert", INSERT, number=1)["n"]

    def test_without_a_majority(self, world):
        """Nobody is elected, and who is alone steps down."""
        first, second, third = world.set.members
        for member in (first, second):
            world.set.kill(member, loses=False)
        world.go_on(60.0)
        assert world.set.primary is None
        assert not third.is_primary
        world.set.start(first)
        world.go_on(60.0)
        assert world.set.primary in {first, third}

    def test_a_step_down(self, world):
        """Whoever waits is told so, with the label by which it is sent again."""
        primary = world.set.primary
        for member in world.set.members:
            if member is not primary:
                world.set.freeze(member)
        world.send("insert", INSERT, number=1)
        world.set.step_down()
        reply = world.answers.pop()
        assert (1, ["RetryableWriteError"]) == (reply["n"], reply["errorLabels"])
        assert 10107 == world.ask("insert", INSERT, number=1, to=primary)["code"]


class TestRouters:
    """What a router sends again, and what comes so late from it that nobody knows it any more."""

    def go_on_without_primary(self, world, seconds):
        """Have the primary frozen, and nobody else elected until some time is over."""
        old = world.set.primary
        others = [member for member in world.set.members if member is not old]
        world.set.freeze(old)
        for member in others:
            world.set.cut_off(member)
        world.go_on(seconds)
        for member in others:
            world.set.join(member)
        world.go_on(30.0)
        assert world.set.primary in others

    @pytest.mark.parametrize(("max_time", "is_sent"), [(None, True), (100.0, True), (59.0, False)])
    def test_what_is_not_answered(self, world, max_time, is_sent):
        """It is sent to the next primary, if its time is not over by then."""
        router = Router(world.set, 0, Random(1), 0.0)
        world.send("insert", INSERT, to=router, number=1, max_time=max_time)
        self.go_on_without_primary(world, 60.0)
        (reply,) = world.answers
        assert (1 if is_sent else None, None if is_sent else MAX_TIME) == (
            reply.get("n"),
            reply.get("code"),
        )
        assert is_sent == (world.document(1) is not None)

    @pytest.mark.parametrize(("seconds", "times"), [(600.0, 1), (2 * REMEMBERED_FOR, 2)])
    def test_a_primary_that_sleeps(self, world, seconds, times):
        """What was sent to it is executed once more by the next one, if that has forgotten it."""
        world.ask("update", INCREMENT, number=1)
        world.send("update", INCREMENT, to=Router(world.set, 0, Random(1), 0.0), number=1)
        self.go_on_without_primary(world, seconds)
        assert times == world.document(1)["n"]
        assert [False] * (times - 1) == [one.has_slept for one in world.set.belated]

    @pytest.mark.parametrize(("seconds", "times"), [(600.0, 1), (2 * REMEMBERED_FOR, 2)])
    def test_a_router_that_sleeps(self, world, seconds, times):
        """So is what lay in its queue, whatever time that has; it counts from when it is read."""
        world.ask("update", INCREMENT, number=1)
        router = Router(world.set, 0, Random(1), 0.0)
        router.freeze()
        world.send("update", INCREMENT, to=router, number=1, max_time=60.0)
        world.go_on(seconds)
        router.thaw()
        world.go_on(1.0)
        assert times == world.document(1)["n"]
        assert [True] * (times - 1) == [one.has_slept for one in world.set.belated]

    def test_a_clock_that_is_set_ahead(self, world):
        """What was done over a session that was ended is forgotten too early."""
        world.ask("update", INCREMENT, number=1)
        world.set.end_sessions([b"s"])
        world.clocks.set_wall(2 * REMEMBERED_FOR)
        world.go_on(400.0)
        world.ask("update", INCREMENT, number=1)
        assert 2 == world.document(1)["n"]
        assert [True] == [one.was_early for one in world.set.belated]

    def test_what_is_sent_too_late(self, world):
        """It is executed once more, too, and is not the router's fault."""
        world.ask("update", INCREMENT, number=1)
        world.go_on(2 * REMEMBERED_FOR)
        world.ask("update", INCREMENT, to=Router(world.set, 0, Random(1), 0.0), number=1)
        assert 2 == world.document(1)["n"]
        assert [] == world.set.belated
