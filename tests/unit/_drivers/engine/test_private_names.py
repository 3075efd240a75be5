"""PyMongo's private names: all of them are in one list, and one that is missing is named."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import ConfigurationError

import aioretry
from aioretry._drivers.engine import private_names

PACKAGE = Path(aioretry.__file__).parent
TREES = [
    ast.parse(path.read_text())
    for path in PACKAGE.rglob("*.py")
    if "testing" not in path.parts and path.name != "private_names.py"
]
LISTED = {
    name
    for names in (
        *(its for _, its in private_names.SENDING),
        private_names.OF_POOL,
        private_names.OF_WAITING_POOL,
        private_names.OF_WAITING_TOPOLOGY,
        private_names.OF_CONNECTION,
        private_names.OF_TOPOLOGY,
        private_names.OF_CLIENT,
        private_names.OF_SESSION,
        private_names.OF_SESSIONS,
        private_names.OF_ERROR,
        private_names.OF_TIMEOUTS,
        private_names.OF_REQUEST,
        private_names.OF_ENCRYPTER,
        private_names.OF_LOCKS,
    )
    for name in names
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def is_own(node):
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def ours():
    """What this package defines or sets itself."""
    for tree in TREES:
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    yield node.name
                case ast.Attribute(ctx=ast.Store()) if is_own(node):
                    yield node.attr
                case ast.Name(ctx=ast.Store()):
                    yield node.id


def foreign():
    """What this package uses of others' objects, or imports from PyMongo."""
    for tree in TREES:
        for node in ast.walk(tree):
            match node:
                case ast.Attribute() if is_private(node.attr) and not is_own(node):
                    yield node.attr
                case ast.ImportFrom() if (node.module or "").split(".")[0] in {"pymongo", "bson"}:
                    yield from (alias.name for alias in node.names if is_private(alias.name))


def test_all_are_listed():
    """Whoever uses another one is told where they are."""
    modules = {"_csot"}  # its names are listed
    documented = {"_current_frames"}  # Python's own
    # A session of PyMongo's is given these.
    given = {"_air", "_is_gone", "_is_spent"}
    assert given == set(foreign()) - set(ours()) - LISTED - modules - documented


def test_the_listed_are_used():
    """One that is used no longer goes."""
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert [] == [name for name in sorted(LISTED) if text.count(name) < 2]


@pytest.mark.parametrize("kind", [MongoClient, AsyncMongoClient])
def test_one_that_is_missing_is_named(kind):
    """The error says what to install."""
    client = kind(connect=False)
    session = client.start_session()
    private_names.check(client, session)
    gone = {
        name: getattr(session, name) for name in private_names.OF_SESSION if name != "_check_ended"
    }
    with pytest.raises(ConfigurationError, match=r"\(_check_ended\).*pip install 'pymongo>=4\.17"):
        private_names.check(client, SimpleNamespace(**gone))
