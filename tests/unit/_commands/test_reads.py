"""Commands that read: what has a place in them, and what replies become."""

import bson
import pytest
from bson.codec_options import CodecOptions
from pymongo import ReadPreference
from pymongo.errors import ConfigurationError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from aioretry._commands.command import Reading
from aioretry._commands.reads import Count, Distinct, EstimatedCount, FindOne
from aioretry._commands.target import Target

TARGET = Target.of("db", "c", CodecOptions(), WriteConcern())
READING = Reading(ReadPreference.PRIMARY, ReadConcern())


def sent(arguments):
    """The fields of a command as a server gets them, in their order."""
    return list(bson.decode(bson.encode(arguments.command(TARGET, READING).body)).items())


def test_find_one():
    arguments = FindOne.of(3, {"sort": [("n", -1)], "skip": 1, "comment": "c", "hint": "i"})
    assert [
        ("find", "c"),
        ("filter", {"_id": 3}),
        ("sort", {"n": -1}),
        ("hint", "i"),
        ("comment", "c"),
        ("skip", 1),
        ("limit", 1),
        ("singleBatch", True),
    ] == sent(arguments)


@pytest.mark.parametrize(
    ("criteria", "options"),
    [
        ({"$query": {}}, {}),
        ({"query": 1}, {}),
        ({}, {"batch_size": 1}),
        ({}, {"skip": -1}),
        ({}, {"skip": True}),
        ({}, {"sort": []}),
        ({}, {"sort": "n"}),
        ({}, {"projection": {}}),
        ({}, {"let": 1}),
        ({}, {"max_time_ms": "1"}),
    ],
)
def test_what_is_left_to_the_driver(criteria, options):
    assert FindOne.of(criteria, options) is None


def test_what_was_given_may_change_after_the_call():
    criteria = {"n": 1}
    command = FindOne.of(criteria, {}).command(TARGET, READING)
    criteria["n"] = 2
    assert {"n": 1} == bson.decode(bson.encode(command.body))["filter"]


def test_count_documents():
    options = {"limit": 2, "skip": 1, "maxTimeMS": 5}
    pipeline = [
        {"$match": {"a": 1}},
        {"$skip": 1},
        {"$limit": 2},
        {"$group": {"_id": 1, "n": {"$sum": 1}}},
    ]
    assert [
        ("aggregate", "c"),
        ("pipeline", pipeline),
        ("cursor", {}),
        ("maxTimeMS", 5),
        ("comment", 0),
    ] == sent(Count({"a": 1}, 0, options))
    assert {"limit": 2, "skip": 1, "maxTimeMS": 5} == options


def test_distinct_has_one_filter():
    with pytest.raises(ConfigurationError, match="both"):
        sent(Distinct("n", {}, options={"query": {}}))
    assert [("distinct", "c"), ("key", "n"), ("query", {"a": 1})] == sent(Distinct("n", {"a": 1}))


def test_an_estimate_has_no_session():
    with pytest.raises(ConfigurationError, match="sessions"):
        sent(EstimatedCount(options={"session": None}))


@pytest.mark.parametrize(
    ("arguments", "reply", "result"),
    [
        (FindOne(), {"cursor": {"firstBatch": [{"a": 1}]}}, {"a": 1}),
        (FindOne(), {"cursor": {"firstBatch": []}}, None),
        (Count({}), {"cursor": {"firstBatch": [{"_id": 1, "n": 3}]}}, 3),
        (Count({}), {"cursor": {"firstBatch": []}}, 0),
        (EstimatedCount(), {"n": 3.0}, 3),
        (Distinct("n"), {"values": [1, 2]}, [1, 2]),
    ],
)
def test_results(arguments, reply, result):
    assert result == arguments.command(TARGET, READING).result(reply)
