"""What the package's plan is like, read from its source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median

# What is built on the public names, or stands beside them.
AROUND = {"_doctor", "idempotent", "streams", "telemetry", "testing"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A module.

    Args:
        package: The folder of the package.
        path: The module's file.
    """

    package: Path
    path: Path

    @property
    def room(self) -> str:
        """The module or folder at the package's root that it belongs to."""
        return self.path.relative_to(self.package).parts[0].removesuffix(".py")

    @cached_property
    def text(self) -> str:
        """Its source."""
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """How many it has."""
        return len(self.text.splitlines())

    def functions(self) -> Iterator[Function]:
        """Its functions and methods, inner ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def imports(self) -> set[str]:
        """The modules and names that it imports, in full."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        return found


class House:
    """A package.

    Args:
        package: Its folder.
    """

    def __init__(self, package: Path) -> None:
        self._package = package
        self.sources = [Source(package, path) for path in sorted(package.rglob("*.py"))]
        self.core = [source for source in self.sources if source.room not in AROUND]

    @cached_property
    def rooms(self) -> dict[str, set[str]]:
        """Each room, with those that it imports from."""
        names = {source.room for source in self.sources}
        rooms: dict[str, set[str]] = {name: set() for name in sorted(names)}
        for source in self.sources:
            for name in source.imports():
                package, _, rest = f"{name}.".partition(".")
                if package == self._package.name:
                    room = rest.split(".")[0]
                    rooms[source.room].add(room if room in names else "__init__")
        for room, others in rooms.items():
            others.discard(room)
        return rooms

    @property
    def arrows(self) -> int:
        """How many pairs of rooms there are of which one imports from the other."""
        return sum(map(len, self.rooms.values()))

    @property
    def floors(self) -> int:
        """The longest way down, in rooms."""
        height: dict[str, int] = {}
        for room in TopologicalSorter(self.rooms).static_order():
            height[room] = 1 + max((height[other] for other in self.rooms[room]), default=0)
        return max(height.values())

    def figures(self) -> dict[str, object]:
        """What is read from the source, by its name."""
        functions = [function for source in self.core for function in source.functions()]
        return {
            "rooms": len(self.rooms),
            "floors": self.floors,
            "arrows": self.arrows,
            "files": len(self.sources),
            "lines": sum(source.lines for source in self.sources),
            "files of the core": len(self.core),
            "lines of the core": sum(source.lines for source in self.core),
            "median file of the core": median(source.lines for source in self.core),
            "largest file of the core": max(source.lines for source in self.core),
            "parameters that are Callables": sum(map(_callables, self.core)),
            "highest complexity": max(map(complexity, functions)),
            "longest function": max(map(length, functions)),
        }


def complexity(function: Function) -> int:
    """How many ways there are through a function's own lines, inner functions apart."""
    return 1 + sum(map(_branches, _own_nodes(function)))


def length(function: Function) -> int:
    """How many lines the body of a function has, its docstring apart."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    left: list[ast.AST] = [*function.body]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def _branches(node: ast.AST) -> int:
    match node:
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While():
            return 1
        case ast.ExceptHandler() | ast.match_case() | ast.Assert():
            return 1
        case _:
            return 0


def _callables(source: Source) -> int:
    arguments = (node for node in ast.walk(source.tree) if isinstance(node, ast.arg))
    given = (one.annotation for one in arguments if one.annotation is not None)
    return sum("Callable" in ast.unparse(annotation) for annotation in given)
