"""Every public name of Motor's classes is there, looks the same, and leads to our objects alone."""

import asyncio
import copy
import inspect
import pickle
import re
import typing
import warnings

import pymongo
import pytest
import pytest_asyncio
from motor.core import _MotorTransactionContext
from motor.motor_asyncio import (
    AsyncIOMotorClient,
    AsyncIOMotorClientSession,
    AsyncIOMotorCollection,
    AsyncIOMotorDatabase,
)
from pymongo import MongoClient
from surface_calls import TABLES, Side
from surface_ways import BEYOND, REFUSED

import aioretry
from aioretry import RetryClient, RetryMotorCollection, RetryMotorDatabase
from aioretry.testing import ReplicaSet

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Where a client has no session class of its own, Motor's is the one that it gives.
OUR_SESSION = getattr(aioretry, "RetryMotorClientSession", AsyncIOMotorClientSession)
CLASSES = {
    "client": (AsyncIOMotorClient, RetryClient),
    "database": (AsyncIOMotorDatabase, RetryMotorDatabase),
    "collection": (AsyncIOMotorCollection, RetryMotorCollection),
    "session": (AsyncIOMotorClientSession, OUR_SESSION),
}
COUNTERPARTS = dict(CLASSES.values())
PLAIN = {motors for motors, ours in CLASSES.values() if motors is not ours}
OF_PYTHON = {"__annotations__", "__dict__", "__doc__", "__init_subclass__", "__module__"} | {
    "__new__",
    "__subclasshook__",
    "__weakref__",
}

# -- exceptions from the rules, with reasons -------------------------------------------------------

# Public names that Motor has not: each hides a database or a collection of that name.
OUR_OWN_NAMES = {
    "client": {"__aenter__", "__aexit__"},  # `async with` closes the client
    "database": set(),
    "collection": {"coalesced", "operation"},
    "session": set(),
}
OTHER_SIGNATURE = {
    ("client", "__init__"): "has hooks and two limits beside Motor's arguments",
    ("session", "with_transaction"): "has a timeout beside Motor's arguments",
    ("client", "close"): "is a method; Motor's is a property that gives PyMongo's bound method",
}
# What PyMongo has from 4.11 on; ours has it always, and PyMongo's refusal where it is older.
NEWER_ARGUMENTS = {("update_one", "sort"), ("replace_one", "sort")}
# These may be of another class than in Motor: nobody but the session makes one.
PRIVATE_CLASSES = {_MotorTransactionContext}
IS_OLD = pymongo.version_tuple < (4, 11)


# -- what there is ---------------------------------------------------------------------------------


def public(cls):
    """The public and the special names of a class."""
    names = {n for n in dir(cls) if not n.startswith("_") or (n[:2] == n[-2:] == "__")}
    return {n for n in names - OF_PYTHON if getattr(cls, n) is not getattr(object, n, None)}


def own(thing):
    """The public attributes of an object that its class does not have."""
    return {name for name in vars(thing) if not name.startswith("_")}


def look(cls, name):
    """What a member is, and how it is called."""
    member = inspect.getattr_static(cls, name)
    nature = type(member).__name__
    if not inspect.isfunction(member) or name.startswith("__"):
        return nature
    if inspect.iscoroutinefunction(member):
        nature = "coroutine function"
    arguments = inspect.signature(member).parameters.values()
    return nature, [(a.name, a.kind.description, default(a)) for a in arguments]


def default(argument):
    """The default of an argument; older PyMongos have False for a None that they don't send."""
    if argument.name == "bypass_document_validation" and not argument.default:
        return "not given"
    return argument.default


MEMBERS = [(kind, name) for kind, (cls, _) in CLASSES.items() for name in sorted(public(cls))]


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
async def test_signature(kind, name):
    """A member of ours is what Motor's is, with the same arguments in the same order."""
    motors, ours = CLASSES[kind]
    if (kind, name) in OTHER_SIGNATURE:
        assert look(motors, name) != look(ours, name) or name == "__init__", "no exception needed"
        return
    expected, actual = look(motors, name), look(ours, name)
    if IS_OLD and isinstance(actual, tuple):
        actual = actual[0], [a for a in actual[1] if (name, a[0]) not in NEWER_ARGUMENTS]
    assert expected == actual


