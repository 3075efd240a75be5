"""The site: it is built without a warning, and has all pages and all public names."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # the first one builds the site

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
REFERENCES = sorted((DOCS / "api").glob("*.md"))
LINK = re.compile(r"\]\(([\w-]+\.md)\)")
ELSEWHERE = re.compile(r"""<(?:link|script|img)\b[^>]*(?:href|src)=["'](?:https?:)?//[^"']+""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it: a warning is an error."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    options = ["-q", "-W", "--keep-going", "-n", "-b", "html", "-d", str(folder / "doctrees")]
    ended = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(folder / "html")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    return folder / "html"


@pytest.mark.slow
def test_site(site: Path):
    """It has an entry for each public name, and loads nothing from another host.

    One test, so that one worker builds it, and no second one.
    """
    lacking = {page.stem: names for page in REFERENCES if (names := _lacking(site, page))}
    loaded = [
        found.group()
        for page in sorted(site.rglob("*.html"))
        for found in ELSEWHERE.finditer(page.read_text())
    ]
    assert ({}, []) == (lacking, loaded)


def test_the_index_has_every_page():
    """A reader of the index on GitHub finds each page, too; Sphinx wants them in a table."""
    assert PAGES == set(LINK.findall((DOCS / "index.md").read_text()))


def _lacking(site: Path, page: Path) -> list[str]:
    """The public names of a page's modules that have no entry."""
    html = (site / "api" / f"{page.stem}.html").read_text()
    names = [
        f"{module}.{name}"
        for module in re.findall(r"automodule:: (\S+)", page.read_text())
        for name in getattr(importlib.import_module(module), "__all__", [])
    ]
    assert names
    return [name for name in names if f'id="{name}"' not in html]
