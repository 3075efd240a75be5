"""Pictures have the figures of the tables beside them, and what is shown twice is the same."""

import re
from xml.etree import ElementTree as ET

import pytest

from tests.docs.charts import CHARTS, DOCS, bar, drawn, table
from tests.docs.snippets import ROOT

DEMO = re.compile(r"^<!-- demo table -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLIND = (DOCS / "why-blind-retries.md").read_text()


@pytest.mark.parametrize("name", CHARTS)
def test_is_drawn_from_its_page(name: str):
    """A picture is what the page's figures make; `python -m tests.docs.charts` draws it anew."""
    assert (DOCS / name).read_text() == drawn(name)


@pytest.mark.parametrize("name", CHARTS)
def test_its_page_shows_it(name: str):
    """The page has the picture, and each figure in it stands in the page, too."""
    page = (DOCS / CHARTS[name][0]).read_text()
    assert f"]({name})" in page
    texts = [element.text or "" for element in ET.parse(DOCS / name).iter() if element.text]
    figures = [text for text in texts if text[:1].isdigit() and "at once" not in text]
    assert figures
    assert [] == [text for text in figures if text not in page]


@pytest.mark.parametrize("name", CHARTS)
def test_names_fit_beside_their_bars(name: str):
    """None begins left of the picture, in a font as wide as most are."""
    for element in ET.parse(DOCS / name).iter("{http://www.w3.org/2000/svg}text"):
        if element.get("text-anchor") == "end":
            assert 6.5 * len(element.text or "") < float(element.attrib["x"])


def test_the_demo_is_shown_as_on_its_page():
    """What the README and the page about blind retries show of the demo are lines of its table."""
    (whole,) = DEMO.findall((DOCS / "demo.md").read_text())
    texts = TEXT.findall(BLIND) + TEXT.findall((ROOT / "README.md").read_text())
    shown = [text for text in texts if "strategy" in text or "in all" in text]
    assert 3 == len(shown)
    assert [] == [
        line for text in shown for line in text.splitlines() if line not in whole.splitlines()
    ]


def test_bar():
    """A cell has a figure, perhaps with a unit, and perhaps with where the middle half lies."""
    assert (1.11, (1.05, 1.22), "1.11") == _parts("1.11 (1.05 to 1.22)")
    assert (13.6, None, "13.6 s") == _parts("13.6 s")
    assert (2400.0, None, "2,400") == _parts("2,400")
    with pytest.raises(ValueError, match="no figure"):
        bar("a", "none", "#000000")


def test_table():
    """A table is found by a text before it."""
    text = "one\n\n| | a | b |\n|---|---|---|\n| `x` | 1 | 2 |\n\n| other |\n"
    assert [("x", {"a": "1", "b": "2"})] == table(text, "one")


def _parts(cell: str) -> tuple[float, tuple[float, float] | None, str]:
    made = bar("a", cell, "#000000")
    return made.value, made.middle, made.shown
