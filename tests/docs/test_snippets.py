"""Every Python snippet of the README and the pages runs, against a real replica set."""

import re
from pathlib import Path

import pytest

from tests.docs.setups import DATABASES, SETUPS, nothing
from tests.docs.snippets import DOCUMENTS, Page, outputs_of, run_all, snippets_of

RUNNABLE = [page for page in DOCUMENTS if any(one.runs_here for one in snippets_of(page))]
OTHERS = {"console", "http", "ini", "json", "sh", "text", "toml", "yaml"}
LANGUAGE = re.compile(r"^```(\S+)$", re.MULTILINE)
NOT_RUN = re.compile(r"^<!-- *not run(.*?)-->\n(.*)$", re.MULTILINE)


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda page: page.name)
def test_languages(document: Path):
    """Each block says what it is, and Python is called python, so that none is overlooked."""
    text = document.read_text()
    languages = LANGUAGE.findall(text)
    assert set(languages) <= {*OTHERS, "python", "{toctree}", "{eval-rst}"}
    assert len(languages) * 2 == len(re.findall(r"^```", text, re.MULTILINE))
