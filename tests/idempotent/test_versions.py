"""What a version holds, what counts for it, and who has won."""

import pytest

from aioretry.idempotent import VersionConflict, Versioned
from aioretry.idempotent._versions import Comparison, Fields, Version, judge, stamp_of

SHA1 = "a" * 40
SHA256 = "sha256:" + "b" * 64
OTHER = "sha256:" + "c" * 64


def version(*saves, hash=SHA256, created=SHA256):
    """A version with these stamps."""
    return Version(hash, saves, created)


class TestVersion:
    def test_round_trip(self):
        """What is stored is what is read."""
        stored = Version(SHA256, ("b", "a"), OTHER, "shop-1")
        assert stored == Version.parse(stored.stored())

    def test_leaves_out_what_is_not_known(self):
        """A version takes no more room than it needs."""
        assert {"hash": SHA256, "saves": ["a"]} == Version(SHA256, ("a",)).stored()

    @pytest.mark.parametrize(
        ("value", "hash"),
        [(SHA1, f"sha1:{SHA1}"), (f"sha1:{SHA1}", f"sha1:{SHA1}"), (SHA256, SHA256)],
    )
    def test_old(self, value, hash):
        """A mere hash is a version, and is stored as it is as long as nobody saves."""
        old = Version.parse(value)
        assert (hash, (value,), True) == (old.hash, old.saves, old.is_old)
        assert value == old.stored()
        assert {"_id": {"$eq": 1}, "_version": {"$eq": value}} == old.filter("_version", 1)

    @pytest.mark.parametrize(
        "value",
        [
            None,
            1,
            "",
            "v1",
            "A" * 40,
            "a" * 64,
            f"md5:{SHA1}",
            f"{SHA1}\n",
            [],
            {},
            {"hash": SHA256},
            {"hash": SHA256, "saves": []},
            {"hash": SHA256, "saves": [1]},
            {"hash": SHA256, "saves": "a"},
            {"hash": 1, "saves": ["a"]},
            {"hash": "x", "saves": ["a"]},
            {"saves": ["a"]},
        ],
        ids=repr,
    )
    def test_what_is_none(self, value):
        """Anything else is not a version."""
        assert Version.parse(value) is None

    def test_next(self):
        """The next version remembers the latest saves, and what the document was created with."""
        following = version("c", "b", "a").next(OTHER, "d", "shop-1", 3)
        assert Version(OTHER, ("d", "c", "b"), SHA256, "shop-1") == following

    def test_next_of_an_old_one(self):
        """The first save of an old document remembers what it has replaced."""
        following = Version.parse(SHA1).next(OTHER, "a", None, 20)
        assert Version(OTHER, ("a", SHA1)) == following
        assert {
            "_id": {"$eq": 1},
            "v.saves": {"$eq": ["a", SHA1]},
            "v.hash": {"$eq": OTHER},
        } == following.filter("v", 1)


class TestJudge:
    HELD = version("a")
    NEW = HELD.next(OTHER, "b", None, 3)

    @pytest.mark.parametrize("reply_lost", [False, True])
    @pytest.mark.parametrize(
        ("stored", "verdict"),
        [
            (NEW, Comparison.SAVED),
            (version("d", "c", "b"), Comparison.SAVED),
            (version("c", "b", "a", hash=OTHER), Comparison.SAVED),
            (HELD, Comparison.BEHIND),
            (version("a", hash="sha256:" + "d" * 64), Comparison.CONFLICT),  # a key that came back
            (version("c", "a", hash=OTHER), Comparison.EQUAL),
            (version("d", "c", "a"), Comparison.CONFLICT),
        ],
    )
    def test_what_is_certain(self, stored, verdict, reply_lost):
        """As far as the stamps of the latest saves reach, there is no doubt."""
        assert verdict is judge(stored, self.HELD, self.NEW, reply_lost=reply_lost)

    def test_too_much_was_saved(self):
        """Beyond, a lost reply leaves it open, and nothing else does."""
        stored = version("f", "e", "d")
        assert Comparison.CONFLICT is judge(stored, self.HELD, self.NEW, reply_lost=False)
        assert Comparison.IN_DOUBT is judge(stored, self.HELD, self.NEW, reply_lost=True)
        equal = version("f", "e", "d", hash=OTHER)
        assert Comparison.EQUAL is judge(equal, self.HELD, self.NEW, reply_lost=False)
        assert Comparison.IN_DOUBT is judge(equal, self.HELD, self.NEW, reply_lost=True)

    def test_is_gone(self):
        """A document that is gone may have been deleted after it was saved."""
        assert Comparison.CONFLICT is judge(None, self.HELD, self.NEW, reply_lost=False)
        assert Comparison.IN_DOUBT is judge(None, self.HELD, self.NEW, reply_lost=True)


