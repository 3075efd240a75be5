"""The figures of the package's plan count what they say."""

import ast

import pytest

from tests.house.figures import House, complexity, length


def test_rooms(tmp_path):
    """A folder is one room; what a room imports from itself, or from others, is no arrow."""
    package = tmp_path / "shop"
    (package / "till").mkdir(parents=True)
    (package / "__init__.py").write_text("from shop.till import cash\n")
    (package / "till" / "__init__.py").write_text("import json\nfrom shop.till import cash\n")
    (package / "till" / "cash.py").write_text("from shop._coins import Coin, Note\n")
    (package / "_coins.py").write_text("class Coin:\n    pass\n")
    (package / "door.py").write_text("from shop import till\nimport shop._coins\n")
    house = House(package)
    assert {
        "__init__": {"till"},
        "till": {"_coins"},
        "_coins": set(),
        "door": {"till", "_coins"},
    } == house.rooms
    assert (4, 3) == (house.arrows, house.floors)


@pytest.mark.parametrize(
    ("body", "ways"),
    [
        ("pass", 1),
        ("if a and b or c: pass", 4),
        ("return a if b else c", 2),
        ("for a in b:\n  while c: pass", 3),
        ("match a:\n  case 1: pass\n  case _: pass", 3),
        ("try: pass\nexcept A: pass\nexcept B: pass", 3),
        ("return [a for a in b if c]", 3),
        ("def inner():\n  if a: pass", 1),
    ],
)
def test_complexity(body, ways):
    """Boolean operators, conditional expressions and match arms count, inner functions don't."""
    lines = "\n".join(f"  {line}" for line in body.splitlines())
    (function,) = ast.parse(f"def f():\n{lines}").body
    assert ways == complexity(function)


def test_length():
    """A docstring is no line of a body."""
    (function,) = ast.parse('def f():\n  """What it is."""\n  a = 1\n\n  return a\n').body
    assert 3 == length(function)
