"""A test kit: real MongoDB servers, and faults between them and their clients, on purpose."""

from aioretry.testing._admin import CommandFailedError
from aioretry.testing._black_pipe import BlackPipe, PipeMember
from aioretry.testing._election import NoPrimaryError
from aioretry.testing._fail_points import FailPoint
from aioretry.testing._fault import Fault, FaultNotFiredError
from aioretry.testing._faults import Faults, Only
from aioretry.testing._ledger import Ledger
from aioretry.testing._ledger_report import Entry, KeyCount, LedgerError, LedgerReport
from aioretry.testing._member import Member
from aioretry.testing._mongod import Mongod, MongodNotFoundError, find_mongod
from aioretry.testing._mongos import FakeMongos, FakeMongoses
from aioretry.testing._proxy import Proxy
from aioretry.testing._replica_set import ReplicaSet, Standalone
from aioretry.testing._scripted import ScriptedServer
from aioretry.testing._scripted_request import ScriptedRequest
from aioretry.testing._server import MemberState, MongodStartError

__all__ = [
    "BlackPipe",
    "CommandFailedError",
    "Entry",
    "FailPoint",
    "FakeMongos",
    "FakeMongoses",
    "Fault",
    "FaultNotFiredError",
    "Faults",
    "KeyCount",
    "Ledger",
    "LedgerError",
    "LedgerReport",
    "Member",
    "MemberState",
    "Mongod",
    "MongodNotFoundError",
    "MongodStartError",
    "NoPrimaryError",
    "Only",
    "PipeMember",
    "Proxy",
    "ReplicaSet",
    "ScriptedRequest",
    "ScriptedServer",
    "Standalone",
    "find_mongod",
]

# Where users import them from is what messages and tracebacks should say.
for _name in __all__:
    if isinstance(_public := globals()[_name], type):
        _public.__module__ = __name__
