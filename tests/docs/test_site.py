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


@pytest.mark.parametrize("page", REFERENCES, ids=lambda page: page.stem)
def test_public_names_have_an_entry(site: Path, page: Path):
    """The reference has an entry for each public name of a module."""
    html = (site / "api" / f"{page.stem}.html").read_text()
    names = [
        f"{module}.{name}"
        for module in re.findall(r"automodule:: (\S+)", page.read_text())
        for name in getattr(importlib.import_module(module), "__all__", [])
    ]
    assert names
    assert [] == [name for name in names if f'id="{name}"' not in html]


def test_the_index_has_every_page():
    """A reader of the index on GitHub finds each page, too; Sphinx wants them in a table."""
    assert PAGES == set(LINK.findall((DOCS / "index.md").read_text()))


def test_nothing_is_loaded_from_elsewhere(site: Path):
    """A page takes no style, script or picture from another host."""
    assert [] == [
        found.group()
        for page in sorted(site.rglob("*.html"))
        for found in ELSEWHERE.finditer(page.read_text())
    ]
