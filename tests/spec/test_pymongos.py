"""PyMongo's own tests: its runner of the official ones on our client, and its asyncio suite."""

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from pymongo import MongoClient, version

from aioretry.testing import ReplicaSet
from aioretry.testing._mongod import _cache
from tests.matrix.results import read_results
from tests.spec import sdist
from tests.spec.face import CLIENT_VARIABLE

ROOT = Path(__file__).parents[2]
UNIFIED = [
    "sessions",
    "transactions",
    "transactions_alone",
    "crud",
    "retryable_reads",
    "retryable_writes",
]
# What the asyncio suite asks that is otherwise with our client, on purpose.
ANSWERED = "a connection that breaks is no reason to take its server for lost (docs/compliance.md)"
CHOOSES = "servers are not chosen by PyMongo's selection, so that it logs and raises nothing"
KEEPS = "a connection is kept for 2 ms after a write, for the next one"
LIMIT = "PyMongo's limit for a transaction's repetitions is replaced; ours is another one"
NAMES = "the message has the name of our class"
KNOWN = {
    "client.py::TestClient::test_contextlib": KEEPS,
    "client.py::TestClient::test_operation_failure": KEEPS,
    "collection.py::TestCollectionNoConnect::test_iteration": NAMES,
    "comment.py::AsyncTestComment::test_collection_helpers": "looks for PyMongo's docstrings",
    "database.py::TestDatabaseNoConnect::test_iteration": NAMES,
    "discovery_and_monitoring.py::TestUnifiedCancelServerCheck": ANSWERED,
    "discovery_and_monitoring.py::TestUnifiedInsertNetworkError": ANSWERED,
    "discovery_and_monitoring.py::TestUnifiedPoolClearedError": ANSWERED,
    "encryption.py": "needs mongocryptd, and waits for it for a long time",
    "logger.py::TestLogger::test_logging_retry_write_attempts": "retries are logged otherwise",
    "logger.py::TestLogger::test_logging_without_listeners": CHOOSES,
    "operation_id_retry.py::TestOperationIdRetry::"
    "test_bulk_write_without_telemetry_creates_no_operation_id": "counts PyMongo's random numbers",
    "retryable_writes.py::TestRetryableWrites::test_retry_timeout_raises_original_error": CHOOSES,
    "sdam_monitoring_spec.py::TestSdamMonitoring::test_network_error_publishes_events": ANSWERED,
    "server_selection_logging.py::TestServerSelectionLoggingReplicaSet::"
    "test_A_successful_operation": CHOOSES,
    "session.py::TestSession::test_implicit_sessions_checkout": "at times there are two at once",
    **{
        f"transactions.py::TestTransactionsConvenientAPI::test_3_{test}_timeout": LIMIT
        for test in (
            "1_callback_not_retried_after",
            "2_callback_not_retried_after_commit",
            "3_commit_not_retried_after",
        )
    },
}


@dataclass(frozen=True)
class Suite:
    """PyMongo's tests in a folder, without its sources beside, and what they run on."""

    folder: Path
    replica_set: ReplicaSet

    def run(self, *options: str, **environment: str) -> set[str]:
        """Run tests in a process of its own, and return those that failed."""
        with MongoClient(self.replica_set.uri) as client:
            client.admin.command("ping")
            host, port = client.address
        address = {"DB_IP": host, "DB_PORT": str(port)}
        paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}"}
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "--timeout=120"]
        command += ["-c", os.devnull, "-o", "asyncio_default_fixture_loop_scope=session"]
        command += ["--rootdir", str(self.folder), "-p", "no:aioretry", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, *options],
            cwd=self.folder,
            env={**environment, **os.environ, **address, **paths},
            capture_output=True,
            text=True,
            check=False,
        )
        print(run.stdout)
        assert run.returncode in {0, 1}, run.stderr
        return set(read_results(report).failures)


@pytest.fixture(scope="module")
def pymongos(tmp_path_factory: pytest.TempPathFactory, three_members: ReplicaSet) -> Suite:
    """PyMongo's tests."""
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
    return Suite(folder, three_members)


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", UNIFIED)
def test_passes(name: str, pymongos: Suite) -> None:
    """Nothing fails that the driver itself does not fail."""
    client = {CLIENT_VARIABLE: "aioretry"}
    assert not pymongos.run("-p", "tests.spec.face", f"test/test_{name}_unified.py", **client)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_asynchronous(pymongos: Suite) -> None:
    """With our client in the place of PyMongo's nothing fails that does not fail with its own."""
    known = (("--deselect", f"test/asynchronous/test_{test}") for test in KNOWN)
    failed = pymongos.run("-p", "tests.spec.in_place", *chain(*known), "test/asynchronous")
    files = {f"test/asynchronous/{test.split('.')[2]}.py" for test in failed}
    assert not failed or failed <= pymongos.run(*sorted(files))
