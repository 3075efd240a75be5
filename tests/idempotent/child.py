"""A process that runs one recipe, to be killed."""

import asyncio
import importlib
import json
import sys


def main() -> None:
    """Run it."""
    target, uri, arguments = sys.argv[1:]
    module, _, function = target.partition(":")
    run = getattr(importlib.import_module(module), function)
    asyncio.run(run(uri, **json.loads(arguments)))


if __name__ == "__main__":
    main()
