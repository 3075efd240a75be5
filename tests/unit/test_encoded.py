"""Documents that are encoded before they are sent: as PyMongo would, and cut between two."""

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from aioretry._encoded import with_documents
from aioretry._motor import encode_documents

OPTIONS = CodecOptions()
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("aé€", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(["_id", "a", "b", "c"])
forms = st.sampled_from([dict, bson.SON, lambda given_one: RawBSONDocument(bson.encode(given_one))])
documents = st.lists(
    st.builds(lambda form, fields: form(fields), forms, st.dictionaries(keys, values, min_size=1)),
    min_size=1,
    max_size=20,
)


@given(documents)
def test_as_one_by_one(given_ones):
    """What is made of many is what is made of each."""
    expected = [bson.encode(document) for document in given_ones]
    encoded = encode_documents(given_ones, OPTIONS)
    assert b"".join(expected) == encoded.raw
    assert expected == [document.raw for document in encoded.documents()]
    assert expected[-1] == encoded.document(len(expected) - 1).raw
    assert list(map(len, expected)) == encoded.sizes()
    assert max(map(len, expected)) == encoded.largest
    assert len(expected) == encoded.count


@given(documents, st.data())
def test_cut(given_ones, data):
    """Two parts are what they would have been if they had been encoded apart."""
    position = data.draw(st.integers(1, len(given_ones)))
    parts = encode_documents(given_ones, OPTIONS).cut(position)
    for part, its_documents in zip(
        parts, (given_ones[:position], given_ones[position:]), strict=True
    ):
        expected = [bson.encode(document) for document in its_documents]
        assert b"".join(expected) == part.raw
        assert len(expected) == part.count
        assert max(map(len, expected), default=0) == part.largest


def test_what_can_not_be_encoded():
    """One that can't be encoded refuses all."""
    with pytest.raises(InvalidDocument):
        encode_documents([{"x": 1}, {"x": object()}], OPTIONS)


def test_for_those_who_look():
    """A command shows its documents one by one, whatever parts they were encoded in."""
    given_ones = [{"_id": number} for number in range(5)]
    parts = [encode_documents(given_ones[:3], OPTIONS), encode_documents(given_ones[3:], OPTIONS)]
    shown = with_documents({"insert": "c", "documents": parts, "let": [1], "empty": []})
    assert given_ones == [dict(document) for document in shown.pop("documents")]
    assert {"insert": "c", "let": [1], "empty": []} == shown
