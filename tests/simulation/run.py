"""One run: clients over the library, the library over the simulated servers, and the verdict."""

import asyncio
import contextlib
import gc
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import bson
from pymongo import DeleteOne, InsertOne, ReturnDocument, UpdateOne
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.write_concern import WriteConcern

from aioretry import (
    DeadlineExceeded,
    Outcome,
    ResolveError,
    RetryClient,
    WritesUnavailableError,
    attempts_of,
    deadline,
    outcome_of,
    partial_result_of,
    resolve,
    run_transaction,
)
from aioretry._drivers import motor, pymongo_async
from aioretry._writes.context import CLOSE_TIMEOUT, settled
from aioretry.pymongo import AsyncRetryClient
from tests.simulation.clock import Clocks, VirtualLoop
from tests.simulation.commands import INCOMPLETE_HISTORY, Command
from tests.simulation.driver import (
    NOTHING_WRITTEN,
    OPERATION,
    VANISHED_FOR,
    Kept,
    SimulatedDriver,
)
from tests.simulation.keys import Key
from tests.simulation.members import Member
from tests.simulation.plan import READS, TRANSFERS, TRAVELLING, WRITES, Fault, Operation, Plan
from tests.simulation.reads import PREFERENCES, Reads
from tests.simulation.replica_set import ReplicaSet
from tests.simulation.routers import HOST_UNREACHABLE, NO_PRIMARY_FOUND, Router
from tests.simulation.state import REMEMBERED_FOR
from tests.simulation.transfers import TIMES, Transfers

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
GRACE = 0.25 + 0.05
"""How much later than its deadline an operation may end, in seconds."""

PATIENCE = 10_000.0
"""How long all operations may take together, in seconds."""

SELECTION_TIMEOUT = 30.0
"""The client's serverSelectionTimeoutMS, in seconds; a retry waits no longer for a server."""

LONGEST_PAUSE = 1.0
"""How long the client waits at most before it sends something again, in seconds."""

LONGEST = 200.0
"""How long an operation without a deadline may take, in seconds."""

# Duplicate keys, concerns that are not met, state changes, overload, history that is lost.
_EXPECTED_CODES = {11000, 64, 50, 91, 189, 11602, 10107, 462, 217}
_EXPECTED_CODES |= {HOST_UNREACHABLE, NO_PRIMARY_FOUND}

# Operations of one command of their own.
_OF_ONE = {"insert", "update", "upsert", "replace", "delete", "find_one_and_update", "contested"}

# Those that say themselves how they are to be acknowledged.
_WITH_OPTIONS = _OF_ONE - {"contested"} | {"insert_many", "bulk_write", "update_many", "operation"}
_WITH_OPTIONS |= {"user_session"}

MOST_WITHOUT_A_DEADLINE = 1 + 2
"""How often a command is sent at most; two retries are for overload."""

# Those that are not repeated, and those that wait for each other.
_PATIENT = {"update_many", "user_session"}

MOST_ATTEMPTS = 100_000
"""How many attempts a run may make; some thousands are many."""

QUIET = 120.0
"""How long everything has to come to rest, in seconds."""


@dataclass(slots=True)
class Told:
    """What a caller was told of each of an operation's statements."""

    tags: list[str]
    outcomes: list[Outcome] = field(default_factory=list)
    error: BaseException | None = None
    done: int = 0
    """How many of an operation's writes have ended well, one after the other."""

    is_in_doubt: bool = False
    """Whether an earlier write with the same key is in doubt."""

    is_answered: bool = False
    """Whether an answer has come after the end that says that all is done."""

    ended: float | None = None
    """When it had ended, in seconds, if its caller has done something else since."""

    took: float = 0.0
    waits: bool = True
    """Whether its caller waits for it, or resolves it."""

    is_over: bool = False


@dataclass(slots=True)
class Verdict:
    """What came of a run."""

    wrong: list[str]
    trace: list[str]
    counts: dict[str, int]


