"""The official test files: where they are, and what is in them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bson import json_util

from tests.spec.unsupported import UnsupportedError, require_known

VARIABLE = "AIORETRY_SPEC_TESTS"
FOLDERS = {
    "retryable-writes": ["*"],
    "client-backpressure": ["*"],
    # Its other files are about what is PyMongo's own.
    "client-side-operations-timeout": ["bulkWrite", "error-transformations", "retryability-*"],
}

_BESIDE = Path(__file__).parents[3] / "shared" / "spec-tests"
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
_TEST_FIELDS = {"description", "runOnRequirements", "operations", "expectEvents", "outcome"}


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


def folder() -> Path | None:
    """Where the official tests are, if they are anywhere."""
    named = os.environ.get(VARIABLE)
    place = Path(named) if named else _BESIDE
    return place if place.is_dir() else None


def official_tests() -> list[OfficialTest]:
    """All of them, folder by folder; none if they are not there."""
    place = folder()
    if place is None:
        return []
    return [
        test
        for name, files in FOLDERS.items()
        for pattern in files
        for path in sorted(_folder_of(place, name).glob(f"{pattern}.json"))
        for test in read(path, name)
    ]


def read(path: Path, name: str) -> list[OfficialTest]:
    """The tests of one file.

    Raises:
        UnsupportedError: it has something that is not known here.
    """
    return parsed(json_util.loads(path.read_text()), name, path.stem)


def parsed(content: dict[str, Any], name: str, file: str) -> list[OfficialTest]:
    """The tests of one file's content."""
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


def _folder_of(place: Path, name: str) -> Path:
    # A checkout of the specifications has them in folders of their own.
    inside = place / "source" / name / "tests"
    if inside.is_dir():
        return inside / "unified" if (inside / "unified").is_dir() else inside
    return place / name
