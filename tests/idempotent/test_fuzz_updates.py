"""Random updates: what is accepted changes nothing when a server runs it again."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from aioretry.idempotent._operators import OPERATORS, UpdateMany
from tests.idempotent.drivers import DATABASE

NAMES = st.sampled_from(["a", "b", "c", "a.b", "a.c", "b.a", "b.a.c", "c.0"])
SCALARS = st.one_of(st.integers(0, 3), st.sampled_from(["x", None, 1.5]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)

# Of aggregation expressions.
READS = NAMES.map(lambda name: f"${name}") | st.sampled_from(["$_id", "$$ROOT", "$$CURRENT.a"])
EXPRESSIONS = st.recursive(
    st.one_of(SCALARS, READS, st.just("$$REMOVE")),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2),
        st.lists(inner, max_size=2),
        st.tuples(
            st.sampled_from(["$ifNull", "$eq", "$concatArrays", "$mergeObjects", "$max"]),
            st.lists(inner, min_size=2, max_size=2),
        ).map(lambda pair: dict([pair])),
        inner.map(lambda value: {"$literal": value}),
        st.sampled_from("abc").map(lambda name: {"$getField": name}),
    ),
    max_leaves=4,
)
FIELDS = st.dictionaries(NAMES, EXPRESSIONS, min_size=1, max_size=2)
STAGES = st.one_of(
    FIELDS.map(lambda fields: {"$set": fields}),
    st.lists(NAMES, min_size=1, max_size=2, unique=True).map(lambda names: {"$unset": names}),
    st.dictionaries(NAMES, st.sampled_from([0, 1]), min_size=1, max_size=2).map(
        lambda fields: {"$project": fields}
    ),
    FIELDS.map(lambda fields: {"$project": fields}),
    st.dictionaries(st.sampled_from("abc"), EXPRESSIONS, max_size=2).map(
        lambda fields: {"$replaceWith": fields}
    ),
)
PIPELINES = st.lists(STAGES, min_size=1, max_size=3)

# Of update operators.
POSITIONS = ["a", "b", "a.b", "a.$", "a.$.b", "a.$[]", "a.$[].b", "a.$[e]", "a.$[e].b", "b.$[f].a"]
PATHS = st.sampled_from(POSITIONS)
OPERANDS = {
    "$rename": st.sampled_from(["c", "d", "b.c"]),
    "$bit": st.dictionaries(st.sampled_from(["and", "or", "xor"]), st.integers(0, 7), min_size=1),
    "$currentDate": st.just(True),
    "$pullAll": st.lists(SCALARS, max_size=2),
    "$pop": st.just(1),
}
OPERATIONS = st.sampled_from(sorted(set(OPERATORS) - {"$pushAll"})).flatmap(
    lambda name: st.tuples(
        st.just(name), st.dictionaries(PATHS, OPERANDS.get(name, VALUES), min_size=1, max_size=2)
    )
)
UPDATES = st.lists(OPERATIONS, min_size=1, max_size=2).map(dict)
CONDITIONS = st.one_of(SCALARS, st.integers(0, 3).map(lambda least: {"$gte": least}))
FILTERS = st.dictionaries(
    st.sampled_from(["a", "a.b", "a.c", "b", "b.a"]),
    st.one_of(CONDITIONS, CONDITIONS.map(lambda each: {"$not": {"$eq": each}})),
    max_size=2,
)
ARRAYS = st.dictionaries(
    st.sampled_from("ab"),
    st.lists(st.one_of(SCALARS, st.dictionaries(st.sampled_from("abc"), SCALARS)), max_size=4),
    max_size=2,
)


@pytest.fixture(scope="module")
def collection(shared_standalone):
    """A collection by PyMongo, for all examples."""
    with MongoClient(shared_standalone.uri) as client:
        yield client[DATABASE].fuzz


def check(collection, document, called):
    """Run an update that is accepted twice."""
    assume(not called.problems())
    collection.drop()
    collection.insert_one({"_id": 1, **document})
    found = []
    for _ in range(2):
        try:
            collection.update_many(
                called.filter, called.update, array_filters=called.array_filters or None
            )
        except PyMongoError:  # conflicting paths, values of another type and the like
            assume(False)
        found.append(list(collection.find_one({}).items()))
    assert found[0] == found[1]


EXAMPLES = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[
        HealthCheck.filter_too_much,
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
    ],
)


@pytest.mark.slow
@EXAMPLES
@given(document=DOCUMENTS, pipeline=PIPELINES)
def test_pipelines(collection, document, pipeline):
    """A pipeline that is accepted is the same in two runs as in one."""
    check(collection, document, UpdateMany({}, pipeline))


@EXAMPLES
@given(
    document=st.one_of(DOCUMENTS, ARRAYS), update=UPDATES, filter=FILTERS, e=CONDITIONS, f=FILTERS
)
def test_operators(collection, document, update, filter, e, f):
    """Update operators that are accepted are the same in two runs as in one."""
    text = str(update)
    array_filters = []
    if "$[e]" in text:
        array_filters.append({"e": e})
    if "$[f]" in text:
        assume(f)
        array_filters.append({f"f.{name}": condition for name, condition in f.items()})
    check(collection, document, UpdateMany(filter, update, array_filters=array_filters))


@pytest.mark.slow
@EXAMPLES
@given(
    document=st.one_of(DOCUMENTS, ARRAYS),
    update=UPDATES,
    name=NAMES | st.just("d"),
    value=SCALARS,
    operator=st.sampled_from(["$set", "$addToSet"]),
    filter=FILTERS,
)
def test_marks(collection, document, update, name, value, operator, filter):
    """Beside a mark that the filter leaves out, any operator is the same in two runs as in one."""
    assume("$[" not in str(update))
    marked = {**update, operator: {**update.get(operator, {}), name: value}}
    left_out = {"$and": [{name: {"$ne": value}}, filter]}
    check(collection, document, UpdateMany(left_out, marked))
