"""The command line: ``python -m aioretry COMMAND``."""

import argparse
import sys
from collections.abc import Sequence

from aioretry import __version__
from aioretry._demo import options as demo
from aioretry._doctor import options as doctor
from aioretry.streams import command as stream


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments; by default the process's own.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m aioretry",
        description="The resilient write path for asyncio services on MongoDB.",
    )
    parser.add_argument("--version", action="version", version=f"aioretry {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo.add_command(commands)
    doctor.add_command(commands)
    stream.add_command(commands)
    arguments = parser.parse_args(argv)
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
