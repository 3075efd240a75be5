"""Aggregates that follow a collection, each change counted exactly once.

A module imports only from lower ones:

    command  _aggregator              the command line; what users make
    _status  _rebuilding  _following  how it is; counting anew; following
    _committing  _holding  _settings  the transaction of a batch; work under a lease
    _reading  _leases                 events, many at once; who may write
    _sources  _watermarks             where changes come from; how far the aggregates are
    _pace  _folding  _changes  _checks  _errors  _watching
                                      how much at once; pure; streams of either driver
"""

from aioretry.streams._aggregator import Aggregator
from aioretry.streams._changes import Change, ChangeKind, Position
from aioretry.streams._errors import (
    ChangeTooLargeError,
    CounterOverflowError,
    LeaseLostError,
    MismatchError,
    NotBuiltError,
    PositionLostError,
    RebuildNeededError,
    SourceChangedError,
    SourceError,
    StreamError,
    TargetError,
)
from aioretry.streams._leases import LeaseKind
from aioretry.streams._rebuilding import Progress
from aioretry.streams._sources import ChangeStreamSource, QueueSource, Source, append, entry
from aioretry.streams._status import Lag, PartStatus, Status
from aioretry.streams._watermarks import NO_WATERMARKS

__all__ = [
    "NO_WATERMARKS",
    "Aggregator",
    "Change",
    "ChangeKind",
    "ChangeStreamSource",
    "ChangeTooLargeError",
    "CounterOverflowError",
    "Lag",
    "LeaseKind",
    "LeaseLostError",
    "MismatchError",
    "NotBuiltError",
    "PartStatus",
    "Position",
    "PositionLostError",
    "Progress",
    "QueueSource",
    "RebuildNeededError",
    "Source",
    "SourceChangedError",
    "SourceError",
    "Status",
    "StreamError",
    "TargetError",
    "append",
    "entry",
]
