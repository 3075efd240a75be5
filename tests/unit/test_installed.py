"""Another distribution has the same import name: whoever has both is told, and what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import aioretry
from aioretry._installed import REPAIR, has_other

PACKAGE = Path(aioretry.__file__).parent
INFO = "Metadata-Version: 2.1\nName: aioretry\nVersion: 6.3.1\n"


@pytest.mark.parametrize("module", ["client", "fastapi", "pymongo", "streams"])
def test_written_over(tmp_path, module):
    """What is left of ours says it, below the `__init__` of the other one."""
    package = tmp_path / "aioretry"
    package.mkdir()
    for path in PACKAGE.iterdir():
        if path.name not in {"__init__.py", "__pycache__"}:
            (package / path.name).symlink_to(path)
    (package / "__init__.py").write_text('__version__ = "6.3.1"\n')
    ended = subprocess.run(
        [sys.executable, "-c", f"import aioretry.{module}"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert REPAIR in ended.stderr.splitlines()[-1]


def test_its_names():
    """Who looks for the other one in this one is told, too; any other name is only missing."""
    with pytest.raises(ImportError, match="aioretry-mongo"):
        from aioretry import RetryInfo  # type: ignore[attr-defined]  # noqa: F401
    assert not hasattr(aioretry, "nothing")


def test_has_other(tmp_path, monkeypatch):
    """It is found by what pip has written of it."""
    assert not has_other()
    (tmp_path / "aioretry-6.3.1.dist-info").mkdir()
    (tmp_path / "aioretry-6.3.1.dist-info" / "METADATA").write_text(INFO)
    monkeypatch.syspath_prepend(tmp_path)
    assert has_other()
