"""What is published: wheel and sdist, each installed into an empty environment and tested there."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent
EXTRAS = "testing,fastapi,aiohttp,telemetry"
TESTS = ("tests/unit", "tests/test_public_api.py", "tests/docs/test_tutorial.py")
OF_THE_CHECKOUT = {"PYTHONPATH", "VIRTUAL_ENV", "AIORETRY_TEST_URI"}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that knows nothing of the checkout's environment, and return its output."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in OF_THE_CHECKOUT and not name.startswith("PYTEST_")
    }
    ended = subprocess.run(
        command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=600, check=False
    )
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    return ended.stdout


def environment(folder: Path) -> Path:
    """The Python of a new environment, which has nothing but pip."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1", cwd=folder)
    return python


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both."""
    folder = tmp_path_factory.mktemp("built")
    python = environment(folder / "venv")
    run(python, "-m", "pip", "install", "--quiet", "hatchling", cwd=folder)
    run(python, "-m", "hatchling", "build", "-d", folder / "dist", cwd=ROOT)
    return folder / "dist"


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def test_installed(built: Path, kind: str, tmp_path: Path):
    """It has all that its tests, its types and a newcomer's first steps need."""
    (file,), (source,) = built.glob(kind), built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    shutil.rmtree(unpacked / "aioretry")
    python = environment(tmp_path / "venv")
    wanted = f"aioretry-mongo[{EXTRAS}] @ {file.as_uri()}"
    run(python, "-m", "pip", "install", "--quiet", "--group", "test", wanted, cwd=unpacked)
    run(python, "-m", "pip", "check", cwd=unpacked)

    where = "import aioretry; print(aioretry.__file__)"
    package = Path(run(python, "-c", where, cwd=unpacked).strip()).parent
    assert package.is_relative_to(tmp_path / "venv")
    assert (package / "py.typed").exists()
    options = ("-q", "-m", "not slow and not matrix", "-p", "no:cacheprovider")
    assert " passed" in run(python, "-m", "pytest", *options, *TESTS, cwd=unpacked)
