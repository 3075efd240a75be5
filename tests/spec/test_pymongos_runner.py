"""PyMongo's own runner of the official tests, on this client."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from pymongo import MongoClient, version

from aioretry.testing import ReplicaSet
from aioretry.testing._mongod import _cache
from tests.spec import sdist
from tests.spec.face import CLIENT_VARIABLE

ROOT = Path(__file__).parents[2]
FILES = [
    "sessions",
    "transactions",
    "transactions_alone",
    "crud",
    "retryable_reads",
    "retryable_writes",
]


@pytest.fixture(scope="module")
def pymongos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with PyMongo's tests, without its sources beside."""
    try:
        archive = sdist.fetch(_cache())
    except sdist.FetchError as exc:
        pytest.skip(f"no tests of PyMongo's: {exc}")
    if not archive.name.endswith(f"pymongo-{version}.tar.gz"):
        pytest.skip(f"PyMongo {version} has other tests")
    folder = tmp_path_factory.mktemp("pymongo")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    [sources] = folder.iterdir()
    tests = (sources / "test").rename(folder / "test")
    # Of its two folders the second one has files of the same names, whose tests replace those of
    # the first one.
    both = (tests / "test_transactions_unified.py").read_text()
    head, first, _ = both.split("# Generate unified tests.")
    (tests / "test_transactions_alone_unified.py").write_text(head + first)
    return folder


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FILES)
def test_passes(name: str, pymongos: Path, three_members: ReplicaSet) -> None:
    """Nothing fails that the driver itself does not fail."""
    with MongoClient(three_members.uri) as client:
        client.admin.command("ping")
        host, port = client.address
    environment = {
        CLIENT_VARIABLE: "aioretry",
        **os.environ,
        "DB_IP": host,
        "DB_PORT": str(port),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{pymongos}",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.spec.face", "-p", "no:aioretry"]
    command += ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(pymongos)]
    run = subprocess.run(
        [*command, f"test/test_{name}_unified.py"],
        cwd=pymongos,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    print(run.stdout)
    assert 0 == run.returncode, run.stdout[-3000:]
