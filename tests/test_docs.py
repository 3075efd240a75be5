"""What the documents say must hold: their code, their names, their commands and their links."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import aioretry
import aioretry.testing
from aioretry.operation import Operation
from aioretry.testing import Fault, Faults, Only
from tests.docs.snippets import rows
from tests.spec.data import official_files
from tests.spec.sdist import FetchError

ROOT = Path(__file__).parent.parent
PACKAGE = Path(aioretry.__file__).parent
README = ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [README, CHANGELOG, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *PAGES]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
SERVICE = ROOT / "examples" / "test_your_service"

COMPLIANCE = (ROOT / "docs" / "compliance.md").read_text()

BEGIN = "# The README's snippet begins here.\n"
END = "# The README's snippet ends here.\n"
FENCE = re.compile(r"^```(\w*|{[\w-]+})\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPET = re.compile(
    r"^<!-- (examples/[\w/]+\.\w+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
TEST = re.compile(r"`(tests/[^`:]*\.py)((?:::\w+)*)`")
OFFICIAL_FILE = re.compile(r"`([\w-]+/[\w-]+\.json)`")
REQUIREMENT = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |^#|\Z)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://)([^)#]+)[^)]*\)")


def blocks(document: Path, language: str) -> list[str]:
    """The code blocks of a document in one language."""
    return [code for name, code in FENCE.findall(document.read_text()) if name == language]


def names_of_tests(path: Path) -> set[str]:
    """The tests of a file, as pytest calls them: `::Class::test` or `::test`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"::{node.name}::{member.name}"
                for member in node.body
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(f"::{node.name}")
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


def without_blank_lines(text: str) -> list[str]:
    """The lines of a text that are not empty."""
    return [line for line in text.splitlines() if line]


