"""Documents that are encoded before they are sent: as PyMongo would, and cut between two."""

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from aioretry._commands.encoded import shown
from aioretry._drivers.motor import encode_documents

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


@pytest.mark.parametrize("is_sent", [True, False])
def test_for_those_who_look(is_sent):
    """A command shows its documents one by one, as dicts, whatever parts they were encoded in."""
    given_ones = [{"_id": number} for number in range(5)]
    parts = [encode_documents(given_ones[:3], OPTIONS), encode_documents(given_ones[3:], OPTIONS)]
    inner = RawBSONDocument(bson.encode({"deep": [{"x": 1}]}))
    body = {"insert": "c", "documents": parts, "let": [1], "empty": [], "query": inner}
    told = shown(body, OPTIONS.with_options(document_class=RawBSONDocument), is_sent=is_sent)
    assert {**body, "documents": given_ones, "query": {"deep": [{"x": 1}]}} == told
    assert {dict} == set(map(type, [told["query"], told["query"]["deep"][0], *told["documents"]]))


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\x0f\0\0\0\x06old\0\x06new\0\0", id="no value of Python's"),
        pytest.param(b"\x11\0\0\0\x08a\0\0\x08b\0\0\x08a\0\1\0", id="a name twice"),
        pytest.param(b"\x09\0\0\0\x02a\0\1\0", id="broken"),
    ],
)
def test_what_would_not_be_sent_as_it_is(raw):
    """It is left encoded where it is sent; what is only looked at may be told in another way."""
    document = RawBSONDocument(raw)
    assert [document] == shown({"documents": [document]}, OPTIONS, is_sent=True)["documents"]