class Run:
    """A run.

    Args:
        plan: What happens.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = VirtualLoop()
        self.clocks = Clocks(self.loop)
        self.trace: list[str] = []
        self.wrong: list[str] = []
        self.told: dict[int, Told] = {}
        self.attempts = self.sent = 0
        self.counts: Counter[str] = Counter()
        self.sent_for: Counter[int] = Counter()
        self.sent_at: dict[int, float] = {}
        """When something was sent last for each operation, in seconds."""

        self.faults = 0
        """How many messages, connections and servers something has happened to."""

        self.by_index = {one.index: one for one in plan.operations}
        self.begun: set[bytes | None] = set()
        """The sessions over which something was sent."""

        self.of_session = {one.index for one in plan.operations if one.kind == "user_session"}
        self.lines = {
            line: frozenset(one.index for one in plan.operations if _line_of(one) == line)
            for line in ("insert", "update", "delete")
        }
        """Who waits for a command of others that travel together, by what they travel in."""

        self.called: dict[str, tuple[int, bool]] = {}
        """The place in the order of the calls of each insert that travels with others, and whether
        it has a deadline."""

        self.ordered: set[int] = set()
        self.last_ordered = {False: -1, True: -1}
        """The last of them that were sent, with a deadline and without."""

        self.removed: dict[str, int] = {}
        """Which operation was told that it has removed a contested document."""

        self.transfers = transfers = Transfers(self)
        self.reads = reads = Reads(self)
        self.others: dict[str, Any] = {
            kind: one for one in (transfers, reads) for kind in one.kinds
        }
        """Who does what is no single write, by its kind."""

        self.expected_codes = _EXPECTED_CODES
        self.troubled_at = 0.0
        """When something has happened to a server, in seconds."""

        self.calm: list[tuple[float, float]] = []
        """From when to when all was well before something has happened, if that was for long."""

    def note(self, text: str) -> None:
        """Take a line of the trace."""
        self.trace.append(f"{self.loop.time():10.6f} {text}")

    def verdict(self) -> Verdict:
        """Run it."""
        with self.clocks.in_force(self.plan.seed):
            self.loop.set_exception_handler(self._hear_of_trouble)
            try:
                self.loop.run_until_complete(self._run())
            except BaseException as exc:  # noqa: BLE001 - it is a finding like others
                self.wrong.append(f"the run ended with {exc!r}")
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()
        counts = {**self.counts, "sent": self.sent, "faults": self.faults}
        return Verdict(self.wrong, self.trace, counts)

    def _hear_of_trouble(self, loop: Any, context: Mapping[str, Any]) -> None:
        del loop
        self.wrong.append(f"in the event loop: {context.get('exception', context['message'])!r}")

    async def _run(self) -> None:
        plan = self.plan
        self.set = ReplicaSet(
            self.loop,
            self.clocks,
            Random(f"servers {plan.seed}"),
            self.note,
            version=plan.version,
        )
        self.driver = SimulatedDriver(
            self.loop,
            self.set,
            self._routers(),
            Random(f"driver {plan.seed}"),
            plan.network,
            plan.seed,
            self.note,
            plan.connections,
        )
        self.driver.has_begun = self._has_begun
        self.driver.has_sent = self._has_sent
        self.driver.has_answered = self._has_answered
        self._prepare_documents()
        self.client = self._new_client()
        self.collection = self.client.db.things
        documents, size = plan.together
        self.view = self.collection.coalesced(max_documents=documents, max_bytes=size)
        self.session = await settled(self.client.start_session())
        own = self.driver._own(self.session)
        self.shared = bytes(own.session_id["id"])
        tasks = [self.loop.create_task(self._operate(one)) for one in plan.operations]
        if plan.closed_at is not None:
            self.loop.call_at(plan.closed_at, self._close)
        for fault in plan.faults:
            self.loop.call_at(fault.at, self._begin_fault, fault)
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)
        for task, operation in zip(tasks, plan.operations, strict=True):
            if not task.done():
                self.complain(operation, "hangs")
            elif task.exception() is not None:
                self.complain(operation, f"ended with {task.exception()!r}")
        ends = max((fault.at + fault.seconds for fault in plan.faults), default=0.0)
        await asyncio.sleep(max(0.0, ends - self.loop.time()) + QUIET)
        if plan.closed_at is None:
            await self._judge_service()
            await asyncio.sleep(QUIET)  # what is aborted goes on beside it
        self.faults += self.driver.faults
        self._judge_outcomes()
        self._judge_leaks()
        self._close()
        await asyncio.sleep(5.0)
        self._judge_sessions()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            self.wrong.append(f"{len(others)} tasks are left")
        timers = [timer for timer in self.loop.timers() if _is_the_librarys(timer)]
        if timers:
            self.wrong.append(f"{len(timers)} timers are left: {timers[0]!r}")

    def _new_client(self) -> Any:
        """Return a client of the plan's face, over the simulated driver."""
        face: Any = RetryClient
        room, driver = motor, "MotorDriver"
        if self.plan.has_coroutines:
            face, room, driver = AsyncRetryClient, pymongo_async, "AsyncioDriver"
        with mock.patch.object(room, driver, self.driver.of):
            return face(
                "mongodb://simulated/?w=majority",
                max_concurrent_attempts=self.plan.at_once,
                fail_fast_after=self.plan.fail_fast_after or math.inf,
                retry_budget=self.plan.retry_budget,
            )

    def _routers(self) -> list[Router]:
        breaks = self.plan.routers
        if breaks is None:
            return []
        random = Random(f"routers {self.plan.seed}")
        return [Router(self.set, number, random, breaks) for number in range(2)]

    def _close(self) -> None:
        self.note("the client is closed")
        closing = self.client.close()
        if closing is not None:
            self.loop.create_task(closing)

    def _prepare_documents(self) -> None:
        primary = self.set.primary
        for operation in self.plan.operations:
            for position in range(operation.count):
                tag = f"t{operation.index}_{position}"
                for kind in ("d", "u", "r"):
                    key = f"{kind}{tag}"
                    primary.append(changes=(("things", key, {"_id": key}),), at=0.0)
        for key in ("hot", "many0", "many1"):
            document = {"_id": key, "many": key != "hot"}
            primary.append(changes=(("things", key, document),), at=0.0)
        self.transfers.prepare()
        self.set.settle()

    def _has_begun(self) -> None:
        self.attempts += 1
        if self.attempts == MOST_ATTEMPTS:  # such a run would take hours
            self.wrong.append(f"{MOST_ATTEMPTS} attempts were made, and there is no end")
            self.loop.stop()

    def _has_sent(self, index: int, command: Command) -> None:
        self._judge_order(command.body)
        self._judge_sessions_in_use(index, command)
        self._judge_wtimeout(index, command)
        self.transfers.hears(index, command)
        if (command.session == self.shared) != (index in self.of_session):
            self.wrong.append(f"operation {index}: something is sent over another session")
        self.sent += 1
        self.sent_for[index] += 1
        self.sent_at[index] = self.loop.time()
        self._judge_company(index, command)
        told = self.told.get(index)
        if told is not None and told.is_over and not self._may_be_sent(index, command):
            self.wrong.append(f"operation {index}: something is sent after it was over")

    def _judge_company(self, index: int, command: Command) -> None:
        """What travels together is sent for somebody who waits for it."""
        if index not in self.told or self.by_index[index].kind not in TRAVELLING:
            return
        company = {int(number) for number in re.findall(r"t(\d+)_\d", repr(command.body))}
        if not any(self.told[one].waits for one in company):
            self.wrong.append(f"operation {index}: is sent, and nobody waits for it")

    def _may_be_sent(self, index: int, command: Command) -> bool:
        kind = self.by_index[index].kind
        return kind in self.others and self.others[kind].may_be_sent(command)

    def _has_answered(self, index: int, command: Command) -> None:
        self.transfers.hears_answer(command)
        told = self.told.get(index)
        if told is not None:
            told.is_answered = told.error is not None

    def complain(self, operation: Operation, text: str) -> None:
        self.wrong.append(f"operation {operation.index} ({operation.kind}): {text}")

    # Faults.

    def _begin_fault(self, fault: Fault) -> None:
        member = self.set.primary if fault.member is None else self.set.members[fault.member]
        member, later = member or self.set.members[0], self.loop.call_later
        if fault.kind.endswith("router"):
            self._trouble_router(fault)
            return
        self.faults += 1
        self._see_trouble()
        self.note(f"{fault.kind} {member} for {fault.seconds} s")
        match fault.kind:
            case "kill" if member.is_up:
                self.set.kill(member, loses=fault.seconds > 1)
                later(fault.seconds, self._start, member)
            case "freeze" if member.is_up and not member.is_frozen:
                self.set.freeze(member)
                later(fault.seconds, self._thaw, member)
            case "cut_off" if not member.is_cut_off:
                self.set.cut_off(member)
                later(fault.seconds, self._join, member)
            case "step_down":
                self.set.step_down()
            case "outage":
                for one in self.set.members:
                    self.set.kill(one, loses=False)
                    later(fault.seconds, self._start, one)
            case "partition":
                self.driver.network = replace(self.plan.network, vanished=1.0)
                later(fault.seconds, self._end_partition)
            case "wall_clock":
                self.clocks.set_wall(100 * (fault.seconds - 5))

    def _trouble_router(self, fault: Fault) -> None:
        if self.plan.routers is None:
            return
        router: Router = self.driver.servers[(fault.member or 0) % 2]
        self.faults += 1
        self._see_trouble()
        self.note(f"{fault.kind} {router} for {fault.seconds} s")
        if fault.kind == "kill_router":
            router.kill()
        elif router.is_up:
            router.freeze()
        self.driver.hears_of(router)
        # What lies in its queue for longer than it is remembered is executed again: nothing tells
        # a shard that its router has slept. (If clocks are set ahead, that is so even then.)
        self.loop.call_later(min(fault.seconds, 600.0), self._heal_router, router)

    def _heal_router(self, router: Router) -> None:
        self._see_trouble()
        router.start()
        router.thaw()
        self.driver.hears_of(router)

    def _start(self, member: Member) -> None:
        self._see_trouble()
        if not member.is_up:
            self.set.start(member)

    def _thaw(self, member: Member) -> None:
        self._see_trouble()
        if member.is_up and member.is_frozen:
            self.set.thaw(member)

    def _end_partition(self) -> None:
        self.driver.network = self.plan.network
        self.troubled_at = max(self.troubled_at, self.loop.time() + VANISHED_FOR)

    def _join(self, member: Member) -> None:
        self._see_trouble()
        self.set.join(member)

    def _see_trouble(self) -> None:
        now, seconds = self.loop.time(), self.well_for()
        if seconds > LONGEST and self.somebody_is_there():
            self.calm.append((now - seconds, now))
        self.troubled_at = max(self.troubled_at, now)

    def well_for(self) -> float:
        """How long nothing has happened to the servers, in seconds."""
        if self.driver.network.vanished == 1.0:
            return 0.0
        return self.loop.time() - max(self.troubled_at, self.set.elected_at)

    def _calm_within(self, seconds: float) -> float:
        """How long all was well without a break in the latest seconds, in seconds."""
        began = self.loop.time() - seconds
        return max([self.well_for(), *(until - max(at, began) for at, until in self.calm)])

    def somebody_is_there(self) -> bool:
        """Tell whether there is a primary, and a router that is awake if there are some."""
        servers, has_routers = self.driver.servers, self.plan.routers is not None
        is_reached = not has_routers or any(one.is_up and not one.is_frozen for one in servers)
        return is_reached and self.set.primary is not None

    # Operations.

    async def _operate(self, operation: Operation) -> None:
        await asyncio.sleep(operation.at)
        OPERATION.set(operation.index)
        tags = [f"t{operation.index}_{n}" for n in range(_count_of(operation))]
        told = self.told[operation.index] = Told(tags)
        began, others = self.loop.time(), self.others.get(operation.kind)
        limit = operation.deadline if others is None else others.deadline_of(operation)
        try:
            async with asyncio.timeout(operation.cancelled):
                with deadline(limit):
                    if self._style(operation) == "task":
                        await self._call_in_task(operation, tags)
                    else:
                        await self._call(operation, tags)
        except Exception as exc:  # noqa: BLE001 - it is what is looked at
            told.error = exc
            told.outcomes = self._outcomes(operation, told, exc)
            self.note(f"op {operation.index} ends with {exc!r}: {told.outcomes}")
        else:
            told.outcomes = [APPLIED] * len(tags)
            if others is not None:
                told.outcomes = others.outcomes_of_success(operation)
            self.note(f"op {operation.index} ends well")
        told.waits = False
        told.took = (told.ended or self.loop.time()) - began
        self._judge_time(operation, told)
        if self.plan.closed_at is None:
            self._judge_error(operation, told)
        self._judge_attempts(operation, told)
        error = told.error
        if error is not None and operation.resolved is not None and UNKNOWN in told.outcomes:
            sent = self.sent_for[operation.index]
            await asyncio.sleep(operation.resolved)
            is_alone = operation.kind not in TRAVELLING and operation.kind not in self.others
            if self.sent_for[operation.index] > sent and is_alone:
                self.complain(operation, "is sent after its end")
            told.waits = True
            await self._resolve(operation, told, error)
            told.waits = False
        told.is_over = operation.kind not in TRAVELLING  # others' writes go in its context

    async def _resolve(self, operation: Operation, told: Told, error: BaseException) -> None:
        began, sent, is_answered = (
            self.loop.time(),
            self.sent_for[operation.index],
            told.is_answered,
        )
        try:
            await resolve(error, 10.0)
        except ResolveError as exc:
            self.note(f"op {operation.index} can't be resolved: {exc}")
        except Exception as exc:  # noqa: BLE001 - it is what is looked at
            told.outcomes = _resolved(operation, told, self._outcomes(operation, told, exc))
            self.note(f"op {operation.index} is resolved by {exc!r}: {told.outcomes}")
        else:
            told.outcomes = _resolved(operation, told, [APPLIED] * len(told.tags))
            self.note(f"op {operation.index} is resolved: applied")
        if operation.kind in self.others and UNKNOWN not in told.outcomes:
            self.others[operation.kind].is_resolved(operation)
        if is_answered and operation.kind in _OF_ONE and self.sent_for[operation.index] > sent:
            self.complain(operation, "was sent once more, although its answer had come")
        if self.loop.time() - began > 10.0 + GRACE:
            self.complain(operation, f"resolve took {self.loop.time() - began:.2f} s")

    def _outcomes(self, operation: Operation, told: Told, exc: BaseException) -> list[Outcome]:
        others = self.others.get(operation.kind)
        return (
            _outcomes(operation, told, exc)
            if others is None
            else others.outcomes(operation, told, exc)
        )

    def _judge_time(self, operation: Operation, told: Told) -> None:
        callers = self.others.get(operation.kind, self.reads)
        most = callers.most_seconds(operation)
        if most is not None and told.took > most + GRACE:
            self.complain(operation, f"took {told.took:.2f} s, and may take {most} s")
        closed_at = self.plan.closed_at
        since = 0.0 if closed_at is None else min(self.loop.time() - closed_at, told.took)
        is_slow = operation.kind in TRANSFERS and self.transfers.style_of(operation) == "slow"
        if since > CLOSE_TIMEOUT + GRACE and not is_slow:
            self.complain(operation, f"ended {since:.2f} s after the client was closed")
        if operation.kind == "user_session":
            return  # each waits for those before it, and each of those as long as it may
        if most is None and not self.plan.network.hangs:
            # As long as nobody else can be elected, whoever is frozen is waited for.
            is_read = operation.kind in READS  # at one that is cut off from the others
            calm = self.well_for() if is_read else self._calm_within(told.took)
            since = min(told.took - self._turns(operation, told), calm)
            if since > LONGEST:
                self.complain(operation, f"took {since:.2f} s although all was well")

    def _turns(self, operation: Operation, told: Told) -> float:
        """How long an operation may have waited for its turn, in seconds.

        As long as routers look for a primary in vain, attempts keep the places of others. Of the
        writes that travel together one command is under way at a time, whatever is free, and is
        sent again for as long as it may take where nearly no answer arrives.
        """
        in_line = self.lines.get(_line_of(operation), frozenset())
        if self.plan.routers is None or self.set.primary is not None:
            return self._in_line(operation, told, in_line) if self._loses_most else 0.0
        # If one router is down, the other one's connections are all that there are.
        return self._taken(operation, told.took, self.plan.connections, in_line)

    @property
    def _loses_most(self) -> bool:
        return self.plan.network.breaks >= 0.7

    def _in_line(self, operation: Operation, told: Told, in_line: frozenset[int]) -> float:
        """How long others' commands were under way in an operation's line, with their pauses."""
        now, seconds, ended = self.loop.time(), 0.0, dict[int, float]()
        seen = now - told.took
        for (at, keepers, _), (until, *_) in self._kept():
            for one in in_line.intersection(keepers) - {operation.index}:
                before = ended.get(one, -math.inf)
                since = before if at - before <= LONGEST_PAUSE else at
                seconds += max(0.0, until - max(since, seen))
                seen, ended[one] = max(seen, until), until
        return seconds

    def _kept(self) -> Iterable[tuple[Kept, Kept]]:
        return itertools.pairwise([*self.driver.kept, Kept(self.loop.time())])

    def is_crowded(self, operation: Operation, told: Told) -> bool:
        """Tell whether an operation has had turns, and others the places nearly all the time.

        Only the time counts since all is well. Who is sent in the order of the calls has a turn in
        any case: there are not so many others.
        """
        routers = 1 if self.plan.routers is None else len(self.driver.servers)
        seconds = min(told.took, self.well_for())
        taken = self._taken(operation, seconds, self.plan.connections * routers)
        has_had_turns = self.loop.time() - self.sent_at.get(operation.index, -math.inf) <= seconds
        return has_had_turns and taken > 0.9 * seconds

    def _taken(
        self,
        operation: Operation,
        latest: float,
        connections: int,
        in_line: frozenset[int] = frozenset(),
    ) -> float:
        """How long others had the places in the latest seconds of an operation, in seconds.

        A part of the places is counted as a part of the time; an attempt of one that is in the same
        line takes them all, and so do others for whom as many connections are opened as may be.
        """
        places, now, seconds = min(self.plan.at_once, connections), self.loop.time(), 0.0
        # Not each server that is read at takes writes.
        is_kept_out = operation.kind not in READS or self.plan.routers is not None
        for (at, keepers, is_shut), (until, *_) in self._kept():
            others = sum(one != operation.index for one in keepers)
            takes_all = not in_line.isdisjoint(keepers) or (
                is_kept_out and is_shut and operation.index not in keepers
            )
            part = 1.0 if takes_all else min(1.0, others / places)
            seconds += part * max(0.0, until - max(at, now - latest))
        return seconds

    def _judge_error(self, operation: Operation, told: Told) -> None:
        """What could be sent again is, as long as there is time; and inside it all is served."""
        network, error = self.plan.network, told.error
        if operation.kind in self.transfers.kinds:
            self.transfers.judge(operation, told)
            return
        tried = [] if error is None else attempts_of(error)
        if operation.kind in _OF_ONE and any(error is one.error for one in tried):
            wrote = [
                one.error for one in tried if one.sent and not _says_nothing_was_written(one.error)
            ]
            first = [one.error for one in tried]
            if error is not (wrote or [*reversed(first)])[-1]:
                self.complain(operation, f"{error!r} is raised in the place of another one")
        is_asked = told.is_in_doubt or any(attempt.sent for attempt in tried)
        if UNKNOWN in told.outcomes and not is_asked:
            self.complain(operation, "is in doubt, but nothing was sent")
        self._judge_search(operation, told, is_asked=is_asked)
        is_late = operation.deadline is not None and told.took > operation.deadline - 1e-6
        says_so = isinstance(error, DeadlineExceeded)
        if is_late and isinstance(error, NetworkTimeout) and not says_so:
            self.complain(operation, f"is not told that its deadline is over: {error!r}")
        expected = _EXPECTED_CODES | ({None} if self._may_be_unasked(operation, told) else set())
        if isinstance(error, OperationFailure) and _codes_of(error) - expected:
            self.complain(operation, f"ended with {error!r}")
        is_limited = operation.deadline is not None and operation.deadline >= 60
        if not is_limited or operation.cancelled is not None or operation.kind in _PATIENT:
            return
        if isinstance(error, DeadlineExceeded):
            is_well = self.somebody_is_there() and self.well_for() > 30
            is_served = is_well and not (self._loses_most or network.hangs)
            if operation.kind in READS:  # it may be for those that are down
                is_served &= all(one.votes for one in self.set.members)
            if is_served and not self.is_crowded(operation, told):
                self.complain(operation, "was not served, although all is well")
        elif isinstance(error, ConnectionFailure) and told.took < SELECTION_TIMEOUT - 0.1:
            # Where the clock was set, a server may have forgotten the write.
            is_forgotten = network.forgotten or self.clocks.set_ahead
            # Who has spent what retries cost makes none, and who fails fast waits for nobody.
            is_spared = _has_spent(error) or isinstance(error, WritesUnavailableError)
            if not is_forgotten and not network.overloaded and not is_spared:
                self.complain(operation, f"ended before its time with {error!r}")

    def _judge_search(self, operation: Operation, told: Told, *, is_asked: bool) -> None:
        """Who was told that there is no server has looked for one as long as there was to be."""
        error, patience = told.error, self.plan.fail_fast_after
        if not isinstance(error, ServerSelectionTimeoutError):
            return
        if not isinstance(error, WritesUnavailableError):
            if told.took < SELECTION_TIMEOUT - 0.1:
                self.complain(operation, f"has looked for a server for too short a time: {error!r}")
            is_write = operation.kind in WRITES
            if is_write and not is_asked and patience is not None and patience < SELECTION_TIMEOUT:
                self.complain(operation, f"has waited although others fail fast: {error!r}")
            return
        if patience is None or operation.kind in set(READS) - {"causal"}:
            self.complain(operation, f"fails fast, but is to wait: {error!r}")
        elif self.loop.time() - self.driver.seen_until < patience - 0.01:
            self.complain(operation, f"fails although a server was there shortly: {error!r}")
        if is_asked and operation.kind in _OF_ONE:
            self.complain(operation, f"was sent, and does not wait: {error!r}")
        if self.driver.view().writable:
            self.complain(operation, f"fails although a server is there: {error!r}")

    def _may_be_unasked(self, operation: Operation, told: Told) -> bool:
        """Tell whether nobody could ask what an answer without a code has left out.

        Where the clock was set meanwhile, a server may have forgotten the command.
        """
        is_in_doubt = operation.kind in TRAVELLING and told.outcomes == [UNKNOWN]
        return is_in_doubt and self.clocks.set_ahead != 0

    def _judge_order(self, body: Mapping[str, Any]) -> None:
        """Inserts that travel together are sent in the order of the calls."""
        for has_deadline in (False, True):
            places = []
            for document in body.get("documents", ()):
                tag = document.get("by", document["_id"])
                place, is_limited = self.called.get(tag, (-1, has_deadline))
                if place >= 0 and is_limited == has_deadline:
                    places.append(place)
            if places != sorted(places):
                self.wrong.append(f"inserts are sent in another order than they came: {places}")
            new = [one for one in places if one not in self.ordered]
            if new and new[0] < self.last_ordered[has_deadline]:
                self.wrong.append(f"an insert is sent after others that came later: {places}")
            self.ordered.update(new)
            self.last_ordered[has_deadline] = max(new, default=self.last_ordered[has_deadline])

    def _judge_sessions_in_use(self, index: int, command: Command) -> None:
        """When one is begun, servers know of none that is neither pooled nor in use."""
        if command.session in self.begun:
            return
        self.begun.add(command.session)
        if self._left_over() and not self.wrong:
            state = random.getstate()
            gc.collect()  # an exception may have one, and is part of a cycle
            random.setstate(state)  # of which what other runs have left may have drawn
            if self._left_over():
                self.wrong.append(f"operation {index}: {self._left_over()} sessions are left over")

    def _left_over(self) -> int:
        """How many sessions servers know of that nobody can use."""
        waiting = [index for index, told in self.told.items() if told.waits]
        # Whoever keeps an exception may resolve it. An operation goes on after a write in doubt.
        used = sum(one.waits or one.error is not None for one in self.told.values())
        used += sum(self.by_index[index].kind == "operation" for index in waiting)
        used += sum(one.operation not in waiting for one in self.driver.under_way)
        used += len(self.client._write_path.aborting)
        left = self.set.sessions.keys() - self.driver.pooled - {self.shared} - self.driver.ended
        return max(0, len(left) - used)

    def _judge_wtimeout(self, index: int, command: Command) -> None:
        """What an operation says of wtimeout is sent, unless a deadline takes its place."""
        concern, operation = command.body.get("writeConcern"), self.by_index.get(index)
        if concern is None or operation is None or operation.kind not in _WITH_OPTIONS:
            return
        is_limited = operation.deadline is not None or self.told[index].outcomes  # by resolve()
        wanted = None if is_limited else _wtimeout_of(operation)
        if concern.get("wtimeout") != wanted:
            self.complain(operation, f"is sent with {concern}")

    def _judge_attempts(self, operation: Operation, told: Told) -> None:
        """Attempts are bounded: by the time that they take, and by what happens to the servers."""
        commands = len(told.tags) if operation.kind in {"bulk_write", "operation"} else 1
        most = commands * (40 + 4 * told.took + 3 * self.driver.changes)
        if operation.deadline is None and operation.kind in _OF_ONE:
            most = MOST_WITHOUT_A_DEADLINE
        if operation.kind in self.others:
            most = self.others[operation.kind].most_sent(operation, told.took)
        if self.sent_for[operation.index] > most:
            self.complain(operation, f"was sent {self.sent_for[operation.index]} times")

    def _style(self, operation: Operation) -> str:
        """Return how a coroutine is awaited; Motor's face has none."""
        styles = ("at once", "later", "task")
        return styles[operation.index % 3 if self.plan.has_coroutines else 0]

    async def _call_in_task(self, operation: Operation, tags: list[str]) -> None:
        task = self.loop.create_task(self._call(operation, tags))
        try:
            await task
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            task.result()  # it was over before whoever awaits it was told so

    async def _call(self, operation: Operation, tags: list[str]) -> None:
        (tag, *_) = tags
        match operation.kind:
            case "contested":
                await self._contest(operation, tag)
            case "coalesced" if operation.refused == 1:
                with contextlib.suppress(bson.errors.InvalidDocument):
                    await self.view.insert_one({"_id": tag, "stranger": object()})
                raise PyMongoError("nobody can encode it")
            case "coalesced":
                self.called[tag] = len(self.called), operation.deadline is not None
                refused = {"_id": "hot", "by": tag}
                await self.view.insert_one({"_id": tag} if operation.refused != 0 else refused)
            case "together":
                result = await self._travel(operation, tag)
                if result != self._expected(operation) and not self._done_again(operation, tag):
                    self.complain(operation, f"was told {result}")
            case "user_session" if self.plan.has_coroutines and operation.ordered:
                async with self.session.bind(end_session=False):
                    await self._things(operation).update_one({"_id": "hot"}, {"$inc": {tag: 1}})
            case "operation":
                await self._call_operation(operation, tags)
            case "keyed":
                await self._call_with_key(operation, tag)
            case kind if kind in self.others:
                await self.others[kind].call(operation, self.told[operation.index])
            case _:
                write = self._write(operation, tags)
                if self._style(operation) == "later":
                    with contextlib.closing(write):  # the coroutine, which nobody may have awaited
                        await asyncio.sleep(0.005)
                        result = await write
                else:
                    result = await write
                if operation.kind != "find_one_and_update":
                    return
                if not 1 <= result[tag] <= 1 + self._done_again(operation, tag):
                    self.complain(operation, f"returned {result[tag]}")

    async def _travel(self, operation: Operation, tag: str) -> int:
        """Update, replace or remove one document; return how many were, or -1 for an upsert."""
        match _travels_as(operation):
            case "update":
                result: Any = await self.view.update_one({"_id": "hot"}, {"$inc": {tag: 1}})
            case "upsert":
                new = {"_id": f"new{tag}"}
                result = await self.view.update_one(new, {"$inc": {tag: 1}}, upsert=True)
            case "replace":
                result = await self.view.replace_one({"_id": f"r{tag}"}, {"v": tag})
            case "delete":
                result = await self.view.delete_one({"_id": f"d{tag}"})
                return int(result.deleted_count)
            case _:
                result = await self.view.update_one({"_id": f"none{tag}"}, {"$inc": {tag: 1}})
        if result.upserted_id is not None:
            return -1
        return int(result.matched_count)

    def _expected(self, operation: Operation) -> int:
        return {"upsert": -1, "none": 0}.get(_travels_as(operation), 1)

    def _things(self, operation: Operation) -> Any:
        """Return the collection for its writes; some wait for a majority only so long."""
        wtimeout = _wtimeout_of(operation)
        if wtimeout is None:
            return self.collection
        return self.collection.with_options(write_concern=WriteConcern("majority", wtimeout))

    def _write(self, operation: Operation, tags: list[str]) -> Any:
        """Return a write of one call, to be awaited."""
        things, (tag, *_) = self._things(operation), tags
        match operation.kind:
            case "insert":
                return things.insert_one({"_id": tag})
            case "update":
                return things.update_one({"_id": "hot"}, {"$inc": {tag: 1}})
            case "user_session":
                return things.update_one({"_id": "hot"}, {"$inc": {tag: 1}}, session=self.session)
            case "upsert":
                return things.update_one({"_id": f"new{tag}"}, {"$inc": {tag: 1}}, upsert=True)
            case "replace":
                replace = things.find_one_and_replace if operation.how % 2 else things.replace_one
                return replace({"_id": f"r{tag}"}, {"v": tag})
            case "delete":
                delete = things.find_one_and_delete if operation.how % 2 else things.delete_one
                return delete({"_id": f"d{tag}"})
            case "find_one_and_update":
                return things.find_one_and_update(
                    {"_id": "hot"}, {"$inc": {tag: 1}}, return_document=ReturnDocument.AFTER
                )
            case "insert_many":
                documents = [_document(operation, n, each) for n, each in enumerate(tags)]
                return things.insert_many(documents, operation.ordered)
            case "update_many" if operation.how % 2:
                return things.delete_many({"_id": f"d{tag}"})
            case "update_many":
                return things.update_many({"many": True}, {"$inc": {tag: 1}})
            case "bulk_write":
                requests = [_request(operation, n, each) for n, each in enumerate(tags)]
                return things.bulk_write(requests, operation.ordered)
            case kind:
                raise AssertionError(kind)

    async def _call_operation(self, operation: Operation, tags: list[str]) -> None:
        async with self._things(operation).operation() as writes:
            for tag in tags:
                await writes.update_one({"_id": f"u{tag}"}, {"$inc": {tag: 1}})
                self.told[operation.index].done += 1

    async def _call_with_key(self, operation: Operation, tag: str) -> None:
        """Write with a key, and once more with the same, whatever came of the first time."""
        key = Key(tag, self.clocks.monotonic, self.driver.end_session)
        told = self.told[operation.index]
        first = await self._write_with_key(key, tag)
        told.done += first is None
        told.is_in_doubt = first is not None and outcome_of(first) is UNKNOWN
        again = await self._write_with_key(key, tag)
        is_known = isinstance(again, OperationFailure) and again.code == INCOMPLETE_HISTORY
        if is_known and outcome_of(again) is not UNKNOWN:
            self.complain(operation, f"{again!r} denies what it says was done before")
        if first is not None and again is not None:
            raise first if told.is_in_doubt else again

    async def _contest(self, operation: Operation, tag: str) -> None:
        """Insert or remove a document that others insert and remove, too."""
        key = f"contested{operation.index % 3}"
        if operation.refused is not None:
            await self.collection.insert_one({"_id": key, "by": tag})
            return
        removed = await self.collection.find_one_and_delete({"_id": key})
        if removed is not None:
            by = self.removed.setdefault(removed["by"], operation.index)
            if by != operation.index:
                self.complain(operation, f"operation {by} was told to have removed the same")

    async def _write_with_key(self, key: Key, tag: str) -> PyMongoError | None:
        """Return what it ended with, or None."""
        try:
            async with self.collection.operation(key=key) as writes:
                await writes.update_one({"_id": "hot"}, {"$inc": {tag: 1}})
        except PyMongoError as exc:
            return exc
        return None

    # Verdicts.

    async def _judge_service(self) -> None:
        """After the last fault everything is served again."""
        OPERATION.set(-1)
        self.driver.network = type(self.plan.network)()
        update, hot, things = {"$inc": {"served": 1}}, {"_id": "hot"}, self.collection
        with deadline(30.0):
            await _served(partial(things.update_one, hot, update))
            await _served(partial(things.bulk_write, [UpdateOne(hot, update)] * 2))
            await _served(partial(things.coalesced().update_one, hot, update))
            await _served(partial(run_transaction, self.client, self._serve))
            for preference in PREFERENCES:
                things = self.collection.with_options(read_preference=preference)
                await _served(partial(things.find_one, hot))

    async def _serve(self, session: Any) -> None:
        update = {"$inc": {"served": 1}}
        await self.collection.update_one({"_id": "hot"}, update, session=session)

    def _judge_outcomes(self) -> None:
        primary = self.set.primary
        documents = primary.state.documents("things")
        self.inserted = Counter(
            document["by"]
            for entry in primary.oplog
            for _, _, document in entry.changes
            if document is not None and "by" in document
        )
        for others in (self.transfers, self.reads):
            others.judge_all()
        for operation in self.plan.operations:
            told = self.told.get(operation.index)
            if told is None or not told.outcomes or operation.kind in self.others:
                continue
            counts = [
                _times(operation, position, tag, documents, self.inserted)
                for position, tag in enumerate(told.tags)
            ]
            # What no majority has acknowledged in time is gone on after, and may be rolled back.
            has_limit = _wtimeout_of(operation) is not None
            done = [
                bool(times)
                for times, outcome in zip(counts, told.outcomes, strict=True)
                if not (has_limit and outcome is UNKNOWN)
            ]
            if operation.ordered and done != sorted(done, reverse=True):
                self.complain(operation, f"its statements were done {counts} times, in this order")
            for tag, outcome, times in zip(told.tags, told.outcomes, counts, strict=True):
                least, most = TIMES[outcome]
                # What refuses it the second time has to come before that is told.
                until = operation.at + told.took if outcome is NOT_APPLIED else math.inf
                most += self._done_again(operation, tag, until)
                if times is not None and not least <= times <= most:
                    self.complain(
                        operation, f"{tag} was told {outcome.name}, and was done {times} times"
                    )

    def _done_again(self, operation: Operation, tag: str, until: float = math.inf) -> int:
        """Return how often a statement was executed that a router had kept until it was forgotten.

        Nothing tells the servers that it is old (docs/limits.md). A router that is awake keeps it
        so long only where its deadline, which a key makes shorter, does not end that before, or
        where it was forgotten too early.
        """
        limit = operation.deadline
        is_short = limit is not None and (limit < REMEMBERED_FOR or operation.kind == "keyed")
        return sum(
            tag in re.findall(_TAG, str(one.command.body))
            for one in self.set.belated
            if one.at <= until and (one.has_slept or one.was_early or not is_short)
        )

    def _judge_leaks(self) -> None:
        path = self.client._write_path
        coordinator = path.coordinator()
        for pending in (coordinator.pending, *coordinator.reading.values()):
            if pending._under_way or pending.waiting:
                self.wrong.append(f"left: {pending!r}")
        if path.aborting:
            self.wrong.append(f"{len(path.aborting)} transactions are being aborted still")
        if self.driver.under_way or any(self.driver.opening.values()):
            self.wrong.append(f"{len(self.driver.under_way)} attempts are left in the driver")

    def _judge_sessions(self) -> None:
        """What the servers know is pooled, or was ended."""
        while self.told:
            self.counts.update(one.name for one in self.told.popitem()[1].outcomes)
        gc.collect()
        left = self.set.sessions.keys() - self.driver.pooled - {self.shared} - self.driver.ended
        if left:
            self.wrong.append(f"{len(left)} sessions are left at the servers")


