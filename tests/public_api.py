"""What is public: each name, with its arguments; `python -m tests.public_api` writes it anew."""

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FROZEN = Path(__file__).with_suffix(".txt")
MODULES = sorted(
    module
    for page in (ROOT / "docs" / "api").glob("*.md")
    for module in re.findall(r"automodule:: (\S+)", page.read_text())
)
_SIGNS = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def public_api() -> str:
    """A line for each name, method and attribute, in their order."""
    lines = []
    for module in MODULES:
        there = importlib.import_module(module)
        for name in sorted(getattr(there, "__all__", [])):
            lines += [f"{module}.{name}{rest}" for rest in _described(getattr(there, name))]
    return "\n".join([*lines, ""])


def _described(value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield from _of_class(value)
    elif inspect.isroutine(value):
        yield _arguments(value)
    else:
        yield ""


def _of_class(kind: type) -> Iterator[str]:
    ours = [each for each in kind.__mro__ if each.__module__.startswith("aioretry")]
    theirs = next(each for each in kind.__mro__ if each not in ours)
    yield f"({theirs.__name__})"
    if issubclass(kind, enum.Enum):
        yield from (f".{member.name}" for member in kind)
        return
    names = {
        name for each in ours for name in [*vars(each), *vars(each).get("__annotations__", {})]
    }
    if "__init__" in names and not getattr(kind, "_is_protocol", False):
        yield f".__init__{_arguments(kind.__init__)}"  # type: ignore[misc]
    for name in sorted(name for name in names if not name.startswith("_")):
        member = inspect.getattr_static(kind, name, None)
        is_bound = isinstance(member, classmethod | staticmethod)
        member = member.__func__ if is_bound else member  # type: ignore[union-attr]
        yield f".{name}{_arguments(member) if inspect.isfunction(member) else ''}"


def _arguments(function: Any) -> str:
    parameters = list(inspect.signature(function).parameters.values())
    shown = []
    was_keyword = False
    for each in parameters:
        is_keyword = each.kind is each.KEYWORD_ONLY
        if (
            is_keyword
            and not was_keyword
            and not any(p.kind is p.VAR_POSITIONAL for p in parameters)
        ):
            shown.append("*")
        was_keyword |= is_keyword
        optional = "" if each.default is each.empty else "=..."
        shown.append(f"{_SIGNS.get(each.kind, '')}{each.name}{optional}")
    return f"({', '.join(shown)})"


if __name__ == "__main__":
    FROZEN.write_text(public_api())
