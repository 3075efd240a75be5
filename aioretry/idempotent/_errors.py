"""What the recipes refuse to do."""

from pymongo.errors import InvalidOperation

from aioretry import DeadlineExceeded


class IdempotencyConflict(InvalidOperation):
    """What was to be written is not what was written under the same name before.

    Nothing was changed by the write that raised it.
    """


class KeyExpiredError(InvalidOperation):
    """A key was used so long ago that the servers may have forgotten what was written.

    Nothing was sent: the write would be applied again, or for the first time. Look into the
    database, and use another key if it is to be applied.
    """


class KeyInUseError(InvalidOperation):
    """Another call with the same key was still running when this one's time was over.

    Nothing was changed by the call that raised it. Repeated later, it gets the other one's answer,
    or does the work if the other one has failed.
    """


class NoTurnError(DeadlineExceeded):
    """Too many calls with keys were before this one for its deadline.

    Nothing is applied. It says nothing of the servers: more of them would not help, but a higher
    ``per_second`` or ``at_once``, or more time.
    """
