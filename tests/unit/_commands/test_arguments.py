"""Arguments in the forms that PyMongo's methods take, and what of them is refused."""

from types import MappingProxyType

import pytest
from bson.son import SON

from aioretry._commands.arguments import fields_of, hint_of, index_document, require_bool


@pytest.mark.parametrize("value", [True, False])
def test_bools(value):
    """Both of them pass."""
    assert require_bool("upsert", value) is None


@pytest.mark.parametrize("value", [1, 0, None, "true", []])
def test_no_bool(value):
    """What is only as true or as false is refused, with its name and value."""
    with pytest.raises(TypeError) as caught:
        require_bool("upsert", value)
    assert f"upsert must be True or False, was: upsert={value}" == str(caught.value)


class TestIndexes:
    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ([("b", 1), ("a", -1)], [("b", 1), ("a", -1)]),
            (("b", "a"), [("b", 1), ("a", 1)]),
            (["b", ("a", -1)], [("b", 1), ("a", -1)]),
            ([["b", -1]], [("b", -1)]),
            ([("ab", "2d")], [("ab", "2d")]),
            ([("score", {"$meta": "textScore"})], [("score", {"$meta": "textScore"})]),
            ({"b": 1, "a": -1}, [("b", 1), ("a", -1)]),
            (SON([("b", 1), ("a", -1)]), [("b", 1), ("a", -1)]),
            (MappingProxyType({"b": -1}), [("b", -1)]),
            ([("a", 1), ("b", 1), ("a", -1)], [("a", -1), ("b", 1)]),
        ],
    )
    def test_forms(self, keys, expected):
        """Names are ascending, pairs and mappings keep their order and directions."""
        assert expected == list(index_document(keys).items())

    def test_are_copied(self):
        """Who changes the document does not change what the user gave."""
        keys = {"a": 1}
        index_document(keys)["b"] = 1
        assert {"a": 1} == keys

    @pytest.mark.parametrize("keys", ["a", None, 1, {"a"}, iter([("a", 1)]), {"a": 1}.items()])
    def test_no_index(self, keys):
        """Neither a single name nor anything without an order of its own is a list of pairs."""
        with pytest.raises(TypeError, match="must use a dictionary or a list of"):
            index_document(keys)

    @pytest.mark.parametrize("keys", [[], (), {}, SON()])
    def test_empty(self, keys):
        """An index has a key."""
        with pytest.raises(ValueError, match="must not be empty"):
            index_document(keys)

    @pytest.mark.parametrize(
        ("pair", "text"),
        [
            ((1, 1), "first item in each key pair must be an instance of str, not <class 'int'>"),
            ((b"a", 1), "not <class 'bytes'>"),
            (("a", None), "second item in each key pair must be 1, -1, '2d'"),
            (("a", 1.0), "not <class 'float'>"),
            (("a", [1]), "not <class 'list'>"),
        ],
    )
    @pytest.mark.parametrize("form", [list, dict], ids=["pairs", "mapping"])
    def test_bad_pairs(self, form, pair, text):
        """Each pair is looked at, also one behind a good one."""
        with pytest.raises(TypeError, match=text):
            index_document(form([("good", 1), pair]))


class TestHints:
    @pytest.mark.parametrize("hint", [None, "by_name", ""])
    def test_names(self, hint):
        """A name goes as it is, and so does none."""
        assert hint == hint_of(hint)

    @pytest.mark.parametrize("hint", [["a", ("b", -1)], {"a": 1, "b": -1}])
    def test_keys(self, hint):
        """Anything else is the index's keys."""
        assert {"a": 1, "b": -1} == hint_of(hint)

    @pytest.mark.parametrize(("hint", "kind"), [([], ValueError), (0, TypeError)])
    def test_what_is_false_is_a_hint_too(self, hint, kind):
        """It is refused, not left out."""
        with pytest.raises(kind):
            hint_of(hint)


class TestProjections:
    @pytest.mark.parametrize(
        ("projection", "expected"),
        [
            (["b.c", "a"], {"b.c": 1, "a": 1}),
            (("a",), {"a": 1}),
            ({"a", "b"}, {"a": 1, "b": 1}),
            ({"a": 0}.keys(), {"a": 1}),
            ([], {}),
        ],
    )
    def test_names(self, projection, expected):
        """Fields that are named are included."""
        assert expected == fields_of(projection)

    @pytest.mark.parametrize("projection", [{"_id": False}, SON(a=1), {}])
    def test_documents(self, projection):
        """A document is the projection itself."""
        assert projection is fields_of(projection)

    @pytest.mark.parametrize(
        ("projection", "text"),
        [
            (5, "must be a mapping or list"),
            (iter(["a"]), "must be a mapping or list"),
            (["a", 1], "each an instance of str"),
            ({b"a"}, "each an instance of str"),
        ],
    )
    def test_no_projection(self, projection, text):
        """An iterator is none, nor is a list with anything but names."""
        with pytest.raises(TypeError, match=text):
            fields_of(projection)
