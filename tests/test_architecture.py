"""The house: imports point downwards, and one room alone knows the driver."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import aioretry
from tests.house.figures import Source, complexity

MOST_WAYS = 12
ROOT = Path(__file__).parent.parent
PACKAGE = Path(aioretry.__file__).parent


def ranks() -> list[set[str]]:
    """The rooms of each rank, from below: what the map in docs/internals.md says."""
    blocks = re.split(r"\n(?!    )", (ROOT / "docs" / "internals.md").read_text())
    [lines] = [block.splitlines() for block in blocks if "\n    -  " in block]
    rows = [set(line.split("   ")[0].split()) for line in map(str.strip, lines) if line]
    names = rows.index({"-"})
    return [*reversed(rows[names + 1 :]), {"__init__"}, set().union(*rows[:names])]


RANKS = ranks()
# What rooms of the highest rank may import beside the public names: a recipe of several writes says
# itself what the outcome of all is, `_faces` says what is either driver's, and the doctor knows by
# the same as the write path what is not MongoDB, and what else has the import name.
ABOVE = {
    "__main__": {"_cli", "_doctor", "outbox", "streams"},
    "_doctor": {"_cli", "_commands", "_installed", "events", "pymongo"},
    "_faces": {"_writes", "pymongo"},
    "_web": {"_faces", "errors", "idempotent"},
    "aiohttp": {"_faces", "_web", "idempotent", "pymongo"},
    "asgi": {"_faces", "_web", "idempotent"},
    "fastapi": {"_faces", "_web", "asgi", "idempotent", "pymongo"},
    "idempotent": {"_faces", "errors"},
    "outbox": {"_cli", "_faces", "errors", "streams"},
    "streams": {"_cli", "_faces", "pymongo"},
    "telemetry": {"_faces", "events", "outbox"},
}
# Inside a room, too.
INSIDE = {
    "_commands": [
        {"arguments", "encoded", "error_codes", "look_alikes"},
        {"command", "replies"},
        {"statements", "target"},
        {"bulk", "reads", "single", "transactions"},
        {"bulk_arguments"},
    ],
    "_drivers": [
        {"transaction_runs"},
        {"port"},
        {"threads", "engine.calls", "engine.messages", "engine.options", "engine.private_names"},
        {"pymongo_async.locks"},
        {"engine.transactions"},
        {"engine.connection", "engine.ending", "engine.idle", "engine.listening", "engine.views"},
        {"engine.checkup", "engine.connections", "engine.sessions"},
        {"engine.cursors", "engine.steps"},
        {"engine.entry", "engine.limits", "engine.silence"},
        {"engine.attempt"},
        {"engine.dispatch"},
        {"engine.driver"},
        {f"{room}.{name}" for room in ("motor", "pymongo_async") for name in ("calls", "pools")},
        {"motor.delegate", "motor.framework", "pymongo_async.client"},
        {"motor.asking", "motor.connections", "motor.ending", "motor.prober", "motor.sessions"},
        {"motor.on_thread", "motor.opening", "motor.watching"},
        {"motor.room"},
        {"motor.driver"},
        {"motor"},
        {
            f"pymongo_async.{name}"
            for name in ("asking", "connections", "ending", "prober", "watching")
        },
        {"pymongo_async.jobs", "pymongo_async.sessions"},
        {"pymongo_async.room"},
        {"pymongo_async.driver"},
        {"pymongo_async"},
    ],
    "_retry": [
        {"caution", "losses", "sessions", "lookout", "verdict"},
        {"monitoring", "server_selection"},
        {"availability", "command_execution"},
        {"attempt", "surfacing", "transactions"},
        {"pending", "waiting"},
        {"loop"},
    ],
    "_writes": [
        {"under_way"},
        {
            "bulk_result",
            "contention",
            "context",
            "future",
            "group.kinds",
            "kept",
            "unclear_inserts",
        },
        {"resolve", "group.member"},
        {"single", "group.shares"},
        {"bulk", "keyed", "group.command", "statements"},
        {"aborts", "group.queue"},
        {"commits", "writing"},
        {"methods"},
        {"transactions"},
        {"reading"},
    ],
    "asgi": [
        {"_connection"},
        {"_deadlines", "_lifespan", "_problems"},
        {"_keys", "_probes"},
        {""},
    ],
    "outbox": [{"_outbox"}, {"_relay"}, {"command"}, {""}],
    "streams": [
        {"_changes", "_checks", "_errors", "_pace", "_watching"},
        {"_folding"},
        {"_sources", "_watermarks"},
        {"_leases", "_reading"},
        {"_committing", "_holding", "_settings"},
        {"_following", "_status"},
        {"_rebuilding"},
        {"_aggregator"},
        {"command"},
        {""},
    ],
}
BESIDE = {"testing"}
DRIVER_MODULES = {
    "motor",
    "pymongo._csot",
    "pymongo.client_session",
    "pymongo.collection",
    "pymongo.cursor",
    "pymongo.database",
    "pymongo.asynchronous",
    "pymongo.message",
    "pymongo.mongo_client",
    "pymongo.monitoring",
    "pymongo.pool",
    "pymongo.server_description",
    "pymongo.topology",
    "pymongo.topology_description",
}
LEDGER = {PACKAGE / "testing" / f"{name}.py" for name in ("_ledger", "_ledger_report")}
CLIENT_FIXTURES = PACKAGE / "testing" / "_client_fixtures.py"
CORE = {module for rank in RANKS[:-1] for module in rank}


def rank_of(room: str) -> int:
    """How far up a room is."""
    return next(index for index, rank in enumerate(RANKS) if room in rank)


def room_of(path: Path) -> str:
    """The room that a file belongs to."""
    first, *rest = path.relative_to(PACKAGE).parts
    return first if rest else path.stem


def files() -> list[Path]:
    """The modules of the package, the test kit apart."""
    return [p for p in sorted(PACKAGE.rglob("*.py")) if room_of(p) not in BESIDE]


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """What a file consists of."""
    return list(ast.walk(ast.parse(path.read_text())))


@cache
def imports_of(path: Path) -> set[str]:
    """The modules that a file imports, in full."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def rooms_imported(path: Path) -> set[str]:
    """The rooms of ours that a file imports."""
    return {
        parts[1]
        for parts in (name.split(".") for name in imports_of(path))
        if parts[0] == "aioretry" and len(parts) > 1 and (PACKAGE / parts[1]).exists()
    } | {
        parts[1]
        for parts in (name.split(".") for name in imports_of(path))
        if parts[0] == "aioretry" and len(parts) > 1 and (PACKAGE / f"{parts[1]}.py").exists()
    }


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    """A room imports only from lower ranks, or from itself."""
    room = room_of(path)
    if rank_of(room) == len(RANKS) - 1:  # built on the public names
        assert rooms_imported(path) <= BESIDE | {room} | ABOVE.get(room, set())
        return
    others = rooms_imported(path) - {room}
    too_high = {r for r in others if r in BESIDE or rank_of(r) >= rank_of(room)}
    assert set() == too_high


