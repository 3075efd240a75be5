"""Every Python snippet of the README and the pages runs, against a real replica set."""

import re
from pathlib import Path

import pytest

from tests.docs.setups import DATABASES, SETUPS, nothing
from tests.docs.snippets import DOCUMENTS, ROOT, Page, outputs_of, run_all, snippets_of

RUNNABLE = [page for page in DOCUMENTS if any(one.runs_here for one in snippets_of(page))]
OTHERS = {"console", "http", "ini", "json", "sh", "text", "toml", "yaml"}
LANGUAGE = re.compile(r"^```(\S+)$", re.MULTILINE)
NOT_RUN = re.compile(r"^<!-- *not run(.*?)-->\n(.*)$", re.MULTILINE)

# In seconds; docs/timeouts.md has a failover take so long.
FAILOVER = 18
DEADLINE = re.compile(
    r"(?:\bdeadline\(|\btimeout=|[dD]eadline_?[mM]iddleware\W+default=)(\d+\.?\d*)"
)
# Shorter ones, and why they are.
SHORTER = {
    ("docs/draining.md", "DeadlineMiddleware(default=14"): "for a grace period of 30, as it says",
    ("docs/scripted-server.md", "timeout=10.0"): "of a test that waits for a command",
    ("docs/testing.md", "deadline(1.0"): "of a test in which it is over",
    ("docs/testing.md", "timeout=10.0"): "of a test that waits for a fault",
    ("examples/outbox.py", "timeout=10.0"): "of HTTP and SMTP",
    ("examples/task_queue.py", "timeout=10.0"): "of the drain",
}


@pytest.mark.parametrize("document", RUNNABLE, ids=lambda page: page.name)
async def test_snippets_run(document: Path, client, replica_set, server_version, capsys):
    """A page is run from top to bottom, in one namespace and on empty databases."""
    if server_version is not None:
        pytest.skip("the documents are for the newest servers")
    for database in DATABASES:
        await client.drop_database(database)
    page = Page(document.stem, client, replica_set.faults, replica_set.uri, capsys)
    page.shown = outputs_of(document)
    snippets = [snippet for snippet in snippets_of(document) if snippet.runs_here]
    await run_all(snippets, SETUPS.get(document.name, nothing), page)
    assert [] == page.shown


def test_setups_have_a_page():
    """No set-up is left of a page that is gone, or has no snippets any more."""
    assert set(SETUPS) <= {page.name for page in RUNNABLE}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda page: page.name)
def test_what_is_not_run_has_a_reason(document: Path):
    """A snippet that is not run says why, and nothing else does."""
    for reason, line in NOT_RUN.findall(document.read_text()):
        assert re.match(r": \w+ \w+", reason)
        assert "```python" == line


def test_deadlines_are_longer_than_a_failover():
    """So that a reader who takes one over has writes that survive one."""
    examples = sorted((ROOT / "examples").rglob("*.py"))
    found = {
        (str(page.relative_to(ROOT)), hit[0]): float(hit[1])
        for page in [*DOCUMENTS, *examples]
        for hit in DEADLINE.finditer(page.read_text())
    }
    assert len(found) > 2 * len(SHORTER)
    assert SHORTER.keys() == {where for where, seconds in found.items() if seconds < FAILOVER}
    timeouts = (ROOT / "docs" / "timeouts.md").read_text()
    assert f"| a failover | {FAILOVER} |" in timeouts


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda page: page.name)
def test_languages(document: Path):
    """Each block says what it is, and Python is called python, so that none is overlooked."""
    text = document.read_text()
    languages = LANGUAGE.findall(text)
    assert set(languages) <= {*OTHERS, "python", "{toctree}", "{eval-rst}"}
    assert len(languages) * 2 == len(re.findall(r"^```", text, re.MULTILINE))