_TAG = r"t\d+_\d+"


def _is_the_librarys(timer: asyncio.TimerHandle) -> bool:
    return str(getattr(timer._callback, "__module__", "")).startswith("aioretry.")


def _wtimeout_of(operation: Operation) -> int | None:
    """Return how long one waits for a majority at most, in milliseconds; None as long as others."""
    if operation.kind not in _WITH_OPTIONS or operation.how % 7:
        return None
    return (1, 20, 500)[operation.how % 3]


def _count_of(operation: Operation) -> int:
    several = {"insert_many", "bulk_write", "operation"}
    return operation.count if operation.kind in several else 1


def _document(operation: Operation, position: int, tag: str) -> dict[str, Any]:
    """Return a document to be inserted; there may be one of its id already."""
    return {"_id": "hot" if position == operation.refused else tag}


def _request(operation: Operation, position: int, tag: str) -> Any:
    match position % 3:
        case 0:
            return InsertOne(_document(operation, position, tag))
        case 1:
            return UpdateOne({"_id": "hot"}, {"$inc": {tag: 1}})
        case _:
            return DeleteOne({"_id": f"d{tag}"})


def _codes_of(error: OperationFailure) -> set[int | None]:
    """Return the codes of a server's error, and of each part of it."""
    if not isinstance(error, BulkWriteError):
        return {error.code}
    details = error.details
    return {one["code"] for one in [*details["writeErrors"], *details["writeConcernErrors"]]}


