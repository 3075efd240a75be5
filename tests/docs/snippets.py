"""The Python snippets of a page, how one is run, and what its set-up works with."""

import ast
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from motor.motor_asyncio import AsyncIOMotorClient

from aioretry import RetryClient
from aioretry.testing import Faults

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^(?:<!-- ([^\n]*?) ?-->\n)?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"^```python\n[^`]*^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FOR_PYTEST = re.compile(r"^(?:async )?def test_|^@pytest\.fixture", re.MULTILINE)
_URI = re.compile(r"mongodb://[^/\"{]+(?:/\?replicaSet=\w+)?")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of Python in a page."""

    page: Path
    line: int
    """The line of the page before its first one."""

    code: str
    marker: str
    """The text of the comment right before it."""

    @property
    def is_a_file(self) -> bool:
        """Whether it is a file of an example or of the tutorial, whose own tests run it."""
        return self.marker.startswith(("file:", "examples/test_your_service/"))

    @property
    def is_for_pytest(self) -> bool:
        """Whether it has tests or fixtures."""
        return not self.is_a_file and _FOR_PYTEST.search(self.code) is not None

    @property
    def runs_here(self) -> bool:
        """Whether it is run as a part of its page, after those above it."""
        return not (self.is_a_file or self.is_for_pytest or self.marker.startswith("not run:"))


def snippets_of(page: Path) -> list[Snippet]:
    """All Python blocks of a page, in their order."""
    text = page.read_text()
    return [
        Snippet(page, text.count("\n", 0, found.start(2)), found[2], found[1] or "")
        for found in _BLOCK.finditer(text)
    ]


def outputs_of(page: Path) -> list[str]:
    """The texts that stand right below Python blocks of a page."""
    return _OUTPUT.findall(page.read_text())


def rows(document: Path, heading: str) -> list[list[str]]:
    """The rows of the table of a document whose first column has a heading."""
    lines = document.read_text().splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith(f"| {heading} |")) :]
    end = next((n for n, line in enumerate(table) if not line.startswith("|")), len(table))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:end]]


@dataclass(slots=True)
class Page:
    """A page that is run from top to bottom, in one namespace."""

    name: str
    client: RetryClient
    faults: Faults
    uri: str
    capture: pytest.CaptureFixture[str]
    names: dict[str, Any] = field(default_factory=dict)
    """What the snippets are given, and what they leave."""

    shown: list[str] = field(default_factory=list)
    """The output that the page shows below its snippets, in its order."""

    _clients: dict[int, AsyncIOMotorClient] = field(default_factory=dict)

    def give(self, **names: Any) -> None:
        """Have the snippets that follow find something."""
        self.names.update(names)

    def check_printed(self) -> None:
        """Check that what was printed since the last time is what the page shows next."""
        assert self.shown, f"{self.name} shows no more output"
        assert self.printed() == self.shown.pop(0)

    def printed(self) -> str:
        """What was printed since this was asked last."""
        return self.capture.readouterr().out

    async def run(self, snippet: Snippet) -> None:
        """Run a snippet with the real URI in the place of its own."""
        tree = ast.parse(_URI.sub(self.uri, snippet.code))
        ast.increment_lineno(tree, snippet.line)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(tree, str(snippet.page), "exec", flags, dont_inherit=True)
        self.names.setdefault("__name__", self.name)
        try:
            ended = eval(code, self.names)
            if inspect.iscoroutine(ended):
                await ended
        finally:
            for value in self.names.values():
                if isinstance(value, AsyncIOMotorClient):
                    self._clients[id(value)] = value

    def close(self) -> None:
        """Close the clients that snippets have left open."""
        for client in self._clients.values():
            client.close()


Setup = Callable[[Page], AsyncGenerator[str, None]]
"""What the snippets of a page take as given.

It yields a text that a snippet has: what it did before is there when that snippet runs, and it goes
on when the snippet has ended, to check what came of it.
"""


async def run_all(snippets: Sequence[Snippet], setup: Setup, page: Page) -> None:
    """Run snippets one after the other, with their set-up."""
    steps = setup(page)
    try:
        wanted = await anext(steps, None)
        for snippet in snippets:
            await page.run(snippet)
            if wanted is not None and wanted in snippet.code:
                wanted = await anext(steps, None)
        assert wanted is None, f"no snippet that is left has {wanted!r}"
    finally:
        await steps.aclose()
        page.close()