def parse(code: str) -> ast.Module:
    """The syntax tree of a piece of code that may await at its top level."""
    compile(code, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return ast.parse(code)


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a piece of code imports from aioretry, with their modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aioretry":
            for alias in node.names:
                yield node.module or "", alias.name


def mentions(text: str, name: str) -> bool:
    """Whether a text has a name as a whole word."""
    return re.search(rf"\b{name}\b", text) is not None


def arms_a_fault(name: str) -> bool:
    """Whether a name is that of a public method of `Faults` that gives a fault."""
    method = vars(Faults)[name]
    return (
        not name.startswith("_") and getattr(method, "__annotations__", {}).get("return") is Fault
    )


def sources() -> list[object]:
    """Every piece of Python that a reader sees, with an id that says where it is."""
    shown = [
        pytest.param(code, id=f"{document.name}-{number}")
        for document in DOCUMENTS
        for number, code in enumerate(blocks(document, "python"), start=1)
    ]
    return shown + [pytest.param(path.read_text(), id=path.name) for path in EXAMPLES]


class TestCode:
    @pytest.mark.parametrize("code", sources())
    def test_compiles(self, code):
        """Every Python block, and every example, is valid Python."""
        assert parse(code).body

    @pytest.mark.parametrize("code", sources())
    def test_imported_names_exist(self, code):
        """Every name that is imported from aioretry is public there."""
        for module, name in imports(parse(code)):
            assert name in importlib.import_module(module).__all__

    def test_snippets_are_the_examples(self):
        """Snippets of the README and of a page are the marked regions of the example files."""
        texts = README.read_text(), (ROOT / "docs" / "frameworks.md").read_text()
        snippets = {name: code for text in texts for name, code in SNIPPET.findall(text)}
        marked = {
            f"examples/{path.name}": text.partition(BEGIN)[2].partition(END)[0].strip()
            for path in EXAMPLES
            if BEGIN in (text := path.read_text())
        }
        assert {"examples/fastapi_app.py", "examples/aiohttp_app.py"} == set(marked)
        assert marked == {name: code.strip() for name, code in snippets.items()}

    def test_a_page_shows_a_whole_example(self):
        """What to do with an unknown outcome is one file, without an omission."""
        page = (ROOT / "docs" / "unknown-outcome.md").read_text()
        ((name, code),) = SNIPPET.findall(page)
        assert (ROOT / name).read_text() == code

    def test_the_page_shows_the_example(self):
        """The snippets of one file on a docs page, one after the other, are that file."""
        shown: dict[str, list[str]] = {}
        for page in PAGES:
            for name, code in SNIPPET.findall(page.read_text()):
                if (ROOT / name).parent == SERVICE:
                    shown.setdefault(name, []).extend(without_blank_lines(code))
        files = [path for path in SERVICE.iterdir() if path.is_file()]
        assert shown == {
            path.relative_to(ROOT).as_posix(): without_blank_lines(path.read_text())
            for path in files
        }


class TestKit:
    """The reference of the test kit."""

    def test_names_what_is_public(self):
        """The pages mention everything that the test kit offers."""
        texts = "".join(page.read_text() for page in PAGES)
        assert [] == [name for name in aioretry.testing.__all__ if not mentions(texts, name)]

    def test_table_has_every_fault(self):
        """The table of the faults has a line for each."""
        text = (ROOT / "docs" / "testing.md").read_text()
        faults = [name for name in vars(Faults) if arms_a_fault(name)]
        assert 14 == len(faults)
        assert [] == [
            name for name in faults if not re.search(rf"^\| `{name}\(", text, re.MULTILINE)
        ]

    def test_table_has_every_condition(self):
        """The table of the conditions has a line for each."""
        text = (ROOT / "docs" / "testing.md").read_text()
        assert [] == [name for name in Only.__annotations__ if f"\n| `{name}` |" not in text]


class TestCompliance:
    """The page about the requirements of the retryable-writes specification."""

    def test_has_every_requirement(self):
        """All 56 are there, in their order, and each names what holds it."""
        entries = REQUIREMENT.findall(COMPLIANCE)
        assert list(range(1, 57)) == [int(number) for number, _ in entries]
        assert [] == [
            number
            for number, text in entries
            if not TEST.search(text) and not OFFICIAL_FILE.search(text)
        ]

    def test_tests_exist(self):
        """Every test that it names is there."""
        named = set(TEST.findall(COMPLIANCE))
        assert len(named) > 56
        assert [] == [
            path + name
            for path, name in sorted(named)
            if not (ROOT / path).is_file() or name not in names_of_tests(ROOT / path)
        ]

    def test_official_files_exist(self):
        """So is every official file."""
        named = set(OFFICIAL_FILE.findall(COMPLIANCE))
        assert named
        try:
            there = {f"{folder}/{name}.json" for folder, name, _ in official_files()}
        except FetchError as exc:
            pytest.skip(f"no official tests: {exc}")
        assert set() == named - there

    def test_operations_that_are_retried_are_documented(self):
        """The table has each write, with its transaction id or without; specification:
        "Drivers MUST document operations that support retryable behavior"."""
        writes = {name for name in vars(Operation) if not name.startswith("_")} - {
            "attempts",
            "replayed",
        }
        has_id = {"yes": set(), "no": set()}
        for operations, transaction_id, *_ in rows(ROOT / "docs" / "operations.md", "operation"):
            names = set(re.findall(r"`(\w+)`", operations)) & writes
            has_id.get(transaction_id.partition(",")[0], set()).update(names)
        assert writes == has_id["yes"] | has_id["no"]
        assert {"update_many", "delete_many"} == has_id["no"] - {"bulk_write"}
        assert has_id["yes"] == writes - {"update_many", "delete_many"}


@pytest.mark.parametrize("page", ["compliance.md", "internals.md"])
def test_private_names_exist(page):
    """What a page says of the inside is where it says."""
    text = (ROOT / "docs" / page).read_text()
    named = re.findall(r"`(_(?:commands|drivers|retry|writes)\.[\w.]+)`", text)
    assert len(named) > 10
    for name in named:
        pkgutil.resolve_name(f"aioretry.{name}")


INTERNALS = (ROOT / "docs" / "internals.md").read_text().splitlines()
PLACES = [line.split("|")[2] for line in INTERNALS if line.startswith("|")]
FILES = re.compile(r"`([\w/]+\.py)`")
NAMES = re.compile(r"`([A-Za-z_][\w.]*?)(?:\(\))?`")


class TestInternals:
    """The page about the house."""

    def test_modules_exist(self):
        """Every module that its map of the specification names is there."""
        rows = [row for row in PLACES if not FILES.search(row)]
        named = {name.replace(".", "/") for row in rows for name in re.findall(r"`([\w.]+)`", row)}
        assert len(named) > 5
        assert [] == [
            name
            for name in sorted(named)
            if not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").is_file()
        ]

    @pytest.mark.parametrize("row", [row for row in PLACES if FILES.search(row)])
    def test_places_exist(self, row):
        """What a row says where to look for stands in one of the files that it names."""
        folder, texts = PACKAGE, []
        for name in FILES.findall(row):
            found = [ROOT / name, PACKAGE.parent / name, PACKAGE / name, folder / name]
            path = next(path for path in found if path.is_file())
            folder = path.parent
            texts.append(path.read_text())
        for name in set(NAMES.findall(row)) - set(FILES.findall(row)):
            if not name.endswith(".py"):
                definition = rf"^\s*(?:async )?(?:def|class) {name.split('.')[-1]}\b"
                assert any(re.search(definition, text, re.MULTILINE) for text in texts), name


class TestReadme:
    def test_is_short(self):
        """It is what a stranger reads to the end."""
        assert len(README.read_text().splitlines()) <= 150

    def test_has_the_two_commands(self):
        """Each stands alone on its line."""
        lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
        assert ["make demo", "make test"] == [line for line in lines if line.startswith("make ")]

    @pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
    def test_commands_are_targets_of_the_makefile(self, document):
        """What a document says to make can be made."""
        makefile = (ROOT / "Makefile").read_text()
        for block in blocks(document, "sh"):
            for target in re.findall(r"^make ([\w-]+)", block, re.MULTILINE):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE)

    def test_install_names_the_distribution(self):
        """The README installs what pyproject.toml builds."""
        (name,) = re.findall(
            r'^name = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
        )
        assert f"pip install {name}\n" in blocks(README, "sh")


class TestTexts:
    @pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
    def test_links_lead_somewhere(self, document):
        """Every link to a file of the project finds it."""
        for target in LINK.findall(FENCE.sub("", document.read_text())):
            assert (document.parent / target).is_file()

    def test_changelog_has_this_version(self):
        """The changelog has a section for the version of the package."""
        assert re.search(
            rf"^## {re.escape(aioretry.__version__)} ", CHANGELOG.read_text(), re.MULTILINE
        )

    def test_readme_names_what_is_public(self):
        """The README and the pages beside it mention every public function and exception."""
        texts = "".join(document.read_text() for document in DOCUMENTS)
        names = ["RetryClient", "deadline", "DeadlineExceeded", "outcome_of", "attempts_of"]
        assert set(names) <= set(aioretry.__all__)
        assert [] == [name for name in names if name not in texts]

    @pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
    def test_one_sentence_a_line(self, document):
        """Outside code and tables, no line holds more than one sentence."""
        prose = FENCE.sub("", document.read_text()).splitlines()
        lines = [line for line in prose if not line.startswith("|")]
        assert [] == [line for line in lines if re.search(r"[^\d][.!?] [A-Z`]", line)]
