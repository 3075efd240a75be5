"""What ``make test`` leaves to ``make test-long``: tests marked ``slow``.

Of those marked ``sample(n)`` it runs one case of n, and of others that need servers one of two if
there are more than five; the rest is slow. Which ones those are looks random, and never changes.
"""

import zlib
from collections import defaultdict

import pytest

MANY = 5


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases that are not in the sample.

    ``server`` marks are there: the plugin that adds them is registered later, and so called first.
    """
    functions: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            functions[item.nodeid.partition("[")[0]].append(item)
    for cases in functions.values():
        shuffled = sorted(cases, key=lambda case: zlib.crc32(case.nodeid.encode()))
        for case in shuffled[-(-len(cases) // _parts(cases)) :]:
            case.add_marker("slow")


def _parts(cases: list[pytest.Item]) -> int:
    """Of how many cases one is run."""
    mark = cases[0].get_closest_marker("sample")
    if mark is not None:
        parts: int = mark.args[0]
        return parts
    needs_servers = cases[0].get_closest_marker("server") is not None
    return 2 if needs_servers and len(cases) > MANY else 1
