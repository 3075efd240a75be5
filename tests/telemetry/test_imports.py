"""Each kind of telemetry needs its own library, and no other."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
import aioretry.telemetry
import aioretry.telemetry.{module}
"""
NEEDS = {"opentelemetry": "opentelemetry", "prometheus": "prometheus_client"}


def run(module, missing):
    """Import a module in a process where others can't be."""
    script = SCRIPT.format(module=module, missing=missing)
    command = [sys.executable, "-Werror", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("module", NEEDS)
def test_without_the_other(module):
    """The other library need not be there."""
    ended = run(module, [name for name in NEEDS.values() if name != NEEDS[module]])
    assert 0 == ended.returncode, ended.stderr


@pytest.mark.parametrize("module", NEEDS)
def test_without_its_own(module):
    """Without its own, an ImportError names the extra."""
    ended = run(module, [NEEDS[module]])
    assert 0 != ended.returncode
    assert "pip install 'aioretry-mongo[telemetry]'" in ended.stderr
