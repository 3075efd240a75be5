"""Transactions and reads at the simulated replica set, as they are at a real one."""

from random import Random

import pytest

from tests.simulation.commands import ABORT, COMMIT, TRANSIENT
from tests.simulation.members import LIFETIME
from tests.simulation.routers import Router
from tests.simulation.state import REMEMBERED_FOR

INCREMENT = [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}, "upsert": True}]
GONE = {"ok": 0.0, "code": 251, "errorLabels": [TRANSIENT]}


def gone(reply):
    """Tell whether a reply says that there is no such transaction, or was."""
    return {name: reply.get(name) for name in GONE} == GONE


class TestTransactions:
    """All of one or nothing, however it ends."""

    @pytest.mark.parametrize(("end", "count"), [(COMMIT, 2), (ABORT, 1)])
    def test_others_wait(self, world, end, count):
        """Whoever writes the same document outside waits for its end."""
        world.part(1, starts=True)
        world.send("update", INCREMENT)
        world.go_on(10.0)
        assert [] == world.answers
        world.end(end, 1)
        assert 1 == world.answers.pop()["n"]
        assert count == world.document(1)["n"]

    def test_others_wait_as_long_as_they_may(self, world):
        """And for a step-down."""
        world.ask("insert", [{"_id": 1}])
        world.part(1, starts=True)
        world.send("update", INCREMENT, max_time=2.0)
        world.send("update", INCREMENT, session=b"other", number=1)
        world.go_on(3.0)
        assert 50 == world.answers.pop()["code"]
        world.set.step_down()
        reply = world.answers.pop()
        assert reply["code"] in {189, 11602}
        assert ["RetryableWriteError"] == reply["errorLabels"]
        world.go_on(10.0)
        assert {"_id": 1} == world.document(1)

    @pytest.mark.parametrize(("number", "count"), [(None, 1), (1, None)])
    def test_an_upsert_waits_for_too_long(self, world, number, count):
        """What is to insert by an update waits on, and is too late then if it has an id."""
        world.part(1, starts=True)
        world.send("update", INCREMENT, number=number, max_time=2.0)
        world.go_on(LIFETIME[1])
        (reply,) = world.answers
        assert (50 if number else None) == reply.get("code")
        assert count == (world.document(1) or {}).get("n")

    def test_a_step_down(self, world):
        """What is open has ended then, and what was read as well; what was committed stays."""
        world.part(1, starts=True, session=b"open")
        world.part(1, starts=True, name="find", session=b"read")
        world.part(1, starts=True, key=2)
        for session in (b"read", b"t"):
            assert {"ok": 1.0} == world.end(COMMIT, 1, session=session)
        old = world.set.primary
        world.set.step_down()
        world.go_on(10.0)
        for session in (b"open", b"read"):
            assert gone(world.end(COMMIT, 1, session=session))
        assert {"ok": 1.0} == world.end(COMMIT, 1)
        if world.set.primary is not old:
            refused = world.end(COMMIT, 1, to=old)
            assert (10107, ["RetryableWriteError"]) == (refused["code"], refused["errorLabels"])
            assert [TRANSIENT] == world.part(1, to=old)["errorLabels"]

    def test_a_commit_that_is_rolled_back(self, world):
        """It goes with its entry of the oplog, and nobody knows of it any more."""
        old = world.set.primary
        world.part(1, starts=True)
        world.set.cut_off(old)
        assert {"ok": 1.0} == world.end(COMMIT, 1, w=1, to=old)
        assert 1 == old.state.documents("things")[1]["n"]
        world.go_on(30.0)
        world.set.join(old)
        world.go_on(30.0)
        assert 1 not in old.state.documents("things")
        assert gone(world.end(COMMIT, 1))

    def test_without_a_majority(self, world):
        """What says that there is no such transaction may be rolled back, and has no label."""
        for member in world.set.members:
            if member is not world.set.primary:
                world.set.freeze(member)
        reply = world.end(COMMIT, 1, wtimeout=0.5)
        assert (251, 64) == (reply["code"], reply["writeConcernError"]["code"])
        assert "errorLabels" not in reply

    @pytest.mark.parametrize("is_read", [True, False])
    def test_the_last_word(self, world, is_read):
        """A primary that was deposed unseen can't say how one has ended: a majority has to hear."""
        old = world.set.primary
        if is_read:
            world.part(1, starts=True, name="find")
        world.set.cut_off(old)
        world.send(COMMIT, [], session=b"t", number=1, autocommit=False, to=old)
        world.go_on(9.0)
        assert [] == world.answers
        world.go_on(30.0)
        assert "writeConcernError" in world.answers.pop()

    def test_forgotten(self, world):
        """A commit of which the record is gone is answered as one of an aborted transaction."""
        world.part(1, starts=True)
        world.end(COMMIT, 1)
        world.set.end_sessions([b"t"])
        assert {"ok": 1.0} == world.end(COMMIT, 1)
        world.go_on(2 * REMEMBERED_FOR)
        assert gone(world.end(COMMIT, 1))
        assert 1 == world.document(1)["n"]

    def test_too_old(self, world):
        """One that nobody ends is ended, and bars nobody any more."""
        world.part(1, starts=True)
        world.send("update", INCREMENT)
        world.go_on(LIFETIME[1])
        assert 1 == world.answers.pop()["n"]
        assert 1 == len(world.set.expired)
        assert gone(world.end(COMMIT, 1))
        assert 1 == world.document(1)["n"]


