"""The command line: ``python -m aioretry COMMAND``."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from aioretry import __version__
from aioretry._cli import USAGE, complain, hidden
from aioretry._doctor import options as doctor
from aioretry.outbox import command as outbox
from aioretry.streams import command as stream


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line, and quote no connection string."""

    def error(self, message: str) -> NoReturn:
        """Complain of the arguments, and exit with code 2.

        Args:
            message: What is wrong; what may hold credentials of it is not told.
        """
        sys.exit(complain(hidden(message), f"see `{self.prog} --help`", USAGE))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; without one, say which there are.

    Args:
        argv: The arguments; by default the process's own.

    Returns:
        The exit code.
    """
    parser = _parser()
    parser.add_argument("--version", action="version", version=f"aioretry {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    doctor.add_command(commands)
    stream.add_command(commands)
    outbox.add_command(commands)
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    code: int = arguments.run(arguments)
    return code


def _parser() -> argparse.ArgumentParser:
    return _Parser(
        prog="python -m aioretry",
        description="The resilient write path for asyncio services on MongoDB.",
    )


if __name__ == "__main__":
    sys.exit(main())