@pytest.mark.parametrize(("room", "ranks"), INSIDE.items(), ids=INSIDE)
def test_imports_inside_a_room_point_downwards(room, ranks):
    """So do the imports from one to another of its modules."""
    known = {name: rank for rank, names in enumerate(ranks) for name in names}
    for path in sorted((PACKAGE / room).rglob("*.py")):
        if not imports_of(path):
            continue
        *folders, name = path.relative_to(PACKAGE / room).with_suffix("").parts
        module = ".".join([*folders, *({name} - {"__init__"})])
        assert module in known, f"{module} has no place in the plan of {room}"
        for imported in imports_of(path):
            inside = imported.removeprefix(f"aioretry.{room}")
            if inside != imported:
                others = {n for n in known if f"{inside}.".startswith(f".{n}.")} - {""}
                if other := max(others, key=len, default=""):
                    assert other == module or known[other] < known[module], path.name


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_one_room_knows_the_driver(path):
    """Client code of Motor and PyMongo is imported by `_drivers` alone, its timeouts apart."""
    room = room_of(path)
    if room == "_drivers":
        return
    known = {
        name
        for name in imports_of(path)
        for driver in DRIVER_MODULES
        if name == driver or name.startswith(f"{driver}.")
    }
    assert known == ({"pymongo._csot"} if room == "deadlines" else set())


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_names_of_others_are_left_alone(path):
    """Attributes with a leading underscore are used on one's own objects only, `_drivers` apart."""
    room = room_of(path)
    if room == "_drivers":
        return
    ours = {
        "_be_kept",
        "_calls",
        "_commit",
        "_first_statement",
        "_is_given_up",
        "_is_lent",
        "_watch",
        "_why_open",
        "_write_path",
        "_replace",
        "_asdict",
        "_client",
        "_coalescing",
    }
    foreign = [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in ours
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
        and not ast.unparse(node.value).startswith("super()")
    ]
    assert [] == foreign


PURE = [
    *sorted((PACKAGE / "_commands").glob("*.py")),
    *(PACKAGE / "_retry" / f"{name}.py" for name in ("transactions", "verdict")),
]


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_is_pure(path):
    """What builds commands, reads replies and judges awaits nothing and reads no clock."""
    awaiting = ast.AsyncFunctionDef | ast.Await
    assert not [node for node in nodes_of(path) if isinstance(node, awaiting)]
    assert not {"time", "asyncio", "anyio", "threading"} & imports_of(path)


