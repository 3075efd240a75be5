"""What came of a run, from pytest's own report."""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

_OFFICIAL = re.compile(
    r"test_official\[official_(?P<deployment>\w+)-(?P<kind>\w+)-(?P<folder>[\w-]+)/"
)
_NAMES = {"set": "replica set", "routers": "sharded", "standalone": "standalone"}


@dataclass
class Tally:
    """How the tests of one group ended."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    repeated: int = 0
    """Of those that passed, how many not at the first time."""

    @property
    def all(self) -> int:
        """How many there were."""
        return self.passed + self.failed + self.skipped


@dataclass
class Results:
    """What came of one run."""

    groups: dict[str, Tally] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why official tests were skipped, and how many for each reason."""

    failures: list[str] = field(default_factory=list)

    def add(self, case: ET.Element) -> None:
        """Count one test."""
        name = case.get("name", "")
        group = _group_of(name, case.get("classname", ""))
        tally = self.groups.setdefault(group, Tally())
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed += 1
            self.failures.append(f"{case.get('classname')}::{name}")
        elif skipped is not None:
            tally.skipped += 1
            self.reasons[f"{group}: {skipped.get('message', '')}"] += 1
        else:
            tally.passed += 1
            repeated = [each.get("value") for each in case.iter("property")]
            tally.repeated += any(value != "0" for value in repeated)


def read_results(path: Path) -> Results:
    """Read the report of a run."""
    results = Results()
    for case in ET.parse(path).iter("testcase"):
        results.add(case)
    return results


def _group_of(name: str, module: str) -> str:
    found = _OFFICIAL.match(name)
    if found is None:
        return "prose and others" if ".spec." in module else "integration"
    return f"{found['folder']}, {_NAMES[found['deployment']]}, {found['kind']}"
