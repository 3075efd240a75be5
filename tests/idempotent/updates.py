"""Updates, with a document each, that may and may not be run again."""

from dataclasses import dataclass, field
from typing import Any

from bson import Regex


@dataclass
class Case:
    """An update of one document."""

    update: Any
    document: dict
    filter: dict = field(default_factory=dict)
    array_filters: list | None = None
    let: dict | None = None
    refused: tuple[str, ...] = ()
    again: bool = True
    """Of a refused one: whether a second run changes this document once more."""

    def __str__(self):
        return f"{self.filter or ''}{self.update}{self.array_filters or ''}{self.let or ''}"


ITEMS = {"items": [{"id": 1, "state": "new", "n": 1}, {"id": 2, "state": "new", "n": 5}]}

REPEATABLE = [
    Case({"$set": {"a": 1, "b.c": [1]}}, {"a": 0}),
    Case({"$set": {"a": {"$x": 1, "b": "$c"}}}, {"c": 5}),
    Case({"$set": {"a.0": 1}}, {"a": [5, 6]}),
    Case({"$unset": {"a": "", "b.c": ""}}, {"a": 1, "b": {"c": 1, "d": 1}}),
    Case({"$unset": {"a.0": ""}}, {"a": [5, 6]}),
    Case({"$setOnInsert": {"a": 1}}, {"a": 0}),
    Case({"$min": {"a": 3}, "$max": {"b": 3}}, {"a": 5, "b": 1}),
    Case({"$addToSet": {"a": 1}}, {"a": [2]}),
    Case({"$addToSet": {"a": {"$each": [1, 2, 2, {"x": 1}]}}}, {"a": [2]}),
    Case({"$pull": {"a": {"$gte": 3}}}, {"a": [1, 3, 3, 5]}),
    Case({"$pull": {"items": {"state": "new"}}}, ITEMS),
    Case({"$pullAll": {"a": [1, 2]}}, {"a": [1, 2, 2, 3]}),
    Case({"$rename": {"a": "b"}}, {"a": 1, "b": 2}),
    Case({"$rename": {"a.x": "b.x"}}, {"a": {"x": 1}}),
    Case({"$bit": {"a": {"and": 12}, "b": {"or": 3}}}, {"a": 10, "b": 4}),
    Case({"$bit": {"a": {"and": 12, "or": 3}}}, {"a": 10}),
    Case({"$set": {"a": 1}, "$unset": {"b": ""}, "$addToSet": {"c": 1}}, {"b": 1}),
    Case({"$set": {"state": "done"}}, {"state": "new"}, {"state": "new"}),
    # Elements of arrays.
    Case({"$set": {"items.$[].state": "done"}}, ITEMS),
    Case({"$min": {"items.$[].n": 3}}, ITEMS),
    Case({"$set": {"items.$.n": 9}}, ITEMS, {"items.id": 2}),
    Case({"$set": {"items.$.n": 9}}, ITEMS, {"items": {"$elemMatch": {"id": 2, "state": "new"}}}),
    Case({"$set": {"items.$[e].state": "done"}}, ITEMS, array_filters=[{"e.state": "new"}]),
    Case({"$set": {"a.$[e]": 0}}, {"a": [1, 5]}, array_filters=[{"e": {"$gte": 3}}]),
    Case(
        {"$set": {"items.$[e].state": "done", "items.$[e].n": 0}},
        ITEMS,
        array_filters=[{"e.state": "new", "e.n": {"$gt": 3}}],
    ),
    Case(
        {"$set": {"items.$[e].n": 9, "other": 1}},
        ITEMS,
        array_filters=[{"$or": [{"e.id": 2}, {"e.id": 5}]}],
    ),
    Case(
        {"$set": {"a.$[x].done": 1, "a.$[x].b.$[y].c": 1}},
        {"a": [{"k": 1, "b": [{"c": 0}, {"c": 5}]}, {"k": 2, "b": [{"c": 0}]}]},
        array_filters=[{"x.k": 1}, {"y.c": 0}],
    ),
    # A mark, which the filter leaves out.
    Case({"$inc": {"a": 1}, "$addToSet": {"jobs": 7}}, {"a": 1}, {"jobs": {"$ne": 7}}),
    Case({"$inc": {"a": 1}, "$addToSet": {"jobs": 7}}, {"jobs": [6]}, {"jobs": {"$ne": 7}}),
    Case({"$mul": {"a": 2}, "$set": {"job": "x"}}, {"a": 1}, {"$and": [{"job": {"$ne": "x"}}]}),
    Case(
        {"$set": {"items.$.state": "old", "job.id": 7}, "$push": {"a": 1}},
        ITEMS,
        {"items.state": "new", "job.id": {"$ne": 7, "$exists": False}},
    ),
    # Pipelines.
    Case([{"$set": {"a": 1, "b": {"c": "x"}}}], {"b": {"d": 1}}),
    Case([{"$addFields": {"a": {"$add": ["$b", 1]}, "i": "$_id"}}], {"b": 1}),
    Case([{"$set": {"a": {"$literal": "$a"}}}], {"a": 1}),
    Case([{"$set": {"a": "$$REMOVE"}}], {"a": 1}),
    Case([{"$set": {"a": "$b"}}], {"b": {"x": 1}, "a": {"y": 1}}),
    Case([{"$set": {"a.b": 1}}], {"a": [{"b": 0}, 5, []]}),
    Case([{"$unset": "a"}], {"a": 1}),
    Case([{"$unset": ["a", "b.c"]}, {"$set": {"d": "$e"}}], {"a": 1, "e": 2, "b": {"c": 1}}),
    Case([{"$project": {"a": 0, "b.c": 0}}], {"a": 1, "b": {"c": 1}}),
    Case([{"$project": {"a": 1, "b": True}}], {"a": 1, "c": 1}),
    Case([{"$replaceWith": {"_id": "$_id", "a": 1}}], {"b": 1}),
    Case([{"$replaceRoot": {"newRoot": {"a": {"$literal": {"x": "$y"}}}}}], {"b": 1}),
    Case(
        [{"$set": {"a": {"$map": {"input": "$b", "as": "e", "in": {"$add": ["$$e", 1]}}}}}],
        {"b": [1, 2]},
    ),
    Case([{"$set": {"a": {"$getField": {"field": "x", "input": "$b"}}}}], {"b": {"x": 1}}),
    Case([{"$set": {"a": {"$let": {"vars": {"t": "$b"}, "in": {"$add": ["$$t", 1]}}}}}], {"b": 1}),
    Case([{"$set": {"a": "$$given"}}], {}, let={"given": 5}),
]

