"""The tutorial: its files do what it says, in a folder that has nothing else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

TUTORIAL = ROOT / "docs" / "tutorial.md"
TEXT = TUTORIAL.read_text()
FILES = dict(
    re.findall(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
)
LOOP = "blind/tickets.py"
COMMAND = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARIES = re.compile(r"\d+\.\d+s|==+")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write files to the reader's folder, in the order of the page, and run pytest there."""
    monkeypatch.delenv("AIORETRY_TEST_URI", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "80")

    def run(files: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        for name, code in files.items():
            (tmp_path / Path(name).name).write_text(code)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def test_takes_few_commands():
    """A newcomer types less than ten commands until the first test has passed."""
    first, second, *_ = COMMAND.findall(TEXT)
    assert "python -m pytest\n" == second
    assert (first + second).count("\n") < 10


@pytest.mark.server
def test_passes(run):
    """Its files are tests that pass, and their output is the page's."""
    result = run({name: code for name, code in FILES.items() if name != LOOP})
    assert 0 == result.returncode, result.stdout + result.stderr
    shown = OUTPUT.findall(TEXT)[0]
    assert VARIES.sub("", shown) in VARIES.sub("", result.stdout)


@pytest.mark.slow
@pytest.mark.server
def test_fails_with_a_loop(run):
    """The loop around the write is found out, with the words of the page."""
    result = run(FILES, "-k", "lost_answers")
    assert 1 == result.returncode, result.stdout + result.stderr
    for line in OUTPUT.findall(TEXT)[1].splitlines():
        assert line in result.stdout
