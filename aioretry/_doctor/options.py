"""The doctor's command line."""

import argparse
import math

_EPILOG = """\
The exit code is 0 if writes can be retried there, 1 if they can and there are warnings, 3 if they
can't, 4 if no server could be asked or the login failed, 2 if the command line or the connection
string makes no sense, and 70 if the doctor itself fails. Nothing is written, and credentials are
never told. The connection string is taken from the environment variable NAME if it is given as
env:NAME."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command ``doctor``."""
    parser = commands.add_parser(
        "doctor",
        help="say whether a deployment can retry writes, and what to change",
        description="Say whether a deployment can retry writes, what the defaults do there, and "
        "what to change.",
        epilog=_EPILOG,
    )
    parser.add_argument("uri", metavar="URI", help="the connection string")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=5.0,
        help="how long to wait for each answer, in seconds (default: 5)",
    )
    parser.add_argument("--json", action="store_true", help="tell it as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from aioretry._doctor import command  # noqa: PLC0415  # other commands need none of it

    return command.run(arguments.uri, arguments.timeout, as_json=arguments.json)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be more than 0, not {text!r}")
    return seconds