NOT_REPEATABLE = [
    Case({"$inc": {"a": 1}}, {"a": 0}, refused=("$inc",)),
    Case({"$mul": {"a": 2}}, {"a": 1}, refused=("$mul",)),
    Case({"$push": {"a": 1}}, {"a": [1]}, refused=("$push",)),
    Case({"$pop": {"a": 1}}, {"a": [1, 2, 3]}, refused=("$pop",)),
    Case({"$currentDate": {"a": True}}, {}, refused=("$currentDate",)),
    Case({"$bit": {"a": {"xor": 5}}}, {"a": 1}, refused=("$bit",)),
    Case({"$set": {"a": 1}, "$inc": {"b": 1}, "$push": {"c": 1}}, {}, refused=("$inc", "$push")),
    # What is no mark: another value or field, one that is in a branch, one that is taken away.
    Case({"$inc": {"a": 1}, "$set": {"j": 7}}, {}, {"j": {"$ne": 8}}, refused=("$inc",)),
    Case({"$inc": {"a": 1}, "$set": {"k": 7}}, {}, {"j": {"$ne": 7}}, refused=("$inc",)),
    Case(
        {"$inc": {"a": 1}, "$set": {"j": 7}},
        {},
        {"$or": [{"j": {"$ne": 7}}, {"b": None}]},
        refused=("$inc",),
    ),
    Case({"$inc": {"a": 1}, "$pull": {"j": 7}}, {}, {"j": {"$ne": 7}}, refused=("$inc",)),
    # Nor one by a positional name, which a filter can't read.
    Case(
        {"$set": {"items.$.job": 7}, "$inc": {"items.$.n": 1}},
        ITEMS,
        {"items.id": 2, "items.$.job": {"$ne": 7}},
        refused=("$inc", "$"),
    ),
    Case(
        {"$set": {"items.$[].job": 7}, "$inc": {"a": 1}},
        ITEMS,
        {"items.$[].job": {"$ne": 7}},
        refused=("$inc",),
    ),
    Case(
        {"$set": {"items.$[e].job": 7}, "$inc": {"a": 1}},
        ITEMS,
        {"items.$[e].job": {"$ne": 7}},
        array_filters=[{"e.id": 2}],
        refused=("$inc",),
    ),
    Case({"$inc": {"a": 1}, "$max": {"j": 7}}, {"j": 8}, {"j": {"$ne": 7}}, refused=("$inc",)),
    Case(
        {"$inc": {"a": 1}, "$addToSet": {"j": {"$each": [7]}}},
        {},
        {"j": {"$ne": {"$each": [7]}}},
        refused=("$inc",),
    ),
    # The positional operator finds another element.
    Case({"$set": {"a.$": 82}}, {"a": [80, 80]}, {"a": 80}, refused=("$",)),
    Case({"$set": {"items.$.state": "old"}}, ITEMS, {"items.state": "new"}, refused=("$",)),
    Case(
        {"$max": {"items.$.n": 9}},
        ITEMS,
        {"items": {"$elemMatch": {"n": {"$lt": 7}}}},
        refused=("$",),
    ),
    Case(
        {"$set": {"items.$.state": "old"}},
        ITEMS,
        {"$and": [{"items.state": "new"}, {"_id": 1}]},
        refused=("$",),
    ),
    Case(
        {"$set": {"items.$.n": 9}},
        ITEMS,
        {"$or": [{"items.id": 1}, {"items.id": 2}]},
        refused=("$",),
        again=False,
    ),
    # An array filter finds other elements.
    Case(
        {"$set": {"items.$[e].n": 2, "items.$[f].state": "two"}},
        ITEMS,
        array_filters=[{"e.id": 1}, {"f.n": 2}],
        refused=("$[f]",),
    ),
    Case(
        {"$set": {"items.$[].n": 2, "items.$[f].state": "two"}},
        ITEMS,
        array_filters=[{"$or": [{"f.n": 2}, {"f.n": 3}]}],
        refused=("$[f]",),
    ),
    # Pipelines.
    Case([{"$set": {"a": {"$add": ["$a", 1]}}}], {"a": 1}, refused=("$set",)),
    Case([{"$set": {"a": "$b", "b": "$a"}}], {"a": 1, "b": 2}, refused=("$set",)),
    Case([{"$set": {"a": ["$$ROOT"]}}], {}, refused=("$set",)),
    Case([{"$set": {"a": {"b": "$$CURRENT.a"}}}], {"a": 1}, refused=("$set",)),
    Case([{"$set": {"a.b": ["$a"]}}], {"a": {"b": 1}}, refused=("$set",)),
    Case([{"$set": {"a": {"$max": ["$a", 5]}}}], {"a": 1}, refused=("$set",), again=False),
    Case([{"$set": {"n": "$a"}}, {"$unset": "a"}], {"a": 1}, refused=("$unset",)),
    Case([{"$set": {"a": 1}}, {"$set": {"a": 2}}], {}, refused=("$set",), again=False),
    Case([{"$set": {"a": "$$NOW"}}], {}, refused=("$$NOW",)),
    Case([{"$set": {"a": {"$rand": {}}}}], {}, refused=("$rand",)),
    Case([{"$set": {"a": "$$given"}}], {}, let={"given": {"$rand": {}}}, refused=("$rand",)),
    Case([{"$set": {"a": "$$given"}}], {}, let={"given": "$$NOW"}, refused=("$$NOW",)),
    Case([{"$set": {"a": [{"$getField": "a"}]}}], {"a": 1}, refused=("$set",)),
    Case([{"$replaceWith": {"a": "$b"}}], {"b": {"a": 1}}, refused=("$replaceWith",)),
    Case([{"$replaceRoot": {"newRoot": "$b"}}], {"b": {"b": {}}}, refused=("$replaceRoot",)),
    Case([{"$project": {"a": "$b"}}], {"b": 1}, refused=("$project",)),
    Case([{"$project": {"b": {"$literal": 1}, "a.b": []}}], {}, refused=("$project",), again=False),
    # By chance.
    Case(
        {"$set": {"a": 1}},
        {},
        {"$expr": {"$lt": [0.5, {"$rand": {}}]}},
        refused=("$rand",),
        again=False,
    ),
    Case({"$set": {"a": 1}}, {}, {"$sampleRate": 0.5}, refused=("$sampleRate",), again=False),
    Case({"$set": {"a": 1}}, {}, {"$where": "true"}, refused=("$where",), again=False),
]

