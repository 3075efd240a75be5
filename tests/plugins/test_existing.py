"""The suite runs on a deployment that is there already."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aioretry.testing import ReplicaSet
from tests.existing import VARIABLE

TESTS = "tests/integration/test_commit_outcomes.py"


@pytest.mark.slow
@pytest.mark.server
def test_what_needs_no_processes(tmp_path):
    """What clients and proxies can do is tested; what needs more is skipped, and says what."""
    command = [sys.executable, "-m", "pytest", "-rs", "-n0", "-p", "no:cacheprovider"]
    command += ["--basetemp", tmp_path / "runs", TESTS, "-k"]
    command += ["(test_lost or test_hooks or test_step_down) and motor"]
    with ReplicaSet(members=1) as servers:
        done = subprocess.run(
            command,
            env={**os.environ, VARIABLE: servers.uri},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert f"the deployment in {VARIABLE} has no fail_command()" in done.stdout
    assert f"the deployment in {VARIABLE} has no 3 members" in done.stdout
