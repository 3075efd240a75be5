"""Virtual environments for runs with other packages or another Python."""

import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.matrix.cells import Cell, root


def python_of(cell: Cell, folder: Path) -> Path:
    """The interpreter of a run, made where this one won't do.

    Raises:
        CalledProcessError: It can't be made; what pip says is on the screen.
    """
    extra = _extra_packages(cell)
    if cell.python is None and not extra:
        return Path(sys.executable)
    project = (root() / "pyproject.toml").read_bytes()
    key = hashlib.sha256(project + repr((cell.python, extra)).encode()).hexdigest()[:12]
    place = folder / f"venv-{key}"
    python = place / "bin" / "python"
    done = place / ".installed"
    if not done.exists():
        subprocess.run([cell.python or sys.executable, "-m", "venv", "--clear", place], check=True)
        install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "--upgrade", "pip>=25.1"], check=True)
        packages = ["--editable", ".", "--group", "test", *extra]
        subprocess.run([*install, *packages], check=True, cwd=root())
        done.touch()
    return python


def _extra_packages(cell: Cell) -> tuple[str, ...]:
    if cell.pymongo is None:
        return ()
    version = _oldest_pymongo() if cell.pymongo == "oldest" else cell.pymongo
    return (f"pymongo=={version}",)


def _oldest_pymongo() -> str:
    project = tomllib.loads((root() / "pyproject.toml").read_text())
    [bound] = [
        found[1]
        for dependency in project["project"]["dependencies"]
        if (found := re.match(r"pymongo>=([\d.]+)", dependency))
    ]
    return bound
