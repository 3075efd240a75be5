"""Those who transfer money in transactions, and what is judged of that."""

import asyncio
import contextlib
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pymongo.errors import DuplicateKeyError, OperationFailure, PyMongoError
from pymongo.write_concern import WriteConcern

from aioretry import DeadlineExceeded, Outcome, outcome_of, run_transaction, transaction
from aioretry._retry.transactions import RETRY_LIMIT, UNKNOWN_COMMIT
from aioretry._writes.context import settled
from aioretry._writes.transactions import ABORT_TIMEOUT
from aioretry.errors import links_of
from tests.simulation.commands import (
    ABORT,
    COMMIT,
    NO_SUCH_TRANSACTION,
    TRANSIENT,
    WRITE_CONFLICT,
    Command,
)
from tests.simulation.driver import Network
from tests.simulation.plan import TRANSFERS, Operation

if TYPE_CHECKING:
    from tests.simulation.run import Run, Told

APPLIED, NOT_APPLIED, UNKNOWN = Outcome.APPLIED, Outcome.NOT_APPLIED, Outcome.UNKNOWN
TIMES = {APPLIED: (1, 1), NOT_APPLIED: (0, 0), UNKNOWN: (0, 1)}
"""How often at least and at most something was done that was told so."""

ACCOUNTS, MONEY = 5, 100

STYLES = (
    *("plain", "plain", "plain", "gathered", "gathered", "left", "raises", "duplicate", "beside"),
    *("audit", "late", "commits", "aborts", "slow", "swallows", "bound"),
)
"""What is done in a transaction, and beside it."""

_REPEATING = {"with_transaction", "run_transaction"}
_BACKOFF = 0.6  # a wait before another try may be as long, in seconds
_AMONG_OTHERS = 5.0  # in which those have their turn who were kept from it together, in seconds


class OwnError(Exception):
    """An error of the callback's own."""


