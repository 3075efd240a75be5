"""Generated calls of all writes do what Motor's do, side by side on the same real servers.

What differs and is meant to, each allowed for by a function in `KNOWN` or never generated:

1. A document larger than the server takes is refused by us before anything of its command is sent;
   Motor lets the server refuse it. Not generated: it takes long.
2. insert_many reads an iterator as far as its next command needs it, Motor to its end. So an
   iterator that fails after more documents than one command holds (not generated) has had the
   earlier ones inserted, and one with a document that can't be encoded is not read to its end: what
   would be refused or fail behind that document is not seen, and gets no _id.
3. A bulk_write with an UpdateMany or DeleteMany: Motor leaves the transaction ids out of all its
   commands, we leave them out of those commands that hold one, and retry the others. (Errors that
   are retried are not generated with it.)
4. A findAndModify that is refused, with a write concern error beside it: we raise the refusal.
5. The labels of a reply are on its write error too, and count for a retry.
6. An ended session and something that can't be encoded: we name the latter.
7. An encoding error of a single write, or of an option, names another document: the statement or
   the options, not the whole command or none.
8. Motor fails with an AttributeError over a labelled write concern error in a reply whose document
   class is no dict.

With AIORETRY_EXAMPLES in the environment each method gets so many examples, new ones each time.
"""

import contextlib
import os

import pytest
import pytest_asyncio
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from comparing import COMMANDS, OPTIONS, Pair, differences, plain, prepared
from generating import EXCEEDED_TIME_LIMIT, cases, holds_multi, make, reads_lazily
from given_values import Bag
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.errors import DuplicateKeyError, WriteConcernError, WriteError

from aioretry.testing import ReplicaSet
from tests.lengths import in_full

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The same examples each time, unless more are asked for.
EXAMPLES = int(os.environ.get("AIORETRY_EXAMPLES", "0"))
ALWAYS = settings(
    deadline=None,  # servers take their time
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,  # it is about the time that drawing takes on a busy machine
        HealthCheck.data_too_large,  # a bulk_write of ten requests is large
        HealthCheck.function_scoped_fixture,
    ],
)


@pytest.fixture(scope="module", params=["6.0", "4.4"])
def server(request):
    """One member of each version."""
    with ReplicaSet(members=1, version=request.param) as replica_set:
        yield replica_set


@pytest.fixture(scope="module")
def stored(server):
    """PyMongo's client, to prepare the collections and to look at them."""
    with prepared(server.uri) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(server, stored):
    """The two clients."""
    pair = Pair(server.uri, stored)
    yield pair
    pair.close()


@contextlib.contextmanager
def fault(stored, data):
    """The fail point `failCommand`, which strikes once."""
    if not data:
        yield
        return
    stored.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
    try:
        yield
    finally:
        stored.admin.command("configureFailPoint", "failCommand", mode="off")


async def made(side, case, **session):
    """Make the call of a case."""
    arguments = make(case.arguments, side.given)
    return await getattr(side.collection, case.method)(**arguments, **session)


async def run(side, case):
    """Make the call of a case, in its session."""
    if case.session == "none":
        return await made(side, case)
    async with await side.client.start_session() as session:
        if case.session == "ended":
            await session.end_session()
        if case.session == "transaction":
            async with session.start_transaction():
                return await made(side, case, session=session)
        return await made(side, case, session=session)


async def compare(pair, stored, case):
    """Make the call on both sides; return how the outcomes differ, apart from what is meant to."""

    async def call(side):
        with fault(stored, case.fault):
            return await run(side, case)

    options = OPTIONS[case.options] if case.options else {}
    expected, actual = await pair.outcomes(call, options)
    for adjust in KNOWN:
        adjust(case, expected, actual)
    return differences(expected, actual)


def _transaction_ids(case, expected, actual):
    """Difference 3."""
    if holds_multi(case) and case.session != "transaction" and case.options != "unacknowledged":
        expected["transaction ids"] = [not multi for multi in expected["multi"]]


def _refusal_and_concern_error(case, expected, actual):
    """Difference 4."""
    errors = _errors(expected, actual)
    if not errors or not issubclass(errors[0]["type"], WriteConcernError):
        return
    if not issubclass(errors[1]["type"], WriteConcernError):
        assert case.method.startswith("find_one_and")
        assert "writeConcernError" in dict(errors[1]["details"][1])
        del expected["error"], actual["error"]


def _labels_of_a_refusal(case, expected, actual):
    """Difference 5."""
    errors = _errors(expected, actual)
    if not errors or errors[1]["type"] not in {WriteError, DuplicateKeyError}:
        return
    if [] == errors[0]["labels"] != errors[1]["labels"]:
        assert errors[1]["labels"] == case.fault.get("errorLabels", ["RetryableWriteError"])
        errors[0]["labels"] = errors[1]["labels"]
    if case.fault.get("writeConcernError", {}).get("code") == EXCEEDED_TIME_LIMIT:
        for name in ("sent", "sessions", "transaction ids", "multi"):
            expected[name] = expected[name][:1] * len(actual[name])


def _lazy_reading(case, expected, actual):
    """Difference 2."""
    if _refused_unsent(expected, actual) and reads_lazily(case):
        for side in (expected, actual):
            del side["error"], side["given"]


def _ended_session(case, expected, actual):
    """Difference 6."""
    if _refused_unsent(expected, actual) and "Cannot use ended" in expected["error"].get("str", ""):
        assert case.session == "ended"
        del expected["error"], actual["error"]


def _document_of_an_error(case, expected, actual):
    """Difference 7."""
    errors = _errors(expected, actual)
    if errors and all(error["type"] is InvalidDocument for error in errors):
        for error in errors:
            error["str"] = error["str"].removeprefix("Invalid document: ")
        document = errors[0].pop("document", plain(None))
        if case.method not in {"insert_many", "bulk_write"} or document == plain(None):
            errors[1].pop("document", None)
        else:
            errors[0]["document"] = document


def _raw_concern_error(case, expected, actual):
    """Difference 8."""
    error = expected.get("error")
    if error and error["type"] is AttributeError and error != actual.get("error"):
        assert case.method.startswith("find_one_and")
        assert OPTIONS[case.options]["codec_options"].document_class in {RawBSONDocument, Bag}
        expected.clear()
        actual.clear()


def _errors(expected, actual):
    errors = [side["error"] for side in (expected, actual) if "error" in side]
    return errors if len(errors) == 2 else []


def _refused_unsent(expected, actual):
    return _errors(expected, actual) and not expected["sent"] and not actual["sent"]


KNOWN = [
    _transaction_ids,
    _refusal_and_concern_error,
    _labels_of_a_refusal,
    _document_of_an_error,
    _lazy_reading,
    _ended_session,
    _raw_concern_error,
]


@pytest.mark.sample(2)
@pytest.mark.long
@pytest.mark.parametrize("method", ["insert_many", "bulk_write"])
@settings(ALWAYS, max_examples=EXAMPLES or in_full(150, otherwise=60))
@given(data=st.data())
async def test_bulk_operations(method, pair, stored, data):
    """The same call has the same result or error, and leaves the same behind."""
    assert {} == await compare(pair, stored, data.draw(cases(method)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", [*COMMANDS, "update_many", "delete_many"])
@settings(ALWAYS, max_examples=EXAMPLES or 30)
@given(data=st.data())
async def test_single_writes(method, pair, stored, data):
    """The same call has the same result or error, and leaves the same behind."""
    assert {} == await compare(pair, stored, data.draw(cases(method)))
