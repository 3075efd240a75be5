"""The page of errors: its texts are those of the sources, and it has every exception."""

import ast
import asyncio
import importlib
import inspect
import mmap
import os
import re
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import motor
import pymongo
import pytest

import aioretry
from aioretry.testing import MongodNotFoundError
from aioretry.testing._mongod import find_mongod

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "errors.md").read_text()
COMPATIBILITY = (ROOT / "docs" / "compatibility.md").read_text()
SERVERS = "What the servers say"
PACKAGES = [
    "",
    ".aiohttp",
    ".asgi",
    ".fastapi",
    ".idempotent",
    ".outbox",
    ".pymongo",
    ".streams",
    ".testing",
]
LIBRARIES = [Path(str(inspect.getfile(module))).parent for module in (aioretry, motor, pymongo)]
OF_PYTHON = [*Path(asyncio.__file__).parent.glob("*.py"), Path(warnings.__file__)]
SYSTEM = [os.strerror(number) for number in (104, 111)]
TEXT = re.compile(r"`([^`]+)`")
FORMAT = re.compile(r"%[-.\d]*[sdrgf]|\{[^{}]*\}")
# What differs, and where a message is put together of others.
PARTS = re.compile(r"…|<Write pending>|; |: | after ")
CLASS = re.compile(r"\w+(Error|Exceeded|Conflict|Draining|Waiting|Undeliverable)")
# A service that nobody can run here, and what another page says of it.
ELSEWHERE = {"Retryable writes are not supported": "code 301"}


def texts(*, of_servers: bool) -> list[str]:
    """The texts in the first column of the tables, without what stands for a class alone."""
    found = []
    for section in PAGE.split("\n## ")[1:]:
        if section.startswith(SERVERS) is not of_servers:
            continue
        for line in section.splitlines():
            cell = re.match(r"\| (`.*?) \| ", line)
            if cell is not None:
                told = re.sub(r"\([^`()]*(?:`[^`]*`[^`()]*)+\)", "", cell[1])
                found += [text for text in TEXT.findall(told) if not CLASS.fullmatch(text)]
    return found


def parts(text: str) -> list[str]:
    """What a source has of a text, between what stands for something else."""
    return [part for each in PARTS.split(text) if (part := each.strip(" '\"`"))]


@cache
def sources() -> list[str]:
    """The strings of each library."""
    libraries = [[*folder.rglob("*.py")] for folder in LIBRARIES] + [OF_PYTHON]
    found = ["\n".join(text for file in files for text in strings(file)) for files in libraries]
    with pytest.raises(ImportError) as caught:
        exec("from aioretry import nothing", {})  # what Python says is no file's
    return [*found, *SYSTEM, str(caught.value)]


def strings(path: Path) -> Iterator[str]:
    """The strings of a file but its docstrings, with … for what is put into them."""
    tree = ast.parse(path.read_text())
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in told:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield FORMAT.sub("…", node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
            )


def exceptions() -> list[str]:
    """The public exceptions, by name."""
    modules = [importlib.import_module(f"aioretry{name}") for name in PACKAGES]
    return sorted(
        {
            name
            for module in modules
            for name in module.__all__
            if isinstance(found := getattr(module, name), type) and issubclass(found, BaseException)
        }
    )


@pytest.mark.parametrize("text", texts(of_servers=False))
def test_is_a_text_of_ours_or_of_the_drivers(text):
    """One library has all of it, but for what differs."""
    wanted = parts(text)
    assert any(len(part) > 5 for part in wanted)
    assert any(all(part in source for part in wanted) for source in sources())


def test_has_texts_of_servers():
    """What is said to come from a server is in its program."""
    told = [text for text in texts(of_servers=True) if text not in ELSEWHERE]
    assert 20 <= len(told)
    assert all(where in COMPATIBILITY for where in ELSEWHERE.values())
    try:
        mongod = find_mongod("6.0")
    except MongodNotFoundError as exc:
        pytest.skip(str(exc))
    with (
        mongod.path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program,
    ):
        lacking = [part for text in told for part in parts(text) if program.find(part.encode()) < 0]
    assert [] == lacking


@pytest.mark.parametrize("name", exceptions())
def test_names_every_exception(name):
    """A row, or a line below a table, has each public exception."""
    assert f"`{name}`" in PAGE or f"`{name}`s" in PAGE