class TestStamps:
    def test_are_the_same_everywhere(self):
        """A key gives the same stamp in every process, today and tomorrow."""
        assert "3db178b4bec442926b803f20" == stamp_of("update", "order-42")

    def test_differ(self):
        """Other purposes, keys and contents have other stamps."""
        stamps = [("save", "k"), ("update", "k"), ("save", "l"), ("save", "k", "x"), ("save", "kx")]
        assert len(stamps) == len({stamp_of(*parts) for parts in stamps})


class TestFields:
    @pytest.mark.parametrize(
        ("only", "ignored", "content"),
        [
            (None, None, {"a": 1, "b": 2}),
            (None, ["b"], {"a": 1}),
            (None, [], {"a": 1, "b": 2}),
            (["a", "c"], None, {"a": 1}),
            ({"c"}, None, {}),
        ],
    )
    def test_content(self, only, ignored, content):
        """The id and the version never count."""
        document = {"_id": 1, "_version": "v", "a": 1, "b": 2}
        assert content == Fields.of("_version", only, ignored).content(document)

    @pytest.mark.parametrize(
        ("version", "only", "ignored", "error"),
        [
            ("_id", None, None, ValueError),
            ("", None, None, ValueError),
            ("a.b", None, None, ValueError),
            ("$v", None, None, ValueError),
            ("a\0", None, None, ValueError),
            (1, None, None, TypeError),
            ("v", "name", None, TypeError),
            ("v", None, b"name", TypeError),
            ("v", None, 1, TypeError),
            ("v", [1], None, TypeError),
            ("v", ["a"], ["b"], ValueError),
            ("v", [], None, ValueError),
            ("v", ["v"], None, ValueError),
            ("v", None, ["a.b"], ValueError),
            ("v", None, ["_id"], ValueError),
        ],
    )
    def test_bad_names(self, version, only, ignored, error):
        """Names that can't be those of such fields are refused."""
        with pytest.raises(error):
            Fields.of(version, only, ignored)


class TestConflict:
    CONFLICT = VersionConflict(
        "lost",
        expected=version("a"),
        new=OTHER,
        stored=Version(OTHER, ("b",), by="shop-1"),
        stored_document={"secret": "hidden"},
    )

    def test_says_who_won(self):
        """Its attributes have everything."""
        conflict = self.CONFLICT
        assert (SHA256, OTHER, OTHER) == (
            conflict.expected_version,
            conflict.new_version,
            conflict.stored_version,
        )
        assert "shop-1" == conflict.stored_by
        assert {"secret": "hidden"} == conflict.stored_document
        assert conflict.is_equal
        assert not conflict.is_deleted

    def test_shows_no_content(self):
        """Neither its text nor the result's has the document."""
        assert "hidden" not in f"{self.CONFLICT}{self.CONFLICT!r}"
        assert "hidden" not in repr(Versioned(1, SHA256, True, {"secret": "hidden"}))

    def test_of_a_document_that_is_gone(self):
        """Nobody has won then."""
        conflict = VersionConflict("gone", expected=version("a"), new=OTHER)
        assert conflict.is_deleted
        assert not conflict.is_equal
        assert conflict.stored_version is None
