"""A process that runs one recipe, to be killed."""

import asyncio
import importlib
import json
import sys
from typing import Any


def run(target: str, uri: str, arguments: dict[str, Any]) -> None:
    """Run a recipe.

    Args:
        target: ``module:function``: an ``async def``.
        uri: Its first argument.
        arguments: Its other ones.
    """
    module, _, function = target.partition(":")
    asyncio.run(getattr(importlib.import_module(module), function)(uri, **arguments))


if __name__ == "__main__":
    run(*sys.argv[1:3], json.loads(sys.argv[3]))
