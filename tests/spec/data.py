"""The official test files: where they are, and what is in them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bson import json_util

from tests.spec import sdist
from tests.spec.unsupported import UnsupportedError, require_known

VARIABLE = "AIORETRY_SPEC_TESTS"
FOLDERS = {
    # Of each folder of the specifications, its name in PyMongo's, and which of its files.
    "retryable-writes": ("retryable_writes/unified", ["*"]),
    "client-backpressure": ("client-backpressure", ["*"]),
    # Its other files are about what is PyMongo's own.
    "client-side-operations-timeout": ("csot", ["bulkWrite", "error-tr*", "retryability-*"]),
    "transactions": ("transactions/unified", ["*"]),
    "transactions-convenient-api": ("transactions-convenient-api/unified", ["*"]),
    "sessions": ("sessions", ["*"]),
    "crud": ("crud/unified", ["*"]),
    "retryable-reads": ("retryable_reads/unified", ["*"]),
}

_NEWEST_SCHEMA = (1, 26)
_FILE_FIELDS = {
    "description",
    "schemaVersion",
    "runOnRequirements",
    "createEntities",
    "initialData",
    "tests",
    "_yamlAnchors",
}
_TEST_FIELDS = {
    "description",
    "runOnRequirements",
    "skipReason",
    "operations",
    "expectEvents",
    "outcome",
}


@dataclass(frozen=True, slots=True)
class OfficialTest:
    """One test of one file."""

    folder: str
    file: str
    number: int
    content: dict[str, Any]
    """The test itself."""

    shared: dict[str, Any]
    """What the tests of the file have in common."""

    def __str__(self) -> str:
        return f"{self.folder}/{self.file}[{self.number}] {self.description}"

    @property
    def description(self) -> str:
        """What it is about, in the words of its author."""
        return str(self.content["description"])

    @property
    def requirements(self) -> list[list[dict[str, Any]]]:
        """Of each list one has to be met."""
        both = (self.shared.get("runOnRequirements"), self.content.get("runOnRequirements"))
        return [each for each in both if each is not None]

    def slowed(self, factor: int) -> "OfficialTest":
        """Return it with a longer socketTimeoutMS, and as much longer blocks of the server.

        Of tests that have other limits, too, it returns the same.
        """
        if self.file != "retryability-legacy-timeouts":
            return self
        content, shared = (_slowed(each, factor) for each in (self.content, self.shared))
        return replace(self, content=content, shared=shared)

    def may_run_on(self, topology: str) -> bool:
        """Whether its requirements allow deployments of a kind."""
        return all(
            any(topology in one.get("topologies", [topology]) for one in each)
            for each in self.requirements
        )


def official_tests() -> list[OfficialTest]:
    """All of them, folder by folder.

    Raises:
        FetchError: They are not here and can't be fetched.
    """
    return [
        test
        for name, file, text in official_files()
        for test in parsed(json_util.loads(text), name, file)
    ]


def official_files() -> Iterator[tuple[str, str, str]]:
    """Of each file its folder, its name and its text.

    They are those that came with PyMongo, unless a checkout of the specifications is named.

    Raises:
        FetchError: They are not here and can't be fetched.
    """
    named = os.environ.get(VARIABLE)
    for name, (of_pymongo, patterns) in FOLDERS.items():
        if named:
            found = _files_of(Path(named), name)
        else:
            found = {
                path.stem: text
                for path, text in sdist.json_files().items()
                if str(path.parent) == of_pymongo
            }
        for file, text in sorted(found.items()):
            if any(fnmatch(file, pattern) for pattern in patterns):
                yield name, file, text


def parsed(content: dict[str, Any], name: str, file: str) -> list[OfficialTest]:
    """The tests of one file's content.

    Raises:
        UnsupportedError: It has something that is not known here.
    """
    require_known("a test file", content, _FILE_FIELDS)
    schema = tuple(map(int, content["schemaVersion"].split(".")[:2]))
    if schema[0] != _NEWEST_SCHEMA[0] or schema > _NEWEST_SCHEMA:
        raise UnsupportedError(f"schema version {content['schemaVersion']}")
    for test in content["tests"]:
        require_known("a test", test, _TEST_FIELDS)
    return [
        OfficialTest(name, file, number, test, content)
        for number, test in enumerate(content["tests"])
    ]


def _files_of(checkout: Path, name: str) -> dict[str, str]:
    if not (checkout / "source").is_dir():
        raise sdist.FetchError(f"{checkout} is no checkout of the specifications")
    inside = checkout / "source" / name / "tests"
    place = inside / "unified" if (inside / "unified").is_dir() else inside
    return {path.stem: path.read_text() for path in place.glob("*.json")}


def _slowed(value: Any, factor: int) -> Any:
    if isinstance(value, list):
        return [_slowed(each, factor) for each in value]
    if isinstance(value, dict):
        return {
            key: each * factor
            if key in {"socketTimeoutMS", "blockTimeMS"}
            else _slowed(each, factor)
            for key, each in value.items()
        }
    return value
