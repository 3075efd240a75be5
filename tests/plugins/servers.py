"""Which tests need servers, and where servers keep their data.

Those need servers that name one, or whose fixtures do, and those that are marked ``server``.
``make quick`` leaves them out, so no other test may start one.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import psutil
import pytest

from aioretry.testing._processes import Processes

NAMES = {"ReplicaSet", "Standalone", "getfixturevalue"}  # the last one asks for fixtures of servers

MEMORY = Path("/dev/shm")  # on Linux, a file system without a disk
LEAST = 12 * 2**30  # bytes that must be free there, and in the machine


def pytest_configure() -> None:
    """Keep temporary files in memory where there is room.

    Servers are killed here, never the machine: what they synced is there either way, and a disk
    would be the slowest part of a run.
    """
    has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= LEAST
    if has_room and psutil.virtual_memory().available >= LEAST and "TMPDIR" not in os.environ:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those that name servers, or whose fixtures do."""
    known: dict[Callable[..., Any], bool] = {}
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = item._fixtureinfo.name2fixturedefs
            used = [fixtures[name][-1].func for name in item.fixturenames if name in fixtures]
            for function in (item.function, *used):
                if function not in known:
                    known[function] = _names_one(getattr(function, "__code__", None))
                if known[function]:
                    item.add_marker("server")
                    break


def _names_one(code: CodeType | None) -> bool:
    if code is None:
        return False
    within = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return not NAMES.isdisjoint(code.co_names) or any(map(_names_one, within))


@pytest.fixture(autouse=True)
def _only_marked_tests_start_servers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.get_closest_marker("server") is None:
        monkeypatch.setattr(Processes, "__init__", _refuse)


def _refuse(_: Processes) -> None:
    pytest.fail("this test starts a server and is not marked so: pytest.mark.server")
