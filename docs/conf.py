"""How Sphinx builds the site: `make docs`."""  # noqa: INP001

import inspect

import pymongo.errors
from sphinx.application import Sphinx

from aioretry import __version__

project = "aioretry"
author = "The aioretry maintainers"
copyright = author  # noqa: A001
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
default_role = "code"  # single backticks in docstrings
myst_heading_anchors = 4  # the anchors that GitHub makes, too

napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# What other packages have, and what of ours is not public, has no page here to lead to.
_PYMONGO_ERRORS = "|".join(name for name, _ in inspect.getmembers(pymongo.errors, inspect.isclass))
nitpick_ignore_regex = [
    (r"py:.*", r"(_asyncio|asyncio|bson|collections|contextlib|datetime)\..*"),
    (r"py:.*", r"(motor|pathlib|pymongo|ssl)\..*"),
    (r"py:.*", r"(aiohttp|fastapi|opentelemetry|prometheus_client|starlette)\..*"),
    (r"py:exc", rf"({_PYMONGO_ERRORS})"),
    (r"py:.*", r"aioretry\.(\w+\.)*_\w+\..*"),
    (r"py:class", r"aioretry\.(deadlines|session)\.T"),
    # A signature with a default that a factory makes can't be parsed, and is cut into pieces.
    (r"py:class", r"(tuple\[str|dict\[~typing\.Any)"),
]

html_theme = "furo"
html_title = f"aioretry {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


def _first_line_of_a_module(
    app: Sphinx,  # noqa: ARG001
    what: str,
    name: str,  # noqa: ARG001
    obj: object,  # noqa: ARG001
    options: object,  # noqa: ARG001
    lines: list[str],
) -> None:
    """Leave the rest to those who ask for `help()`: the site has pages for it."""
    if what == "module":
        del lines[1:]


def setup(app: Sphinx) -> None:
    """Take part in the build."""
    app.connect("autodoc-process-docstring", _first_line_of_a_module)