def test_the_wire_code_shares_nothing_with_what_it_tests():
    """The test kit imports `bson`, the standard library and itself alone.

    Apart from the ledger and the fixtures of clients. A user's URI is read as PyMongo reads it.
    """
    for path in set((PACKAGE / "testing").rglob("*.py")) - LEDGER - {CLIENT_FIXTURES}:
        drivers = {n for n in imports_of(path) if n.split(".")[0] in {"pymongo", "motor"}}
        allowed = "pymongo.uri_parser" if path.name == "_target.py" else "nothing"
        assert not {name for name in drivers if not name.startswith(allowed)}, path.name
        assert not [
            n for n in imports_of(path) if n.startswith("aioretry.") and "testing" not in n
        ], path.name


def test_the_ledger_imports_values_only():
    """The test kit's ledger knows outcomes and PyMongo's values, and no client code."""
    allowed = {"errors", "read_concern", "read_preferences", "write_concern"}
    modules = {".".join(name.split(".")[:2]) for path in LEDGER for name in imports_of(path)}
    ours = {name for name in modules if name.startswith("aioretry.")}
    drivers = {name for name in modules if name.split(".")[0] in {"pymongo", "motor"}}
    assert {"aioretry.errors", "aioretry.testing"} == ours
    assert {f"pymongo.{name}" for name in allowed} == drivers


def test_client_fixtures_take_public_clients():
    """The fixtures of the test kit know the clients by their public names."""
    ours = {name for name in imports_of(CLIENT_FIXTURES) if name.startswith("aioretry.")}
    assert {"aioretry.RetryClient", "aioretry.pymongo", "aioretry.pymongo.AsyncRetryClient"} == {
        name for name in ours if not name.startswith("aioretry.testing")
    }


def test_no_metaprogramming():
    """Every wrapped method is written out."""
    for path in files():
        text = path.read_text()
        assert "setattr(" not in text, path.name


def test_functions_are_short():
    """No function has more than 50 lines of code, its signature and docstring apart."""
    long = []
    for path in files():
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body
                if ast.get_docstring(node):
                    body = body[1:]
                if body and body[-1].end_lineno - body[0].lineno >= 50:
                    long.append(f"{path.name}:{node.name}")
    assert [] == long


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_functions_have_few_ways_through_them(path):
    """None has more than twelve, with boolean operators and arms of `match`."""
    functions = Source(PACKAGE, path).functions()
    assert not [function.name for function in functions if complexity(function) > MOST_WAYS]


def test_public_names():
    """`__all__` is sorted, complete and without private names."""
    assert sorted(aioretry.__all__) == aioretry.__all__
    assert all(hasattr(aioretry, name) for name in aioretry.__all__)
    assert not [name for name in aioretry.__all__ if name.startswith("_")]


# What starts a timer or a task in its caller's context, because that belongs to an operation which
# it does not outlive, or which it is.
STARTS_OF_AN_OPERATION = {
    "_retry/attempt": {"call_later"},
    "_retry/server_selection": {"call_at"},
    "_writes/commits": {"ensure_future"},
    "_writes/transactions": {"ensure_future"},
    "aiohttp": {"call_later"},
    "idempotent/_once": {"create_task"},
    "session": {"ensure_future"},
    "_drivers/pymongo_async/sessions": {"ensure_future"},
    "_drivers/engine/attempt": {"call_later"},
    "outbox/command": {"ensure_future"},
    "streams/_holding": {"create_task"},
    "streams/_watching": {"create_task"},
    "streams/command": {"ensure_future"},
}
STARTS = {"call_at", "call_later", "create_task", "ensure_future"}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_outlives_its_caller_is_detached(path):
    """Timers, tasks and threads inherit no request's deadline, unless they belong to it."""
    name = str(path.relative_to(PACKAGE).with_suffix(""))
    calls = [
        node
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    started = {
        call.func.attr
        for call in calls
        if call.func.attr in STARTS and "context" not in {given.arg for given in call.keywords}
    }
    assert STARTS_OF_AN_OPERATION.get(name, set()) == started
    assert not [call for call in calls if ast.unparse(call.func) == "thread.start"]


def test_every_room_is_in_the_map():
    """It has each module once, but the test kit, which stands beside it."""
    assert sorted({room_of(path) for path in files()}) == sorted(
        room for rank in RANKS for room in rank
    )


@pytest.mark.parametrize("room", ["_commands", "_retry", "_writes"])
def test_each_module_has_a_test_of_its_name(room):
    """What needs no server is tested by itself; what rides on the driver is by real servers."""
    unit = ROOT / "tests" / "unit"
    modules = [path.relative_to(PACKAGE) for path in (PACKAGE / room).rglob("*.py")]
    assert len(modules) > 5
    assert [] == [
        module
        for module in sorted(modules)
        if module.stem != "__init__"
        and not (unit / module.with_name(f"test_{module.name}")).exists()
    ]