async def test_constructor_takes_what_motors_takes():
    """Our constructor has Motor's arguments, and its own by keyword only."""
    parameters = inspect.signature(RetryClient.__init__).parameters.values()
    kinds = {p.name: p.kind for p in parameters}
    own = {"doubt_after", "fail_fast_after", "hooks", "listeners_may_block", "retry_budget"}
    own |= {"max_concurrent_attempts", "max_waiting_writes"}
    assert {"self", "args", "kwargs", *own} == set(kinds)
    assert inspect.Parameter.VAR_POSITIONAL is kinds["args"]
    assert {inspect.Parameter.KEYWORD_ONLY} == {kinds[name] for name in own}
    assert inspect.Parameter.VAR_KEYWORD is kinds["kwargs"]


@pytest.mark.parametrize("kind", CLASSES)
async def test_no_further_names(kind):
    """We add no public name that is not in the list."""
    motors, ours = CLASSES[kind]
    assert OUR_OWN_NAMES[kind] == public(ours) - public(motors)


@pytest.mark.parametrize("kind", CLASSES)
async def test_annotations_can_be_read(kind):
    """Frameworks can evaluate the annotations of every method of ours."""
    for member in vars(CLASSES[kind][1]).values():
        if inspect.isfunction(member) and CLASSES[kind][1].__module__.startswith("aioretry"):
            typing.get_type_hints(member)


# -- the two sides ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    """One member, for the whole module."""
    with ReplicaSet(members=1) as replica_set:
        yield replica_set


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(server):
    """A client of Motor's and one of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        motors = AsyncIOMotorClient(server.uri)
    ours = RetryClient(server.uri)
    for client in (motors, ours):
        await client.admin.command("ping")
    yield motors, ours
    for client in (motors, ours):
        client.close()


@pytest.fixture(scope="module")
def plain(server):
    """PyMongo's client, to prepare the collections."""
    with MongoClient(server.uri) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def sides(server, clients, plain):
    """Both sides, each with a collection of three documents and a session."""
    made = [await Side.make(client, server.uri, plain) for client in clients]
    yield made
    for side in made:
        await side.session.end_session()


# -- comparing what calls give ---------------------------------------------------------------------


class Raised:
    """An exception instead of a value."""

    def __init__(self, error):
        self.error = error


def kind_of(value):
    """What a caller does with a value before it has what it asked for."""
    if asyncio.isfuture(value):
        return "a running future"
    return "a coroutine" if inspect.iscoroutine(value) else "a value"


async def outcome(call, side):
    """Make a call; return what kind of thing it gave, and what came of it."""
    try:
        value = call(side)
    except Exception as exc:  # noqa: BLE001 - to be compared
        return "raises at once", Raised(exc)
    kind = kind_of(value)
    try:
        if kind == "a running future":
            await asyncio.wait([value])  # which takes no coroutines
            return kind, value.result()
        return kind, (await value if kind == "a coroutine" else value)
    except Exception as exc:  # noqa: BLE001 - to be compared
        return kind, Raised(exc)


def same_class(motors, ours):
    """Whether a class of ours stands where Motor's should."""
    if motors in COUNTERPARTS:
        return ours is COUNTERPARTS[motors]
    return issubclass(ours, motors) or motors in PRIVATE_CLASSES


def children(value):
    """What can be reached from a value in one step, apart from cursors' items."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value[:20]))
    return vars(value) if is_motors(value) else {}


def is_motors(value):
    """Whether an object is Motor's or ours."""
    return type(value).__module__.split(".")[0] in {"motor", "aioretry"}


def has(value, name):
    """Whether a name is an attribute and not a database or collection."""
    return inspect.getattr_static(value, name, None) is not None


async def further(value):
    """What can be reached through properties, from a cursor and from a change stream."""
    found = {}
    for name in ("client", "session", "codec_options", "read_preference"):
        if has(value, name):
            found[name] = (await outcome(lambda it, n=name: getattr(it, n), value))[1]
    return found | await items(value)


async def items(value):
    """What iterating over a cursor or a change stream gives, and its copies."""
    found = {}
    if has(value, "to_list"):
        for name in ("clone", "__copy__"):
            if has(value, name):
                found[name] = (await outcome(lambda it, n=name: getattr(it, n)(), value))[1]
        found["to_list()"] = (await outcome(lambda it: it.to_list(3), value))[1]
    elif has(value, "try_next"):
        found["entered"] = await value.__aenter__()
        found["try_next()"] = (await outcome(lambda it: it.try_next(), value))[1]
        await value.close()
    return found