class TestReads:
    """What is seen where."""

    def others(self, world):
        """Return the secondaries."""
        return [member for member in world.set.members if member is not world.set.primary]

    def test_a_secondary(self, world):
        """It answers who asks for it, and is as far as it is."""
        secondary = self.others(world)[0]
        refused = world.ask("find", [], session=None, filter={"_id": 1}, to=secondary)
        assert (13435, None) == (refused["code"], refused.get("errorLabels"))
        anywhere = {"to": secondary, "$readPreference": {"mode": "secondary"}}
        world.set.freeze(secondary)
        world.ask("update", INCREMENT)
        world.set.thaw(secondary)
        secondary.is_pulling = True  # not yet
        assert world.found(1, **anywhere) is None
        secondary.pull(world.set.primary)
        assert 1 == world.found(1, **anywhere)["n"]

    def test_after_a_time(self, world):
        """Whoever wants to see what was written waits until it is there."""
        secondary = self.others(world)[0]
        world.set.freeze(secondary)
        world.send("update", INCREMENT)
        world.go_on(1.0)
        time = world.answers.pop()["operationTime"]
        world.set.thaw(secondary)
        secondary.is_pulling = True
        anywhere = {"to": secondary, "$readPreference": {"mode": "secondary"}}
        after = {"readConcern": {"afterClusterTime": time}}
        world.send("find", [], session=None, filter={"_id": 1}, **anywhere, **after)
        world.go_on(1.0)
        assert [] == world.answers
        secondary.pull(world.set.primary)
        assert 1 == world.answers.pop()["cursor"]["firstBatch"][0]["n"]

    def test_a_majority(self, world):
        """What may be rolled back is not seen by who wants what a majority has."""
        old = world.set.primary
        world.ask("update", INCREMENT)
        world.set.cut_off(old)
        world.send("update", INCREMENT, to=old, w=1)
        assert 1 == world.answers.pop()["n"]
        majority = {"readConcern": {"level": "majority"}}
        assert 2 == world.found(1, to=old)["n"]
        assert 1 == world.found(1, to=old, **majority)["n"]
        world.go_on(30.0)
        world.ask("update", INCREMENT)
        world.set.join(old)
        world.go_on(30.0)
        for member in world.set.members:
            anywhere = {"to": member, "$readPreference": {"mode": "nearest"}}
            assert 2 == world.found(1, **anywhere, **majority)["n"]


TOKEN = {"recoveryToken": {"recoveryShardId": "shard0"}}


class TestRouters:
    """Transactions over routers."""

    def routers(self, world):
        """Return two of them."""
        return [Router(world.set, number, Random(1), 0.0) for number in range(2)]

    def test_a_transaction(self, world):
        """It is known to the router that it was begun over."""
        one, other = self.routers(world)
        reply = world.part(1, starts=True, to=one)
        assert TOKEN["recoveryToken"] == reply["recoveryToken"]
        assert gone(world.part(1, to=other))
        assert 1 == world.part(1, key=2, to=one)["n"]
        assert {"ok": 1.0} == world.end(COMMIT, 1, to=one, **TOKEN)
        assert {"ok": 1.0} == world.end(COMMIT, 1, to=other, **TOKEN)
        assert gone(world.end(COMMIT, 1, to=other))
        assert (1, 1) == (world.document(1)["n"], world.document(2)["n"])

    @pytest.mark.parametrize("is_killed", [True, False])
    def test_another_one_is_to_commit(self, world, is_killed):
        """What is open is aborted by that."""
        one, other = self.routers(world)
        world.part(1, starts=True, to=one)
        if is_killed:
            one.kill()
            one.start()
        assert gone(world.end(COMMIT, 1, to=one if is_killed else other, **TOKEN))
        assert gone(world.end(COMMIT, 1, to=one, **TOKEN))
        assert world.document(1) is None

    def test_what_is_sent_again(self, world):
        """A commit, and a read; no other part of a transaction."""
        one, _ = self.routers(world)
        old = world.set.primary
        world.part(1, starts=True, to=one)
        where = {"to": one, "session": b"t", "number": 1, "autocommit": False}
        world.send("update", INCREMENT, **where)
        world.send("find", [], to=one, session=None, filter={"_id": 1})
        world.set.freeze(old)  # before they come there
        world.go_on(30.0)
        lost, found = sorted(world.answers, key=lambda reply: reply["ok"])
        assert (6, [TRANSIENT]) == (lost["code"], lost["errorLabels"])
        assert [] == found["cursor"]["firstBatch"]
        assert gone(world.end(COMMIT, 1, to=one))
