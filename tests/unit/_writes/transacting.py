"""Sessions of no driver, whose transactions are run by a coordinator and a path that are real."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from aioretry._commands.command import CommandLimits
from aioretry._drivers.port import (
    Expired,
    Failed,
    Policy,
    Replied,
    ServerKind,
    ServerView,
    TopologyView,
    TransactionOptions,
)
from aioretry._drivers.transaction_runs import Runs
from aioretry._writes.context import TransactionalSession, WritePath

ADDRESS, OTHER = ("a", 1), ("b", 1)
COMMIT, ABORT = "commitTransaction", "abortTransaction"
OK = {"ok": 1}


class Ending:
    """The session of a transaction's end, noted."""

    def __init__(self, log):
        self._log = log
        self.pinned = None

    def pin(self, address):
        self.pinned = address

    def unpin(self):
        self.pinned = None

    def close(self, *, discard):
        self._log.append("kept" if discard else "given back")


class Driver:
    """Answers commands as a test says, with OK by default; None is no answer."""

    def __init__(self):
        self.answers = []
        self.log = []
        self.sent = []
        self.asked = []
        self.calls = []
        self.kind = ServerKind.PRIMARY
        self.addresses = [ADDRESS]
        self.pinned = None
        self.has_room = True
        self.looks = 0
        self.is_late = False
        """Whether there is no time left for the next command."""
        self.session_minutes = 30

    def view(self):
        self.looks += 1
        limits = CommandLimits(16, 48, 9)
        servers = {
            each: replace(
                ServerView(each, self.kind, 17, True, None, far, limits, lambda: 0, object()),
                session_minutes=self.session_minutes,
            )
            for far, each in enumerate(self.addresses)
        }
        return TopologyView(servers, 0.015, next(iter(servers.values())).source)

    def ending_session(self, session):
        ending = Ending(self.log)
        ending.pinned = self.pinned
        return ending

    def discard(self, session, *, is_over):
        self.log.append(f"discard {session} {'over' if is_over else 'open'}")

    def attempt(self, loop, call, receiver):
        if not self.has_room:
            return False
        if self.is_late:
            self.is_late = False
            loop.call_soon(receiver.land, Expired())
            return True
        call.lease.carry()
        if call.token.begin_sending():
            self.asked.append(call.server.address)
            self.sent.append({**call.command.body, **call.options})
            answer = self.answers.pop(0) if self.answers else OK
            self.calls.append((call, receiver))
            if answer is not None:
                loop.call_soon(self.land, answer)
        return True

    def land(self, answer):
        """Have the latest attempt end."""
        call, receiver = self.calls.pop()
        call.lease.drop()
        failed = isinstance(answer, Exception)
        receiver.land(Failed(answer, sent=True) if failed else Replied(answer))

    def time_out(self, call):
        return False

    def abandon(self, call):
        return False

    def start_probing(self):
        pass

    def stop_probing(self):
        pass

    def add_label(self, error, label):
        error._add_error_label(label)

    @property
    def names(self):
        """What was sent."""
        return [next(iter(command)) for command in self.sent]


class Calls:
    """What is asked of sessions; their transactions are plain objects."""

    def __init__(self, log):
        self._log = log
        self._runs = Runs()
        self.concern = WriteConcern()
        self.is_pending = self.has_begun = False
        self.router = None

    def runs_of(self, session):
        return self._runs

    def renewed(self, session):
        self._log.append("renewed")
        return session.like()

    def take_transaction(self, session):
        self._log.append("taken")
        session.transaction = None
        return "it"

    def has_pending(self, session):
        return self.is_pending

    may_arrive = has_pending

    def has_begun_transaction(self, session):
        return True

    def transaction_options(self, session):
        return TransactionOptions(ReadPreference.PRIMARY, self.concern, 700, None, self.router)

    def begin_commit(self, session):
        return session.transaction

    begin_abort = begin_commit

    def end_commit(self, transaction, *, unpin):
        transaction.has_ended, transaction.is_unpinned = True, unpin

    def keep_open(self, session):
        self._log.append("kept open")

    def end_abort(self, transaction):
        transaction.has_ended = True

    def end(self, session):
        self._log.append("end")


class Session(TransactionalSession):
    """A session, whose transactions begin at once or after an await."""

    has_ended = False

    def __init__(self, driver, path, *, starts_later=False):
        self._calls = Calls(driver.log)
        self._write_path = path
        self._starts_later = starts_later
        self.driver, self.log = driver, driver.log
        self.transaction = None

    @property
    def in_transaction(self):
        return self.transaction is not None and not self.transaction.has_ended

    def like(self):
        return Session(self.driver, self._write_path)

    def start_transaction(self, *_):
        if self._starts_later:
            return self._start()
        self.log.append("start")
        self.transaction = SimpleNamespace(has_ended=False)
        self._commit = None
        return nullcontext()

    async def _start(self):
        self._starts_later = False
        self.start_transaction()
        self._starts_later = True


def session_over(driver, hooks=(), **options):
    """A session of a client over a driver, on the running event loop."""
    loop = asyncio.get_running_loop()
    path = WritePath(
        driver,
        Policy(retry_writes=False),
        SimpleNamespace(get_io_loop=lambda: loop),
        server_selection_timeout=1.0,
        timeout=None,
        encrypts=False,
        is_load_balanced=False,
        hooks=tuple(hooks),
        most_under_way=9,
        most_waiting=9,
    )
    return Session(driver, path, **options)
