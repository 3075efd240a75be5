"""What the tests are run with: servers, PyMongo, Python and event loop."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SPECIFICATIONS = ("tests/spec",)
_ALL = ("tests/spec", "tests/integration")
_WITH_THE_MODEL = (*_ALL, "tests/simulation/test_against_servers.py")
_NEWEST_MINOR = 15


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the tests.

    Attributes:
        name: What it is called.
        server: The servers' version.
        pymongo: The version of PyMongo, "oldest" for the oldest that is allowed; None for the
            newest.
        python: The interpreter's path; None for the one that runs this.
        loop: ``uvloop``, or None for asyncio's own.
        debug: Whether asyncio looks closely.
        tests: What is run.
        marker: Which of it; None for all but what concerns several versions at once.
    """

    name: str
    server: str
    pymongo: str | None = None
    python: str | None = None
    loop: str | None = None
    debug: bool = False
    tests: tuple[str, ...] = _ALL
    marker: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that say so to the tests."""
        variables = {"AIORETRY_TEST_SERVER": self.server, "AIORETRY_FULL": "1"}
        if self.loop is not None:
            variables["AIORETRY_TEST_LOOP"] = self.loop
        if self.debug:
            variables["PYTHONASYNCIODEBUG"] = "1"
        return variables


def cells() -> list[Cell]:
    """All runs that this machine can make."""
    found = [
        Cell(f"server {version}", version, tests=_WITH_THE_MODEL)
        for version in ("4.4", "5.0", "6.0")
    ]
    # Some tests need what 4.2 doesn't have.
    found += [
        Cell("server 4.2, oldest PyMongo", "4.2", pymongo="oldest", tests=_SPECIFICATIONS),
        Cell("server 4.4, oldest PyMongo", "4.4", pymongo="oldest"),
    ]
    found += [
        Cell(f"PyMongo {version}", "6.0", pymongo=version) for version in ("4.18.2", "4.19.0")
    ]
    found += [Cell(f"Python {version}", "6.0", python=path) for version, path in newer_pythons()]
    found.append(Cell("asyncio's debug mode", "6.0", debug=True))
    found.append(Cell("uvloop", "6.0", loop="uvloop"))
    found.append(Cell("several servers at once", "6.0", tests=("tests",), marker="matrix"))
    return found


def newer_pythons() -> list[tuple[str, str]]:
    """Versions and paths of the interpreters that are newer than the one that runs this."""
    found = []
    for minor in range(sys.version_info.minor + 1, _NEWEST_MINOR + 1):
        path = next(filter(_works, _pythons(minor)), None)
        if path is not None:
            found.append((f"3.{minor}", path))
    return found


def _pythons(minor: int) -> list[str]:
    """Where an interpreter of a version may be: on the path, or among those of pyenv."""
    on_path = shutil.which(f"python3.{minor}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    own = [str(path) for path in sorted(pyenv.glob(f"3.{minor}.*/bin/python3"), reverse=True)]
    return ([on_path] if on_path else []) + own


def _works(path: str) -> bool:
    # A version manager's command may be there without the version.
    return subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0


def root() -> Path:
    """The folder of the project."""
    return Path(__file__).parents[2]
