"""What came of attempts, for drivers that a test answers for."""

from aioretry._drivers.port import Failed, Replied


def result_of(record, server, numbered):
    """What came of an attempt, by what is kept of it."""
    if record.error is None:
        return Replied(record, record.reply, server, numbered)
    return Failed(record, record.error, server, numbered)