# No server can be asked about these.
UNKNOWN = [
    Case({"$frobnicate": {"a": 1}}, {}, refused=("$frobnicate",)),
    Case({"$pushAll": {"a": [1]}}, {}, refused=("$pushAll",)),
    Case({"$bit": {"a": 5}}, {}, refused=("$bit",)),
    Case([{"$lookup": {}}], {}, refused=("$lookup",)),
    Case([{"$set": {"a": {"$newOperator": 1}}}], {}, refused=("$newOperator",)),
    Case([{"$set": {"a": {"$setUnion": ["$b", "$c"]}}}], {}, refused=("$setUnion",)),
    Case([{"$set": {"a": "$$FUTURE"}}], {}, refused=("$$FUTURE",)),
    Case(
        [{"$set": {"a": {"$let": {"vars": {"CURRENT": "$x"}, "in": "$a"}}}}],
        {},
        refused=("$set",),
    ),
    Case({"$pull": {"a": {"$where": "true"}}}, {}, refused=("$where",)),
    Case({"$set": {"a.$[e]": 1}}, {}, array_filters=[{"e": {"$where": "1"}}], refused=("$where",)),
]


@dataclass
class Upsert:
    """An update that inserts a document if there is none."""

    filter: dict
    update: Any
    unique_key: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def __str__(self):
        return f"{self.filter}{self.update}{self.unique_key or ''}"


