"""The command itself: from a connection string to an exit code."""

import asyncio
import logging
import os
import sys
from typing import Final

from pymongo.errors import ConfigurationError, PyMongoError

from aioretry._cli import INTERRUPTED, complain
from aioretry._doctor.facts import Facts
from aioretry._doctor.gather import gather
from aioretry._doctor.judge import Answer, judge
from aioretry._doctor.report import json_of, text_of
from aioretry._doctor.secrets import is_clear, without_secrets

DEFECT: Final = 70
_FROM_ENVIRONMENT: Final = "env:"
_UNCLEAR: Final = (
    "the connection string makes no client: it is not clear where its user name and password end",
    "characters such as / : @ % in them must be percent-encoded",
)


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
            # A connection string that was put there by mistake is not told.
            told = f" {name}" if name.isidentifier() else " of that name"
            return complain(
                f"there is no environment variable{told}",
                "export it with the connection string, or give that itself",
            )
        uri = os.environ[name]
    if not is_clear(uri):
        # The driver would take a part of the password for a host, and look its name up.
        return complain(*_UNCLEAR)
    # What PyMongo logs of its connections could hold what must not be told.
    logging.getLogger("pymongo").setLevel(logging.CRITICAL)
    try:
        facts = asyncio.run(gather(uri, seconds))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (PyMongoError, ValueError, TypeError, OSError) as exc:
        return _explain(exc, uri)
    except Exception as exc:  # noqa: BLE001 - a traceback and exit code 1 would say something else
        return _give_up(exc)
    return _tell(facts, as_json=as_json)


def _tell(facts: Facts, *, as_json: bool) -> int:
    try:
        judgement = judge(facts)
        text = json_of(facts, judgement) if as_json else text_of(facts, judgement)
    except Exception as exc:  # noqa: BLE001 - likewise
        return _give_up(exc)
    sys.stdout.write(text)
    return judgement.answer.value


def _explain(exc: Exception, uri: str) -> int:
    why = f"{type(exc).__name__}: {without_secrets(str(exc), uri)}"
    if _is_of_dns(exc):
        return complain(
            f"no server could be asked: {why}",
            "check the host name, and that its DNS can be asked from here",
            Answer.UNREACHABLE.value,
        )
    return complain(
        f"the connection string makes no client: {why}",
        "correct it; its form is mongodb://USER:PASSWORD@HOST:PORT,.../?OPTION=VALUE",
    )


def _is_of_dns(exc: Exception) -> bool:
    # Older versions of PyMongo look for the hosts of mongodb+srv:// when a client is made.
    cause = type(exc.__cause__ or exc.__context__)
    return isinstance(exc, ConfigurationError) and cause.__module__.partition(".")[0] == "dns"


def _give_up(exc: Exception) -> int:
    return complain(
        f"the doctor itself has failed ({type(exc).__name__})",
        "report it, with the versions of aioretry, PyMongo and the server",
        DEFECT,
    )
