"""Effects outside the database, of transactions that were committed: at least once, in order.

A module imports only from lower ones:

    command                           the command line
    _relay                            hands entries on
    _outbox                           keeps them
"""

from aioretry.outbox._outbox import Entry, Outbox, OutboxStatus
from aioretry.outbox._relay import Deliver, Relay, Undeliverable

__all__ = ["Deliver", "Entry", "Outbox", "OutboxStatus", "Relay", "Undeliverable"]