def _resolved(operation: Operation, told: Told, outcomes: list[Outcome]) -> list[Outcome]:
    """Return the outcomes of an operation after one of its writes was resolved."""
    if operation.kind != "operation":
        return outcomes
    return [
        new if old is UNKNOWN else old for old, new in zip(told.outcomes, outcomes, strict=True)
    ]


def _outcomes(operation: Operation, told: Told, exc: BaseException) -> list[Outcome]:
    """Return what an exception says of each statement; nobody was asked by what says nothing."""
    count = len(told.tags)
    outcome = outcome_of(exc) or NOT_APPLIED
    if told.is_in_doubt and outcome is NOT_APPLIED:
        outcome = UNKNOWN
    if operation.kind in {"operation", "keyed"}:
        outcomes = [APPLIED] * told.done + [outcome] + [NOT_APPLIED] * count
        return outcomes[:count]
    partial = partial_result_of(exc)
    if partial is not None and partial.outcomes:
        return [*partial.outcomes]
    return [outcome] * count


def _has_spent(error: BaseException) -> bool:
    """Tell whether it was not retried because that would have cost more than there was left."""
    return any("retry budget is spent" in note for note in getattr(error, "__notes__", ()))


async def _served(call: Callable[[], Any]) -> None:
    """Call it; again as long as nothing is left for retries, of which a success earns a part."""
    for left in reversed(range(20)):
        try:
            await call()
        except PyMongoError as exc:
            if not left or not _has_spent(exc):
                raise
        else:
            return


