"""The tests that a reader sees, in the example and in the documents, run as a reader runs them."""

import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.docs.snippets import DOCUMENTS, snippets_of

ROOT = Path(__file__).parent.parent
SERVICE = "examples/test_your_service"
PAGE = ROOT / "docs" / "test-your-own-service.md"

OUTPUT = re.compile(r"^<!-- output -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"^(?:async )?def test_", re.MULTILINE)
LONG = {"test-a-handler.md", "testing.md"}
FIXTURE = re.compile(r"^@pytest\.fixture.*\n(?:async )?def (\w+)", re.MULTILINE)
SECONDS = re.compile(r"\d+\.\d+ s\b")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """Run pytest in a process of its own, from the folder that a reader is in."""
    monkeypatch.delenv("AIORETRY_TEST_URI", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def blocks_for_pytest(document: Path) -> list[str]:
    """The Python blocks of a document that hold tests or fixtures, but for those of examples."""
    return [snippet.code for snippet in snippets_of(document) if snippet.is_for_pytest]


def write_test(code: str, folder: Path) -> None:
    """Make a folder with the tests of a block, or with a test that takes its fixture."""
    folder.mkdir()
    if fixture := FIXTURE.search(code):
        (folder / "conftest.py").write_text(code)
        code = f"def test_fixture({fixture[1]}):\n    assert {fixture[1]} is not None\n"
    (folder / f"{folder.name}.py").write_text(code)


@pytest.mark.server
class TestYourService:
    def test_passes(self, run):
        """The service with deadlines passes every test of its suite."""
        result = run(SERVICE)
        assert 0 == result.returncode, result.stdout + result.stderr
        assert " 7 passed in " in result.stdout

    @pytest.mark.slow
    def test_finds_the_bug(self, run):
        """The tests that lose answers fail for the blind retry, and say so as on the page."""
        # An election may double a vote, or may not.
        result = run(
            SERVICE, "--service", "service_blind", "--tb=short", "-m", "not mongo_replica_set"
        )
        assert 1 == result.returncode, result.stdout + result.stderr
        failed = re.findall(r"^FAILED \S+::(\w+(?:\[.+\])?)", result.stdout, re.MULTILINE)
        assert failed == [
            "test_a_vote_counts_once[reply lost]",
            "test_a_vote_counts_once[reply cut short]",
            "test_a_sharded_cluster",
        ]
        (shown,) = OUTPUT.findall(PAGE.read_text())
        assert SECONDS.sub("... s", shown) in SECONDS.sub("... s", result.stdout)


def lines_of(example: str, *arguments: str) -> list[str]:
    """What an example prints, which has to end well."""
    ended = subprocess.run(
        [sys.executable, f"examples/{example}.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout.splitlines()


def test_group_commit(shared_set):
    """Each of many inserts that travel together is told how its own has ended."""
    outcomes = lines_of("group_commit", shared_set.uri, "--number", "2000")
    assert ["applied: 1999", "not applied: 1", "unknown: 0"] == outcomes[:3]
    assert outcomes[3].startswith("stored: 1999, in ")


def test_idempotency_keys(shared_set):
    """Each order is taken once, however often its request comes."""
    taken = "15 requests, 5 orders, the same answers: True"
    conflict = "write 1 under this key is insert_one as it was first, but its arguments are others"
    assert [taken, conflict] * 2 == lines_of("idempotency_keys", shared_set.uri, "--number", "5")


def test_versioned_documents(shared_set):
    """Of those who edit at once one wins, the others are told, and each signs once."""
    assert [
        "created: 1",
        "renamed: 1, told that another was first: 9",
        "signed: 10",
    ] == lines_of("versioned_documents", shared_set.uri, "--number", "10")


def test_increments(shared_set):
    """Whenever a caller loses patience, each update that is asked for again counts once."""
    assert "sold: 60" == lines_of("increments", shared_set.uri, "--number", "60")[-1]


def test_import_once(shared_set):
    """An import that is run again finds all that it has imported."""
    collection = f"c{uuid.uuid4().hex[:12]}"
    for number, new in ((50, 50), (80, 30)):
        options = ("--collection", collection, "--number", str(number))
        assert [
            f"new: {new}",
            f"there before: {number - new}",
            "conflicts: 0",
            f"stored: {number}",
        ] == lines_of("import_once", shared_set.uri, *options)


def test_beanie_seats(shared_set):
    """Each seat is sold once and counted once, though two want it and answers are lost.

    Who lost an answer, and then was told of the other buyer, is in doubt.
    """
    drop_reply, database = shared_set.faults.drop_reply, "aioretry_examples"
    with (
        drop_reply("insert", times=3, namespace=f"{database}.Seat") as seats,
        drop_reply("update", times=3, namespace=f"{database}.Show") as shows,
    ):
        lines = lines_of("beanie_seats", shared_set.uri, "--number", "20")
    assert (3, 3) == (seats.fired, shows.fired)
    assert ["applied: 20", "stored: 20, counted: 20"] == [lines[0], lines[3]]
    assert 20 == sum(int(line.partition(": ")[2]) for line in lines[1:3])


def test_tags(shared_set, server_version):
    """The counts are built, and follow what changes."""
    if server_version is not None and server_version < "6.0":
        pytest.skip("needs servers from 6.0 on")
    expected = ["built: cat 1, dog 1, house 2", "followed: backyard 1, dog 1"]
    assert expected == lines_of("tags", shared_set.uri)


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(document, marks=[pytest.mark.slow] if document.name in LONG else [])
        for document in DOCUMENTS
        if blocks_for_pytest(document)
    ],
    ids=lambda document: document.name,
)
@pytest.mark.server
def test_documents(document: Path, run, tmp_path: Path):
    """Every test in a document passes, and every fixture can be had."""
    (tmp_path / "pytest.ini").write_text((ROOT / SERVICE / "pytest.ini").read_text())
    blocks = blocks_for_pytest(document)
    for number, code in enumerate(blocks, start=1):
        write_test(code, tmp_path / f"test_{number}")
    result = run(str(tmp_path))
    assert 0 == result.returncode, result.stdout + result.stderr
    number = sum(max(1, len(TEST.findall(code))) for code in blocks)
    assert f" {number} passed in " in result.stdout
