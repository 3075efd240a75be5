"""What the sums in a reply say of each statement."""

import itertools

import pytest

from aioretry._writes.group.kinds import DELETES, INSERTS, UPDATES

REFUSED = {"index": 1, "code": 14, "errmsg": "no number"}
ALONE = {"index": 0, "code": 14, "errmsg": "no number"}
ONE, NONE, SAME = {"n": 1, "nModified": 1}, {"n": 0, "nModified": 0}, {"n": 1, "nModified": 0}
INSERTED = {"n": 1, "nModified": 0, "upserted": [{"index": 0, "_id": "new"}]}


def updates(reply, count):
    """What is said of each of some updates."""
    reading = UPDATES.reading({"ok": 1, **reply}, count)
    told = [reading.alone(index) for index in range(count)]
    assert reading.says_each is (None not in told)
    assert all(each is None or 1 == each["ok"] for each in told)
    return [each and {key: each[key] for key in each if key != "ok"} for each in told]


class TestUpdates:
    def test_all_or_nothing(self):
        """Then the sums are as good as a word for each."""
        assert [ONE, ONE, ONE] == updates({"n": 3, "nModified": 3}, 3)
        assert [SAME, SAME] == updates({"n": 2, "nModified": 0}, 2)
        assert [NONE, NONE] == updates({"n": 0, "nModified": 0}, 2)

    @pytest.mark.parametrize(("n", "modified"), [(1, 0), (1, 1), (2, 1)])
    def test_something_between(self, n, modified):
        """They do not say which."""
        assert [None, None] == updates({"n": n, "nModified": modified}, 2)

    def test_upserts_are_named(self):
        """And what is left when they are taken away is for the others."""
        reply = {"n": 3, "nModified": 2, "upserted": [{"index": 1, "_id": "new"}]}
        assert [ONE, INSERTED, ONE] == updates(reply, 3)
        assert [None, INSERTED, None] == updates({**reply, "n": 2, "nModified": 1}, 3)
        assert [NONE, INSERTED, NONE] == updates({**reply, "n": 1, "nModified": 0}, 3)

    def test_errors_are_named(self):
        """So are those."""
        reply = {"n": 1, "nModified": 1, "writeErrors": [REFUSED]}
        assert [ONE, {"n": 0, "writeErrors": [ALONE]}] == updates(reply, 2)
        assert not UPDATES.reading(reply, 2).is_plain

    def test_what_was_done_before_is_nobodys_result(self):
        """Numbers that a server remembers are those of the whole command."""
        assert [ONE, ONE] == updates({"n": 2, "nModified": 2, "retriedStmtIds": [0]}, 2)

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_of_any_results(self, count):
        """Whatever became of each: what is said of one is so, and of one alone it is said."""
        for results in itertools.product([ONE, NONE, SAME, INSERTED, None], repeat=count):
            reply = {"n": sum(each["n"] for each in results if each), "nModified": 0}
            reply["nModified"] = sum(each["nModified"] for each in results if each)
            places = enumerate(results)
            reply["upserted"] = [{"index": i, "_id": "new"} for i, e in places if e is INSERTED]
            refused = [i for i, each in enumerate(results) if each is None]
            reply["writeErrors"] = [{**REFUSED, "index": index} for index in refused]
            expected = [each or {"n": 0, "writeErrors": [ALONE]} for each in results]
            for said, so in zip(updates(reply, count), expected, strict=True):
                assert said == so or (said is None and count > 1)


class TestDeletes:
    @pytest.mark.parametrize(
        ("n", "told"), [(2, [{"n": 1}] * 2), (0, [{"n": 0}] * 2), (1, [None, None])]
    )
    def test_each(self, n, told):
        """All, or none, or nobody knows which."""
        reading = DELETES.reading({"n": n}, 2)
        assert told == [reading.alone(0), reading.alone(1)]
        assert reading.is_plain is (n != 1)


class TestInserts:
    def test_each(self):
        """Each is there but for those that are refused."""
        reading = INSERTS.reading({"n": 1, "writeErrors": [REFUSED]}, 2)
        assert {"n": 1, "writeErrors": []} == reading.alone(0)
        assert [ALONE] == reading.alone(1)["writeErrors"]
        assert not reading.is_plain

    def test_concern(self):
        """What the majority has not confirmed is nobody's success."""
        for kind in INSERTS, UPDATES, DELETES:
            reply = {"n": 1, "nModified": 1, "writeConcernError": {"code": 64}}
            assert not kind.reading(reply, 1).is_plain
