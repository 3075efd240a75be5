"""The command itself: from a connection string to an exit code."""

import asyncio
import logging
import os
import sys
from typing import Final

from pymongo.errors import PyMongoError

from aioretry._doctor.gather import gather
from aioretry._doctor.judge import judge
from aioretry._doctor.report import json_of, text_of
from aioretry._doctor.secrets import is_clear, without_secrets

USAGE: Final = 2
INTERRUPTED: Final = 130
_FROM_ENVIRONMENT: Final = "env:"


def run(uri: str, seconds: float, *, as_json: bool) -> int:
    """Examine a deployment and tell what was found.

    Args:
        uri: The connection string, or ``env:`` and the name of a variable that holds it.
        seconds: How long to wait for each answer.
        as_json: Whether to tell it as JSON.

    Returns:
        The exit code.
    """
    if uri.startswith(_FROM_ENVIRONMENT):
        name = uri.removeprefix(_FROM_ENVIRONMENT)
        if name not in os.environ:
            return _refuse(f"there is no environment variable {name}")
        uri = os.environ[name]
    # What PyMongo logs of its connections could hold what must not be told.
    logging.getLogger("pymongo").setLevel(logging.CRITICAL)
    try:
        facts = asyncio.run(gather(uri, seconds))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (PyMongoError, ValueError, TypeError) as exc:
        return _refuse(_without_uri(exc, uri))
    judgement = judge(facts)
    tell = json_of if as_json else text_of
    sys.stdout.write(tell(facts, judgement))
    return judgement.verdict.value


def _without_uri(exc: Exception, uri: str) -> str:
    # Where a string can't be taken apart, nobody knows which part of it is the password.
    kind = f"the connection string makes no client ({type(exc).__name__})"
    if not is_clear(uri):
        return (
            f"{kind}; what is wrong is not told, because it may hold credentials: characters such "
            "as / : @ % in a user name or password must be percent-encoded"
        )
    return f"{kind}: {without_secrets(str(exc), uri)}"


def _refuse(why: str) -> int:
    sys.stderr.write(f"{why}\n")
    return USAGE