async def differences(path, motors, ours, steps=3):
    """Where ours is of another kind than Motor's, down to some steps away."""
    if isinstance(motors, type) and isinstance(ours, type):
        return [] if same_class(motors, ours) else [f"{path}: {motors} and {ours}"]
    if isinstance(motors, Raised) and isinstance(ours, Raised):
        motors, ours = motors.error, ours.error
    if not same_class(type(motors), type(ours)) or type(ours) in PLAIN:
        return [f"{path}: {motors!r} ({type(motors)}) and {ours!r} ({type(ours)})"]
    if isinstance(motors, bool) and motors != ours:
        return [f"{path}: {motors} and {ours}"]
    if not steps:
        return []
    expected, actual = children(motors), children(ours)
    found = [f"{path}.{n}: {actual[n]!r}" for n in actual if type(actual[n]) in PLAIN]
    if is_motors(motors):
        expected, actual = expected | await further(motors), actual | await further(ours)
    for name in expected.keys() & actual.keys():
        step = f"{path}.{name}"
        found += await differences(step, expected[name], actual[name], steps - 1)
    return found


async def compare(name, call, sides):
    """Make the same call on both sides."""
    (kind, motors), (our_kind, ours) = [await outcome(call, side) for side in sides]
    assert kind == our_kind, f"{name}: {motors!r}, {ours!r}"
    assert [] == await differences(name, motors, ours)


# -- calling everything ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CLASSES)
async def test_every_name_is_called(kind, sides):
    """Each public name is in the table of calls, and each in the table exists."""
    motors = sides[0]
    assert set(TABLES[kind]) == public(CLASSES[kind][0]) | own(getattr(motors, kind))


@pytest.mark.sample(3)
@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, table in TABLES.items() for n in table])
async def test_call(kind, name, sides):
    """A call gives the same kind of thing on both sides, and ours reaches no plain Motor object."""
    calls = TABLES[kind][name] or (lambda side: getattr(getattr(side, kind), name))
    for call in calls if isinstance(calls, list) else [calls]:
        await compare(f"{kind}.{name}", call, sides)


@pytest.mark.parametrize("name", BEYOND)
async def test_beyond_the_methods(name, sides):
    """Ways from object to object that are no single call: identity, equality, GridFS, Beanie."""
    await compare(name, BEYOND[name], sides)


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(name, sides):
    """What Motor says in the future that a call returns is not raised by the call itself."""
    await compare(name, REFUSED[name], sides)


# -- how the objects behave in Python --------------------------------------------------------------


async def iterate(thing):
    """Iterate asynchronously."""
    return [item async for item in thing]


ACTS = {
    "bool": bool,
    "call": lambda it: it(),
    "call with arguments": lambda it: it(1, x=2),
    "for": lambda it: next(iter(it)),
    "len": len,
    "next": next,
    "async for": iterate,
    "[0]": lambda it: it[0],
    "[None]": lambda it: it[None],
    "[bytes]": lambda it: it[b"x"],
    "['']": lambda it: it[""],
    "['$']": lambda it: it["a$b"],
    "['..']": lambda it: it["a..b"],
    "['.']": lambda it: it["a.b"],
    "['_x']": lambda it: it["_x"],
    "_x": lambda it: it._x,
    "__wrapped__": lambda it: it.__wrapped__,
    "__enter__": lambda it: it.__enter__(),
    "set a property": lambda it: setattr(it, "read_concern", None),
    "set an attribute": lambda it: setattr(it, "anything", 1),
    "delete nothing": lambda it: delattr(it, "nothing"),
    "compare": lambda it: it < it,
    "equal to a stranger": lambda it: it == 1,
    "unequal": lambda it: it != it,
    "hash": lambda it: hash(it) == hash(it.delegate),
    "repr": repr,
    "copy": copy.copy,
    "equal to its copy": lambda it: copy.copy(it) == it,
    "pickle": pickle.dumps,
}


def told(error):
    """The words of an exception, class names apart."""
    text = re.sub("Retry(?:Motor)?|AsyncIOMotor", "<class>", str(error))
    return re.sub("0x[0-9a-f]+|surface_of_\\w+", "<name>", text)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", CLASSES)
async def test_behaviour(kind, act, sides):
    """What Python lets one do with Motor's object, it lets one do with ours, and no more."""
    (how, motors), (our_how, ours) = [
        await outcome(lambda side: ACTS[act](getattr(side, kind)), side) for side in sides
    ]
    assert how == our_how, f"{motors!r}, {ours!r}"
    assert [] == await differences(act, motors, ours)
    if (
        isinstance(motors, Raised)
        and act != "pickle"
        and not isinstance(motors.error, RecursionError)
    ):
        assert told(motors.error) == told(ours.error)