UPSERTS = [
    Upsert({"_id": 1}, {"$set": {"a": 1}}),
    Upsert({"_id": 1}, {"$setOnInsert": {"a": 1}, "$addToSet": {"b": 1}}),
    Upsert({"_id": {"$eq": 1}, "a": 1}, {"$set": {"b": 1}}),
    Upsert({"$and": [{"_id": 1}, {"a.b": None}]}, {"$set": {"c": 1}}),
    Upsert({"_id": 1, "a": 1}, {"$set": {"a": 1, "b": 1}}),
    Upsert({"_id": {"x": 1, "y": 2}}, {"$set": {"a": 1}}),
    Upsert({"_id": 1, "tags": ["x"]}, {"$max": {"n": 1}}),
    Upsert({"k": 1}, {"$set": {"a": 1}}, ("k",)),
    Upsert({"k": 1, "l": 2}, {"$setOnInsert": {"k": 1, "a": 1}}, ("k", "l")),
    Upsert({"_id": 1}, [{"$set": {"a": 1}}]),
    Upsert({"_id": 1}, [{"$set": {"a": "$_id"}}]),
    Upsert({"k": 1}, [{"$set": {"a": "$k"}}], ("k",)),
]

REFUSED_UPSERTS = [
    Upsert(
        {"_id": 1, "j": {"$ne": 7}},
        {"$inc": {"a": 1}, "$addToSet": {"j": 7}},
        refused=("$inc", "upsert"),
    ),
    Upsert({}, {"$set": {"a": 1}}, refused=("upsert",)),
    Upsert({"k": 1}, {"$set": {"a": 1}}, refused=("upsert",)),
    Upsert({"k": 1}, {"$set": {"a": 1}}, ("k", "l"), refused=("upsert",)),
    Upsert({"_id": 1, "v": {"$lt": 3}}, {"$set": {"v": 3}}, refused=("upsert",)),
    Upsert({"_id": 1, "$or": [{"v": 3}, {"v": 4}]}, {"$set": {"a": 1}}, refused=("upsert",)),
    Upsert({"$and": [{"_id": 1}, {"v": {"$gt": 1}}]}, {"$set": {"a": 1}}, refused=("upsert",)),
    Upsert({"_id": {"$in": [1]}}, {"$set": {"a": 1}}, refused=("upsert",)),
    Upsert({"_id": 1, "name": Regex("^a")}, {"$set": {"a": 1}}, refused=("upsert",)),
    Upsert({"_id": 1, "state": "new"}, {"$set": {"state": "done"}}, refused=("$set",)),
    Upsert({"_id": 1, "a": 1}, {"$set": {"a": 1.0}}, refused=("$set",)),
    Upsert({"_id": 1, "a.b": 1}, {"$unset": {"a": ""}}, refused=("$unset",)),
    Upsert({"k": 1}, {"$rename": {"k": "l"}}, ("k",), refused=("$rename",)),
    Upsert({"_id": 1, "l": 1}, {"$rename": {"k": "l"}}, refused=("$rename",)),
    Upsert({"k": 1}, [{"$set": {"k": 2}}], ("k",), refused=("$set",)),
    Upsert({"_id": 1}, [{"$replaceWith": {"a": 1}}], refused=("$replaceWith",)),
    Upsert({"_id": 1, "a": None}, [{"$set": {"a": 5}}], refused=("$set",)),
    Upsert({"k": None}, [{"$set": {"k": 5}}], ("k",), refused=("$set",)),
    Upsert({"k": 1}, [{"$set": {"a": "$_id"}}], ("k",), refused=("$set",)),
]