def _says_nothing_was_written(error: BaseException | None) -> bool:
    return isinstance(error, PyMongoError) and error.has_error_label(NOTHING_WRITTEN)


def _travels_as(operation: Operation) -> str:
    """Tell what one that travels with others is."""
    return ("update", "upsert", "replace", "delete", "none")[operation.how % 5]


def _line_of(operation: Operation) -> str:
    """Return the command in which one travels with others; nothing if it travels alone."""
    if operation.kind == "together":
        return "delete" if _travels_as(operation) == "delete" else "update"
    return "insert" if operation.kind == "coalesced" else ""


def _times(
    operation: Operation,
    position: int,
    tag: str,
    documents: Mapping[str, Any],
    inserted: Mapping[str, int],
) -> int | None:
    """Return how often a statement was executed; None if that left no trace."""
    kind = operation.kind
    if kind == "bulk_write":
        kind = ("insert", "update", "delete")[position % 3]
    elif kind == "together":
        kind = _travels_as(operation)
    match kind:
        case "none":
            return None
        case "contested":
            return None if operation.refused is None else inserted[tag]
        case "insert" | "insert_many" | "coalesced":
            return int(tag in documents)
        case "upsert":
            return int(documents.get(f"new{tag}", {}).get(tag, 0))
        case "replace":
            return int("v" in documents[f"r{tag}"])
        case "delete":
            return int(f"d{tag}" not in documents)
        case "operation":
            return int(documents[f"u{tag}"].get(tag, 0))
        case "update_many" if operation.how % 2:
            return int(f"d{tag}" not in documents)
        case "update_many":
            return max(int(documents[f"many{n}"].get(tag, 0)) for n in range(2))
        case _:
            return int(documents["hot"].get(tag, 0))