class Transfers:
    """Those who transfer money.

    Args:
        run: The run.
    """

    kinds = TRANSFERS

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._runs: dict[int, int] = {}
        """How often each operation's transaction was run."""

        self._besides: dict[int, dict[str, BaseException | None]] = {}
        """What a write beside each run of a transaction has ended with."""

        self._owners: dict[tuple[bytes | None, int | None], int] = {}
        """Which operation each transaction is of, by session and number."""

        self._ends: dict[tuple[bytes | None, int | None], Command] = {}
        """The latest commit, or abort, of each."""

        self._parts: set[tuple[bytes | None, int | None, str]] = set()
        """What was sent in each."""

        self._committed: set[tuple[bytes | None, int | None]] = set()
        """Those of which it was heard that they are committed."""

        self._doubtful: dict[bytes | None, tuple[int, int | None]] = {}
        """The sessions of commits in doubt, with the operation and the number."""

        self._barred_at: dict[int, float] = {}
        """When a run of each operation has begun last that such a commit kept from its accounts."""

    def prepare(self) -> None:
        """Have the servers store what is there before."""
        for number in range(ACCOUNTS):
            document = {"_id": f"a{number}", "money": MONEY}
            self._run.set.primary.append(changes=(("accounts", f"a{number}", document),), at=0.0)

    # How they go about it.

    @staticmethod
    def style_of(operation: Operation) -> str:
        """Return what is done in it."""
        style = STYLES[operation.how % len(STYLES)]
        is_patient = operation.deadline is None or operation.deadline > 5
        # What is left running there is sent when the transaction is over (docs/sessions.md).
        is_left = style == "left" and operation.kind == "explicit"
        return "plain" if is_left or (style == "swallows" and is_patient) else style

    @staticmethod
    def is_weak(operation: Operation) -> bool:
        """Tell whether it is acknowledged before a majority has it."""
        return operation.how // len(STYLES) % 8 == 0

    def deadline_of(self, operation: Operation) -> float | None:
        """Return the surrounding deadline; some give a time to the call instead."""
        return None if self._has_timeout(operation) else operation.deadline

    @staticmethod
    def _has_timeout(operation: Operation) -> bool:
        return operation.kind != "explicit" and operation.ordered

    def most_seconds(self, operation: Operation) -> float | None:
        """Return how long it may take: what is cancelled is aborted first."""
        limits, is_limited = list[float](), operation.deadline is not None
        if operation.cancelled is not None and (is_limited or operation.kind != "explicit"):
            limits.append(operation.cancelled + ABORT_TIMEOUT)
        if operation.deadline is not None:
            limits.append(operation.deadline)
        return min(limits, default=None)

    def most_sent(self, operation: Operation, took: float) -> float:
        """Return how many commands may have been sent for it."""
        del operation
        return 8 * (40 + 4 * took + 3 * self._run.driver.changes)

    async def call(self, operation: Operation, told: "Told") -> None:
        """Transfer, or look at the accounts."""
        client, left = self._run.client, list[Any]()
        concern = WriteConcern(1 if self.is_weak(operation) else "majority")
        options: dict[str, Any] = {"write_concern": concern}
        if self._has_timeout(operation):
            options["timeout"] = operation.deadline

        async def callback(session: Any) -> str:
            return await self._do(operation, session, left)

        try:
            match operation.kind:
                case "run_transaction":
                    self._returned(operation, await run_transaction(client, callback, **options))
                case "transaction":
                    async with transaction(client, **options) as session:
                        await callback(session)
                case _:
                    await self._call_in_session(operation, told, callback, options)
        except BaseException as exc:
            self._doubts(operation, exc)
            raise
        finally:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _call_in_session(
        self, operation: Operation, told: "Told", callback: Any, options: dict[str, Any]
    ) -> None:
        async with await settled(self._run.client.start_session()) as session:
            try:
                if operation.kind == "explicit":
                    await self._start_and_end(operation, callback, session, options)
                else:
                    result = await session.with_transaction(callback, **options)
                    self._returned(operation, result)
            except BaseException as exc:
                self._doubts(operation, exc)
                raise
            finally:
                told.ended = self._run.loop.time()
                await self._go_on(operation, told.tags[0], session)

    async def _start_and_end(
        self, operation: Operation, callback: Any, session: Any, options: dict[str, Any]
    ) -> None:
        started = await settled(session.start_transaction(**options))
        if operation.ordered:
            async with started:
                await callback(session)
            return
        try:
            await callback(session)
        except BaseException:
            if session.in_transaction:
                await session.abort_transaction()
            raise
        if session.in_transaction:
            await session.commit_transaction()

    async def _go_on(self, operation: Operation, tag: str, session: Any) -> None:
        """Have something else written in the session after that, whatever has come of it.

        Who is cancelled meanwhile was told how the transaction has ended.
        """
        if operation.how % 3 == 0:
            update = {"$inc": {f"{tag}_after": 1}}
            write = self._run.collection.update_one({"_id": "hot"}, update, session=session)
            going_on = asyncio.ensure_future(write)
            while not going_on.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([going_on])
            going_on.exception()

    def _returned(self, operation: Operation, result: str) -> None:
        if result != self._name_of(operation):
            self._run.complain(operation, f"returned {result!r}")

    def _name_of(self, operation: Operation) -> str:
        return f"t{operation.index}_0r{self._runs[operation.index]}"

    # What they do.

    async def _do(self, operation: Operation, session: Any, left: list[Any]) -> str:
        self._runs[operation.index] = self._runs.get(operation.index, 0) + 1
        run = self._name_of(operation)
        if self.style_of(operation) != "audit" and self._is_barred(operation):
            self._barred_at[operation.index] = self._run.loop.time()
        match self.style_of(operation):
            case "audit":
                await self._audit(operation, session)
            case "bound" if self._run.plan.has_coroutines:
                async with session.bind(end_session=False):
                    await self._transfer(operation, None, run)
            case "gathered":
                parts = [
                    asyncio.ensure_future(self._part(number, operation, session, run))
                    for number in range(3)
                ]
                if operation.kind == "explicit":  # nothing keeps what goes on from being sent
                    left.extend(parts)
                await asyncio.gather(*parts)
            case _:
                await self._transfer(operation, session, run)
        await self._do_more(operation, session, run, left)
        return run

    async def _do_more(self, operation: Operation, session: Any, run: str, left: list[Any]) -> None:
        match self.style_of(operation):
            case "left":  # what is left running when the callback ends belongs to no other run
                late = self._insert_late(session, f"{run}_left", 0.002 * (operation.how % 7))
                left.append(self._run.loop.create_task(late))
                await asyncio.sleep(0.001 * (operation.how % 3))
            case "raises":
                raise OwnError
            case "duplicate":
                await self._insert(session, run, again=True)
            case "swallows":
                with contextlib.suppress(DuplicateKeyError):
                    await self._insert(session, run, again=True)
            case "late":
                async with asyncio.timeout(0.0005 * (operation.how % 7)):
                    await self._insert(session, f"{run}_late")
            case "slow" if run.endswith("r1") and operation.deadline is None:
                await asyncio.sleep(100.0)
            case "commits":
                await session.commit_transaction()
            case "aborts":
                await session.abort_transaction()
            case "beside":
                await self._write_beside(operation, run)

    def _accounts_of(self, operation: Operation) -> tuple[str, str]:
        """Return whose money goes where."""
        source = operation.index % ACCOUNTS
        return f"a{source}", f"a{(source + 1 + operation.how % (ACCOUNTS - 1)) % ACCOUNTS}"

    def _is_barred(self, operation: Operation) -> bool:
        """Tell whether an operation is barred by a transaction whose commit is lost and in doubt.

        Nobody aborts what may be committed: it is open until somebody resolves it, or until the
        servers end it by themselves, which takes them more than a minute.
        """
        primary, keys = self._run.set.primary, self._accounts_of(operation)
        return primary is not None and any(
            self._doubtful.get(one.session, (None, None))[1] == one.number
            and any(one.bars("accounts", key) for key in keys)
            for one in primary.transactions.in_progress
        )

    def _part(self, number: int, operation: Operation, session: Any, run: str) -> Any:
        """Do one of three parts, which can be awaited."""
        if number == 2:
            return self._insert(session, run)
        update = {"$inc": {"money": (-1, 1)[number], run: 1}}
        key = {"_id": self._accounts_of(operation)[number]}
        return self._run.client.db.accounts.update_one(key, update, session=session)

    async def _transfer(self, operation: Operation, session: Any, run: str) -> None:
        accounts, (source, _) = self._run.client.db.accounts, self._accounts_of(operation)
        before = await accounts.find_one({"_id": source}, session=session)
        for number in range(3):
            await self._part(number, operation, session, run)
        after = await accounts.find_one({"_id": source}, comment="after", session=session)
        if after["money"] != before["money"] - 1:
            self._run.complain(operation, f"has read {before!r}, and then {after!r}")

    async def _insert(self, session: Any, key: str, **more: bool) -> None:
        await self._run.client.db.transfers.insert_one({"_id": key, **more}, session=session)

    async def _insert_late(self, session: Any, key: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._insert(session, key)

    async def _audit(self, operation: Operation, session: Any) -> None:
        """All accounts have as much as ever, as long as nobody sees half a transfer."""
        accounts, money = self._run.client.db.accounts, 0
        for number in range(ACCOUNTS):
            account = await accounts.find_one({"_id": f"a{number}"}, session=session)
            money += account["money"]
        count = await accounts.count_documents({}, session=session)
        if (count, money) != (ACCOUNTS, ACCOUNTS * MONEY):
            self._run.complain(operation, f"has found {money} in {count} accounts")

    async def _write_beside(self, operation: Operation, run: str) -> None:
        """Write something that is no part of the transaction."""
        besides = self._besides.setdefault(operation.index, {})
        besides[run] = None
        try:
            await self._run.collection.update_one({"_id": "hot"}, {"$inc": {run: 1}})
        except BaseException as exc:
            besides[run] = exc
            raise

    # What is sent.

    def hears(self, index: int, command: Command) -> None:
        """Hear of a command that is sent for an operation."""
        wrong, place = self._run.wrong, (command.session, command.number)
        doubt = self._doubtful.get(command.session)
        if doubt is not None and command.number not in {None, doubt[1]}:
            wrong.append(f"operation {index}: its session has a commit in doubt, of {doubt}")
        if not command.in_transaction:
            if not command.reads and command.collection in {"accounts", "transfers"}:
                wrong.append(f"operation {index}: {command.name} is sent outside of a transaction")
            return
        owner = self._owners.setdefault(place, index)
        if index not in {owner, -1}:
            wrong.append(f"operation {index}: something is sent in a transaction of {owner}")
        # What was refused because of overload is sent as it was.
        is_refused = self._run.plan.network.overloaded > 0
        if not command.ends_transaction:
            what = ("documents", "updates", "filter", "comment", "pipeline")
            part = *place, str([command.body.get(name) for name in what])
            if part in self._parts and not is_refused:
                wrong.append(f"operation {index}: {command.name} is sent twice in a transaction")
            self._parts.add(part)
            return
        before = self._ends.get(place)
        if command.name == ABORT and before is not None and before.name == COMMIT:
            wrong.append(f"operation {index}: a transaction is aborted that may be committed")
        concern = command.body.get("writeConcern", {})
        is_again = before is not None and command.name == before.name == COMMIT
        if is_again and not is_refused and concern.get("w") != "majority":
            wrong.append(f"operation {index}: a commit is repeated with {concern}")
        self._ends[place] = command

    def hears_answer(self, command: Command) -> None:
        """Hear that a command was executed, although nobody may wait for that any more."""
        doubt = self._doubtful.get(command.session)
        if command.name == COMMIT and doubt is not None and doubt[1] == command.number:
            del self._doubtful[command.session]
        if command.name == COMMIT:
            self._committed.add((command.session, command.number))

    # What is told.

    def _doubts(self, operation: Operation, *errors: BaseException) -> None:
        """Take note of a commit that is in doubt."""
        for exc in errors:
            beside = self._beside(operation, exc)
            places = [one for one, owner in self._owners.items() if owner == operation.index]
            ends = [self._ends[one] for one in places if one in self._ends]
            latest = self._ends.get(places[-1]) if places else None
            is_commit = latest is not None and latest.name == COMMIT
            is_commit &= not places or places[-1] not in self._committed
            if self._run.plan.routers is not None and sum(one.name == COMMIT for one in ends) > 1:
                continue  # a router's denial leaves an earlier one in doubt, and not the latest
            if outcome_of(exc) is UNKNOWN and beside is None and is_commit:
                self._doubtful[places[-1][0]] = operation.index, places[-1][1]

    def _beside(self, operation: Operation, exc: BaseException) -> BaseException | None:
        """Return the error of a write that was no part of the transaction, if it is one."""
        errors = self._besides.get(operation.index, {}).values()
        return next((one for one in links_of(exc) if any(one is each for each in errors)), None)

    def outcomes(self, operation: Operation, told: "Told", exc: BaseException) -> list[Outcome]:
        """Return what an exception says of the transaction."""
        del told
        outcome, beside = outcome_of(exc), self._beside(operation, exc)
        if beside is not None:
            if outcome is not outcome_of(beside):
                self._run.complain(operation, f"{exc!r} says {outcome} of a write beside it")
            return [NOT_APPLIED]
        is_whole = operation.kind != "explicit" and operation.index in self._runs
        if is_whole and outcome is None:
            self._run.complain(operation, f"{exc!r} does not tell how it ended")
        return [outcome or NOT_APPLIED]

    def outcomes_of_success(self, operation: Operation) -> list[Outcome]:
        """Return what it says that there is none."""
        return [NOT_APPLIED if self.style_of(operation) == "aborts" else APPLIED]

    def is_resolved(self, operation: Operation) -> None:
        """Hear that an operation is in doubt no more, or that an answer has come."""
        for session in [one for one, (of, _) in self._doubtful.items() if of == operation.index]:
            del self._doubtful[session]

    def may_be_sent(self, command: Command) -> bool:
        """Tell whether a command may be sent although the operation is over: an end may go on."""
        return command.ends_transaction

    def judge(self, operation: Operation, told: "Told") -> None:
        """Look at a transaction that has ended."""
        error, beside = told.error, told.error and self._beside(operation, told.error)
        if not isinstance(error, PyMongoError) or beside is not None:
            return
        limit = RETRY_LIMIT if operation.deadline is None else operation.deadline
        is_over = told.took > limit - _BACKOFF or isinstance(error, DeadlineExceeded)
        if isinstance(error, OperationFailure):
            expected: set[int | None] = {*self._run.expected_codes}
            if operation.kind not in _REPEATING or UNKNOWN in told.outcomes or is_over:
                expected |= {NO_SUCH_TRANSACTION, WRITE_CONFLICT}
            if error.code not in expected:
                self._run.complain(operation, f"ended with {error!r}")
        if operation.kind not in _REPEATING or is_over:
            self._judge_service(operation, told)
            return
        is_own = (
            self.style_of(operation) == "commits"
        )  # of the callback's, which repeats it no more
        if error.has_error_label(UNKNOWN_COMMIT) and not is_own:
            self._run.complain(operation, f"did not commit again after {error!r}")
        if error.has_error_label(TRANSIENT) and UNKNOWN not in told.outcomes:
            self._run.complain(operation, f"was not run again after {error!r}")

    def _judge_service(self, operation: Operation, told: "Told") -> None:
        """Within a minute all have their turn, unless too much goes wrong."""
        run, plan = self._run, self._run.plan
        is_patient = (operation.deadline or RETRY_LIMIT) >= 60 and operation.cancelled is None
        fails = plan.network.befalls + plan.network.unopened + (plan.routers or 0.0)
        is_calm = fails < 0.1 and not plan.network.hangs
        # A transaction whose router is lost is open at the servers until they end it themselves.
        is_calm &= plan.routers is None or not plan.faults
        bars = [one for one in plan.operations if one.kind in TRANSFERS and one.deadline is None]
        is_calm &= not any(self.style_of(one) == "slow" for one in bars)
        free_since = self._barred_at.get(operation.index, -math.inf)
        is_calm &= run.loop.time() - free_since > _AMONG_OTHERS
        is_well = run.somebody_is_there() and run.well_for() > 40 and plan.closed_at is None
        if operation.kind not in _REPEATING or self.style_of(operation) in {"slow", "raises"}:
            return
        if is_patient and is_calm and is_well and not run.is_crowded(operation, told):
            run.complain(operation, "was not served, although all is well")

    # What is stored.

    def judge_all(self) -> None:
        """Each transaction was done as a whole, and as was told."""
        state = self._run.set.primary.state
        accounts, transfers = state.documents("accounts"), state.documents("transfers")
        for operation in self._run.plan.operations:
            told = self._run.told.get(operation.index)
            if operation.kind in self.kinds and told is not None and told.outcomes:
                self._judge_runs(operation, told.outcomes[0], accounts, transfers)
                self._judge_besides(operation, state.documents("things")["hot"])
        money = sum(one["money"] for one in accounts.values())
        if money != ACCOUNTS * MONEY:
            self._run.wrong.append(f"there are {money} in all accounts")
        self._judge_expired()

    def _judge_runs(
        self, operation: Operation, outcome: Outcome, accounts: Any, transfers: Any
    ) -> None:
        source, target = self._accounts_of(operation)
        done = 0
        for number in range(1, self._runs.get(operation.index, 0) + 1):
            run = f"t{operation.index}_0r{number}"
            parts = accounts[source].get(run, 0), accounts[target].get(run, 0), run in transfers
            if len({int(part) for part in parts}) != 1:
                self._run.complain(operation, f"run {number} was done in parts: {parts}")
            done += parts[2]
            if run not in transfers and {f"{run}_left", f"{run}_late"} & transfers.keys():
                self._run.complain(operation, f"a part of {run} is there without it")
        least, most = TIMES[outcome]
        if self.is_weak(operation):
            least = 0  # it may have been rolled back
        if self.style_of(operation) != "audit" and not least <= done <= most:
            self._run.complain(operation, f"was told {outcome.name}, and was done {done} times")

    def _judge_besides(self, operation: Operation, hot: Any) -> None:
        for run, exc in self._besides.get(operation.index, {}).items():
            outcome = APPLIED if exc is None else outcome_of(exc) or NOT_APPLIED
            least, most = TIMES[outcome]
            times = hot.get(run, 0)
            if not least <= times <= most + len(self._run.set.belated):
                text = f"{run} beside it: {outcome.name}, done {times} times"
                self._run.complain(operation, text)

    def _ends_late(self, operation: Operation) -> bool:
        error = self._run.told[operation.index].error
        return isinstance(error, DeadlineExceeded | TimeoutError | asyncio.CancelledError)

    def _judge_expired(self) -> None:
        """Nobody leaves one to the servers, as long as they can be told of its end."""
        plan, operations = self._run.plan, {one.index: one for one in self._run.plan.operations}
        if plan.faults or plan.closed_at is not None or plan.routers is not None:
            return
        # What comes late is aborted when it has come.
        if replace(plan.network, late=0.0, opening=0.3, forgotten=0.0) != Network():
            return
        for one in self._run.set.expired:
            place = one.session, one.number
            operation, end = operations[self._owners[place]], self._ends.get(place)
            is_late = plan.network.late > 0
            is_open = is_late and end is not None and end.name == COMMIT
            # What runs again in the same session ends it, unless the time is over before that.
            is_again = operation.kind == "with_transaction" and self._ends_late(operation)
            is_open |= is_late and is_again
            if self.style_of(operation) != "slow" and not is_open:
                self._run.complain(operation, "has left its transaction to the servers")
