"""What a client's options say."""

import math
from typing import Any

from aioretry._drivers.port import Policy


def policy(delegate: Any) -> Policy:
    """Return what a client's options say about attempts."""
    options = delegate.options
    return Policy(
        retry_writes=options.retry_writes,
        retry_reads=options.retry_reads,
        max_adaptive_retries=options.max_adaptive_retries,
        overload_retargeting=options.enable_overload_retargeting,
        wait_queue_timeout=options.pool_options.wait_queue_timeout,
    )


def encrypts(delegate: Any) -> bool:
    """Tell whether a client encrypts by itself what it sends (Client Side Encryption)."""
    encrypter = delegate._encrypter
    return encrypter is not None and not encrypter._bypass_auto_encryption


def is_load_balanced(delegate: Any) -> bool:
    """Tell whether a client's servers are behind a load balancer."""
    return bool(delegate.options.load_balanced)


def timeout(delegate: Any) -> float | None:
    """Return a client's ``timeoutMS`` in seconds, infinite if it is 0; None if it was not given."""
    seconds = delegate.options.timeout
    return math.inf if seconds == 0 else seconds


def uses_more(delegate: Any) -> bool:
    """Tell whether more than a plain connection is needed for a command.

    To encrypt it or decrypt its reply, to be called by pools of connections, or to log in again in
    the middle.
    """
    pool = delegate.options.pool_options
    encrypter = delegate._encrypter
    credentials = pool._credentials
    return (
        encrypter is not None
        or (pool._event_listeners is not None and pool._event_listeners.enabled_for_cmap)
        or (credentials is not None and credentials.mechanism == "MONGODB-OIDC")
    )
