"""Mistakes that are put into the library on purpose: ``python -m tests.simulation.mutations``."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import aioretry
import tests


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake."""

    name: str
    path: str
    right: str
    """What stands in the file, once."""

    wrong: str
    held_by: str = ""
    """The tests that find it, where a simulated world can't."""

    why: str = ""
    """Why it can't."""

    within: int = 30_000
    """Operations, after which it has to be found."""


MUTATIONS = [
    Mutation(
        "the first attempt of a retry gets a new number",
        "_retry/sessions.py",
        "        if self._number is None:\n            self._number",
        "        if True:\n            self._number",
    ),
    Mutation(
        "217 denies",
        "_retry/verdict.py",
        "    _INCOMPLETE_TRANSACTION_HISTORY,\n}",
        "}",
    ),
    Mutation(
        "a session with an open question is leased again",
        "_retry/sessions.py",
        "            self._is_given_back = not (self._in_doubt or self._is_asked)",
        "            self._is_given_back = True",
    ),
    Mutation(
        "an attempt under way is not among those that a share knows",
        "_retry/command_execution.py",
        "        under_way = [] if self.pending is None else [self.pending.so_far()]",
        "        under_way = []",
    ),
    Mutation(
        "an answer that comes late is not noted",
        "_retry/attempt.py",
        "        if noted is not None and noted.sent and record is not None:",
        "        if False:",
    ),
    Mutation(
        "a refusal denies what may still lie at the same server",
        "_retry/verdict.py",
        "                in_doubt &= {attempt.address}",
        "                in_doubt.clear()",
    ),
    Mutation(
        "what is not acknowledged by a majority counts as applied",
        "_commands/replies.py",
        '    return _concern_error_in(reply) if "writeConcernError" in reply else None',
        "    return None",
    ),
    Mutation(
        "a deadline that ends the waiting for a server is not over",
        "_retry/waiting.py",
        "execution.is_late = left <= self._timeout",
        "pass",
    ),
    Mutation(
        "a deadline that ends an attempt is not over",
        "_retry/attempt.py",
        "        self._execution.is_late = True\n",
        "",
    ),
    Mutation(
        "no pause between breaks",
        "_retry/verdict.py",
        "        if self._breaks < 2 or failure.server_lost:",
        "        if True:",
    ),
    Mutation(
        "a retry after the server may have forgotten the id",
        "_retry/command_execution.py",
        "        return is_known and self.age(now) >= self.trusted_seconds",
        "        return False",
    ),
    Mutation(
        "a cancelled write is sent all the same",
        "_retry/attempt.py",
        "            record = self._note(sent=not self._token.revoke(), error=reason)",
        "            record = self._note(sent=self._token.is_sending, error=reason)",
        held_by="tests/unit/_retry/test_attempt.py",
        why="its lease, which has ended, refuses it",
    ),
    Mutation(
        "an attempt that was given up keeps its place",
        "_retry/attempt.py",
        "            if self._call is None or self._leaves_thread() or self._leaves_read():\n",
        "            if False:\n",
        held_by="tests/unit/_retry/test_attempt.py",
        why="it is found out when it comes to its turn",
    ),
    Mutation(
        "no retry",
        "_retry/verdict.py",
        "        if self.retries > self._limit():",
        "        if self.retries > 0:",
    ),
    Mutation(
        "a deadline does not end an attempt",
        "_retry/attempt.py",
        "execution.deadline.is_limited:\n            self._timer",
        "False:\n            self._timer",
    ),
    Mutation(
        "a lost server is not noticed",
        "_retry/pending.py",
        "            if now - since >= grace and (attempt.may_be_repeated or not is_alone):",
        "            if False:",
    ),
    Mutation(
        "refused statements are told as applied",
        "_writes/bulk_result.py",
        "            outcome = denied\n",
        "            outcome = applied\n",
    ),
    Mutation(
        "update_many has a number",
        "_drivers/port.py",
        "        return self.may_have_transaction_id and not self.command.holds_multi",
        "        return self.may_have_transaction_id",
    ),
    Mutation(
        "nothing has a number",
        "_drivers/port.py",
        "        return self.may_have_transaction_id and not self.command.holds_multi",
        "        return False",
    ),
    Mutation(
        "every error is retried",
        "_retry/verdict.py",
        "    if _has(failure.error, RETRYABLE_WRITE):",
        "    if True:",
    ),
    Mutation(
        "a router's last word denies all its sendings",
        "_retry/verdict.py",
        "    if is_sharded and _is_of_last_sending(error):",
        "    if False:",
    ),
    Mutation(
        "an insert that is cancelled in the air is told as not applied",
        "_writes/group/command.py",
        "        if index is None:\n            attach",
        "        if True:\n            attach",
    ),
    Mutation(
        "the session of a key is not ended",
        "_writes/keyed.py",
        "            self._source.end(answer)",
        "            pass",
    ),
    Mutation(
        "a write that may be forgotten is resolved",
        "_retry/command_execution.py",
        "    return min(_TRUSTED_MINUTES, session_minutes * _TRUSTED_PART) * 60",
        "    return 1e9",
    ),
    Mutation(
        "a write is resolved though its session has gone on",
        "_writes/resolve.py",
        "        if not is_latest or execution.lease.is_given_back:",
        "        if False:",
        held_by="tests/integration/test_resolving_refused.py",
        why="the server answers by 225, which is taken for what it is",
    ),
    Mutation(
        "an attempt keeps its place after its end",
        "_retry/attempt.py",
        "that the next attempt can take\n                self._places.remove(self)",
        "that the next attempt can take\n                pass",
    ),
    Mutation(
        "what waits for its router holds up everybody",
        "_retry/attempt.py",
        "return self.may_block, self._execution.pinned",
        "return self.may_block, None",
        held_by="tests/unit/_retry/test_pending.py -k router",
        why="nobody waits there for good",
    ),
    Mutation(
        "nobody who waits is let go on when a place is free",
        "_retry/pending.py",
        "            if one.has_waiting:",
        "            if False:",
        held_by="tests/unit/_retry/test_pending.py",
        why="the next look, 50 ms later, does it",
    ),
    Mutation(
        "network errors have no label",
        "_retry/verdict.py",
        "RETRYABLE_CODES\n    return isinstance(error, ConnectionFailure) and not isinstance(\n",
        "RETRYABLE_CODES\n    return False and not isinstance(\n",
    ),
    Mutation(
        "retries without end and without a deadline",
        "_retry/verdict.py",
        "        return math.inf if self.under_deadline else 1",
        "        return math.inf",
    ),
    Mutation(
        "one retry under a deadline, too",
        "_retry/verdict.py",
        "        return math.inf if self.under_deadline else 1",
        "        return 1",
    ),
    Mutation(
        "overload is retried without end",
        "_retry/verdict.py",
        "            return self.policy.max_adaptive_retries",
        "            return math.inf",
        held_by="tests/unit/_retry/test_verdict.py",
        why="it ends well, and how often it may be tried is no law of the judge's",
    ),
    Mutation(
        "no backoff from overload",
        "_retry/verdict.py",
        "self.random() * min(_MAX_BACKOFF,",
        "0.0 * min(_MAX_BACKOFF,",
        held_by="tests/unit/_retry/test_verdict.py",
        why="it is random, and may be as short as that",
    ),
    Mutation(
        "an error that says that nothing was written hides others",
        "_retry/verdict.py",
        "        if failure.is_read or (failure.sent and not _has(failure.error, NO_WRITES)):",
        "        if failure.sent:",
    ),
    Mutation(
        "always the first error",
        "_retry/verdict.py",
        "        error = self._latest_that_may_have_written or self._first\n",
        "        error = self._first\n",
    ),
    Mutation(
        "a wait for a server is longer than the deadline",
        "_retry/waiting.py",
        "        seconds = min(self._timeout, left)",
        "        seconds = self._timeout",
    ),
    Mutation(
        "backoff goes on after the deadline",
        "_retry/verdict.py",
        "            if wait > 0 and wait >= time_left:",
        "            if False:",
        within=100_000,
    ),
    Mutation(
        "news are waited for after the deadline",
        "_retry/waiting.py",
        "still_takes_writes(\n                server, execution.time_left()\n",
        "still_takes_writes(\n                server\n",
        held_by="tests/unit/_retry/test_loop.py",
        why="it was not seen in 100,000 operations",
    ),
    Mutation(
        "closing gives a second grace",
        "_retry/attempt.py",
        "deadline.at - deadline.clock() + _AFTER_DEADLINE",
        "deadline.remaining() + _AFTER_DEADLINE",
        held_by="tests/unit/_retry/test_attempt.py -k second_grace",
        why="it was not seen in 100,000 operations",
    ),
    Mutation(
        "a router that has failed is asked again",
        "_retry/loop.py",
        "        if verdict.deprioritize and server is not None:",
        "        if False:",
        held_by="tests/unit/_retry/test_loop.py",
        why="it costs time only",
    ),
    Mutation(
        "each attempt has a session of its own",
        "_retry/sessions.py",
        "if self._session is None:\n                self._session = self._open_session()",
        "if True:\n                self._session = self._open_session()",
    ),
    Mutation(
        "sessions of writes in doubt are never ended",
        "_retry/sessions.py",
        "        if is_unused and self._session is not None:",
        "        if is_unused and self._session is not None and not self._in_doubt:",
    ),
    Mutation(
        "a session is given back though its answer leaves a doubt",
        "_retry/command_execution.py",
        "        if reply is None or self.leaves_doubt(reply):",
        "        if reply is None:",
        held_by="tests/unit/_retry/test_command_execution.py",
        why="it was not seen in 30,000 operations",
    ),
    Mutation(
        "what is over is sent",
        "_retry/sessions.py",
        "            if self._finished:\n",
        "            if False:\n",
        held_by="tests/unit/_retry/test_sessions.py",
        why="its attempt is revoked before",
    ),
    Mutation(
        "a stranger's document spoils a full queue",
        "_writes/group/queue.py",
        "                member.refuse(_raisable(exc))\n",
        "                raise\n",
    ),
    Mutation(
        "an insert that was answered after its end is sent again when it is resolved",
        "_writes/group/shares.py",
        "        known = self._shares.acknowledgement(self._index)\n",
        "        known = None\n",
        held_by="tests/unit/_writes/group/test_queue.py",
        why="the server answers from memory, and whose answer it was is not told by callers",
    ),
    Mutation(
        "what the sums of updates don't say is taken for said",
        "_writes/group/kinds.py",
        "        if matched == self._rest and modified in (0, matched):",
        "        if True:",
    ),
    Mutation(
        "an update is asked for whose caller has left",
        "_writes/group/command.py",
        "        if index in self._gone and self._kind is not INSERTS:",
        "        if False:",
        held_by="tests/integration/test_coalesced_updates.py",
        why="nobody but the server can tell when it was executed",
    ),
    Mutation(
        "gathered statements don't wait for the one that begins the transaction",
        "_writes/statements.py",
        "        if first is not None and first is not self and not first.done():",
        "        if False:",
        held_by="tests/integration/test_transaction_runs.py",
        why="transactions that are lost are run again all the same",
    ),
    Mutation(
        "what an old server leaves out counts as done",
        "_writes/unclear_inserts.py",
        "    return silence(reply, count)\n\n\ndef silence",
        "    return None\n\n\ndef silence",
    ),
    Mutation(
        "an answer that a second sending has overtaken passes for the first one",
        "_writes/unclear_inserts.py",
        "execution.is_sharded or execution.lease.is_asked",
        "execution.is_sharded",
        held_by="tests/unit/_writes/test_bulk.py",
        why="it was not seen in 30,000 operations",
    ),
    Mutation(
        "a map is changed while it is iterated",
        "_retry/pending.py",
        "in [*self._under_way, *(one for lane in self._lanes.values() for one in lane)]:",
        "in self._under_way:",
        within=100_000,
    ),
    Mutation(
        "what waits is sent in another's context",
        "_retry/pending.py",
        "                if context.run(self._start_late, attempt):",
        "                if self._start_late(attempt):",
    ),
    Mutation(
        "inserts that wait as they are come first",
        "_writes/group/queue.py",
        "            if self._later or self._is_full():",
        "            if self._is_full():",
        held_by="tests/unit/_writes/group/test_queue.py",
        why="somebody has to be cancelled just between two calls",
    ),
    Mutation(
        "an ordered bulk write goes on after an error",
        "_writes/bulk_result.py",
        '        if self.bulk.ordered and self._merged["writeErrors"]:',
        "        if False:",
    ),
    Mutation(
        "a session that is bound is not seen",
        "pymongo/_collection.py",
        "        return session or bound_session(self.database.client)",
        "        return session",
    ),
    Mutation(
        "a cancelled coroutine lets its write go on",
        "pymongo/_collection.py",
        "        return await method(self, *args, **kwargs)",
        "        return await __import__('asyncio').shield(method(self, *args, **kwargs))",
    ),
    Mutation(
        "a client that is closed with await lets its writes go on",
        "pymongo/_client.py",
        "        self._write_path.close(CLOSE_TIMEOUT)\n",
        "        pass\n",
    ),
    Mutation(
        "who is elected meanwhile is not waited for",
        "_retry/server_selection.py",
        "        if not news.are_in(self._driver.view()):",
        "        if False:",
        held_by="tests/unit/_retry/test_waiting.py",
        why="the retry finds the next server by itself, or looks for one",
    ),
    Mutation(
        "an exception while an attempt lands loses its place",
        "_retry/attempt.py",
        "finally:  # after landing",
        "except ZeroDivisionError:\n                pass\n            else:  # after landing",
        held_by="tests/unit/_retry/test_attempt.py",
        why="nothing raises there in the simulated world",
    ),
    Mutation(
        "connections are trusted after one of them broke",
        "_drivers/engine/idle.py",
        "    is_older = connection.id < pool.doubted_below",
        "    is_older = False",
        held_by="tests/integration/test_breaks.py",
        why="it lies below the port",
    ),
    Mutation(
        "task factories have to know contexts",
        "_writes/future.py",
        "create(coroutine) if context is None else context.run(create, coroutine)",
        "create(coroutine, context=context)",
        held_by="tests/integration/test_landing.py",
        why="the loop has none of its own",
    ),
    Mutation(
        "a task of a run that has ended writes in the next one",
        "_drivers/transaction_runs.py",
        "                mark.has_ended = True",
        "                pass",
        held_by="tests/simulation/test_simulation.py -k with_transfers",
        why="it was not seen in 9,000 operations",
    ),
    Mutation(
        "a session still knows of a transaction after a write outside of it",
        "_drivers/motor/calls.py",
        "        session._transaction.reset()\n",
        "        pass\n",
        held_by="tests/integration/test_transaction_ends.py",
        why="a commit of what was committed does no harm",
    ),
    Mutation(
        "a commit that is sent again keeps its concern",
        "_retry/transactions.py",
        "        self.is_repeated = True\n",
        "        pass\n",
    ),
    Mutation(
        "a commit without an answer is denied",
        "_retry/transactions.py",
        "    return outcome is Outcome.UNKNOWN\n\n\ndef _ends_doubt",
        "    return False\n\n\ndef _ends_doubt",
    ),
    Mutation(
        "that there is no such transaction ends no doubt",
        "_retry/transactions.py",
        "            in_doubt = not _ends_doubt(",
        "            in_doubt = True or not _ends_doubt(",
        held_by="tests/unit/_retry/test_transactions.py",
        why="that an outcome stays unknown is nothing wrong",
    ),
    Mutation(
        "that there is no such transaction ends a doubt without a majority",
        "_retry/transactions.py",
        "        and error.has_error_label(TRANSIENT)\n        and sending.by_majority\n",
        "",
        held_by="tests/unit/_retry/test_transactions.py",
        why="what is sent after a doubt is sent with one",
    ),
    Mutation(
        "a later transaction denies the commit",
        "_retry/transactions.py",
        "    if error is not None and code_of(error) == _TRANSACTION_TOO_OLD:",
        "    if False:",
        held_by="tests/unit/_retry/test_transactions.py",
        why="a session in doubt is used by nobody",
    ),
    Mutation(
        "a transaction that may be committed is aborted",
        "_writes/commits.py",
        "if session is not None and is_unsent and is_over:",
        "if session is not None and is_over:",
    ),
    Mutation(
        "a transaction is run again though it may be committed",
        "_writes/transactions.py",
        "may_be_committed=outcome_of(exc) is Outcome.UNKNOWN and not self._asks_router()",
        "may_be_committed=False",
        held_by="tests/unit/_writes/test_transactions.py",
        why="what is sent after a doubt ends it, or leaves no label",
    ),
    Mutation(
        "a session goes on though its commit is in doubt",
        "_drivers/engine/sessions.py",
        "            user._is_spent = self._is_kept\n",
        "            pass\n",
    ),
    Mutation(
        "the session of a commit in doubt is pooled",
        "_drivers/engine/sessions.py",
        "        if discard and not self._is_kept:\n            self._is_kept, self._was_dirty",
        "        if False:\n            self._is_kept, self._was_dirty",
    ),
    Mutation(
        "the session of a commit in doubt is never ended",
        "_drivers/engine/sessions.py",
        "            self._ending.keep(self, server_session)\n        elif",
        "            pass\n        elif",
        held_by="tests/integration/test_commit_outcomes.py",
        why="PyMongo ends no dirty session of a user's either",
    ),
    Mutation(
        "a commit is not sent again",
        "_retry/transactions.py",
        "            return self._commit_again(time_left)",
        "            return _RAISE",
        within=100_000,
    ),
    Mutation(
        "a transaction is not run again",
        "_retry/transactions.py",
        "        return self._run_again(time_left) if has_label(error, TRANSIENT) else _RAISE",
        "        return _RAISE",
    ),
    Mutation(
        "a statement is repeated",
        "_retry/verdict.py",
        "            retryable = _has_number(failure) and _may_be_repeated(failure)",
        "            retryable = failure.in_transaction or _may_be_repeated(failure)",
    ),
    Mutation(
        "a read is repeated in a transaction",
        "_retry/verdict.py",
        "            retryable = is_on and not failure.in_transaction and",
        "            retryable = is_on and",
    ),
    Mutation(
        "a read is not repeated",
        "_retry/verdict.py",
        "            is_on = self.policy.retry_reads\n            retryable = is_on",
        "            is_on = self.policy.retry_reads\n            retryable = False",
    ),
    Mutation(
        "a statement that was refused begins nothing",
        "_drivers/engine/transactions.py",
        "            transaction.set_starting()",
        "            pass",
        held_by="tests/integration/test_statements.py -k overloaded",
        why="it was not seen in 6,000 operations",
    ),
    Mutation(
        "whatever is refused begins the transaction again",
        "_drivers/engine/transactions.py",
        "        elif begins and OVERLOADED in",
        "        elif OVERLOADED in",
    ),
    Mutation(
        "a transaction that failed is left open",
        "_writes/transactions.py",
        "        if not self.session.in_transaction:\n            return\n        for_certain",
        "        if True:\n            return\n        for_certain",
    ),
    Mutation(
        "a cancelled transaction is aborted once, whatever is under way",
        "_writes/aborts.py",
        "return exc.code == NO_SUCH_TRANSACTION and not may_begin and not self._is_unheard",
        "return True",
    ),
    Mutation(
        "any router is believed that a transaction is aborted",
        "_retry/transactions.py",
        "    if router is None or not attempts",
        "    if True or not attempts",
        held_by="tests/unit/_writes/test_aborts.py -k TestRouters",
        why="it was seen once in 1.4 million operations",
    ),
    Mutation(
        "an abort does not wait for what is under way",
        "_writes/aborts.py",
        "    if calls.has_pending(session):  # and may come after the abort",
        "    if False:",
        held_by="tests/unit/_writes/test_aborts.py -k under_way",
        why="it was not seen in 6,000 operations",
    ),
    Mutation(
        "a commit that is resolved does not keep its session",
        "_writes/commits.py",
        "        with self._commit.lease.held():",
        "        if True:",
        held_by="tests/unit/_writes/test_commits.py -k while_it_is_resolved",
        why="its number is its own, so that it ends nobody else's transaction; it was seen in a "
        "run of some 5,000, before it had one",
    ),
    Mutation(
        "a commit is sent with the number that its session has by then",
        "_drivers/engine/transactions.py",
        "    if number is not None:\n        new._apply_to",
        "    if False:\n        new._apply_to",
        held_by="tests/integration/test_commit_outcomes.py -k keeps_its_number",
        why="its session is kept, so that nobody else takes another one",
    ),
    Mutation(
        "a commit that no majority denies is not sent again",
        "_retry/transactions.py",
        'isdisjoint({error.code, concern.get("code")})',
        "isdisjoint({error.code})",
        held_by="tests/unit/_writes/test_commits.py -k not_known_to_a_majority",
        why="what is told is true: that nobody knows",
    ),
    Mutation(
        "a statement goes to any router",
        "_retry/command_execution.py",
        "        return self.lease.pinned if self.in_transaction else None",
        "        return None",
        held_by="tests/unit/_writes/test_commits.py -k router",
        why="it was not seen in 6,000 operations",
    ),
    Mutation(
        "a commit stays with its router",
        "_retry/loop.py",
        "            execution.lease.unpin()\n            if execution.attempts",
        "            if execution.attempts",
        held_by="tests/unit/_writes/test_commits.py -k router",
        why="it was not seen in 6,000 operations",
    ),
    Mutation(
        "a read sees what may be rolled back",
        "_drivers/engine/sessions.py",
        "        concern: ReadConcern,\n    ) -> None:\n        if concern.level:",
        "        concern: ReadConcern,\n    ) -> None:\n        if False:",
        held_by="tests/simulation/test_simulation.py -k with_transfers",
        why="it was not seen in 6,000 operations",
    ),
    Mutation(
        "a read does not see what its session wrote",
        "_drivers/engine/sessions.py",
        "        session._update_read_concern(body, connection)",
        "        pass",
    ),
    Mutation(
        "a read that was given up is waited for",
        "_retry/attempt.py",
        "self._leaves_thread() or self._leaves_read()",
        "self._leaves_thread()",
        held_by="tests/unit/_retry/test_attempt.py",
        why="the next one has another connection",
    ),
    Mutation(
        "maxTimeMS: 0 is sent",
        "_drivers/engine/limits.py",
        "max(1, value) if key",
        "value if key",
        held_by="tests/integration/test_tiny_and_huge.py",
        why="it lies below the port",
    ),
    Mutation(
        "what was sent fails fast",
        "_retry/waiting.py",
        "return math.inf if was_sent or is_commit else",
        "return math.inf if is_commit else",
        within=100_000,
    ),
    Mutation(
        "a server that was there does not end an outage",
        "_retry/waiting.py",
        "        if view is None or view.servers_for(None):\n            self._lost_at = None",
        "        pass",
        held_by="tests/unit/_retry/test_waiting.py -k without_a_write",
        why="writes come so often that one of them ends it; it was not seen in 100,000 operations",
    ),
    Mutation(
        "a server is looked for after the client was closed",
        "_retry/waiting.py",
        "        if view is None or view.servers_for(None):",
        "        if view is not None and view.servers_for(None):",
        held_by="tests/unit/_retry/test_waiting.py -k a_client_that_is_closed",
        why="one run in 500 ends so; it was seen in some 60,000 operations",
    ),
    Mutation(
        "what travels together goes on for nobody",
        "_writes/group/command.py",
        "        if not self._left:\n            self.write.cancel()",
        "        if False:\n            self.write.cancel()",
    ),
    Mutation(
        "who waits is told of a timer that is early again and again",
        "_retry/waiting.py",
        "                if self._fails_at(execution) <= fails_at:",
        "                if self._fails_at(execution) <= self._loop.time():",
        held_by="tests/unit/_retry/test_waiting.py -k early",
        why="a simulated run that meets it does not end",
    ),
    Mutation(
        "a minority's denial is believed",
        "_retry/verdict.py",
        "case _Says.NEVER_THERE if is_by_majority:",
        "case _Says.NEVER_THERE:",
        held_by="tests/unit/_retry/test_verdict.py -k minority",
        why="all simulated writes have w: majority",
    ),
]


def package_with(mutation: Mutation | None, folder: Path) -> None:
    """Copy the package and the tests' own code, with a mistake.

    Raises:
        ValueError: The place of the mistake is not there, or not the only one.
    """
    source = Path(aioretry.__file__).parent
    shutil.copytree(source, folder / "aioretry", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(Path(tests.__path__[0]))
    if mutation is None:
        return
    path = folder / "aioretry" / mutation.path
    text = path.read_text()
    if text.count(mutation.right) != 1:
        raise ValueError(
            f"{mutation.name}: {mutation.path} has its place {text.count(mutation.right)} times"
        )
    path.write_text(text.replace(mutation.right, mutation.wrong))


def operations_until_found(mutation: Mutation, most: int = 0) -> tuple[int | None, str]:
    """Return after how many operations a mistake was found, and the first words about it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package_with(mutation, folder)
        command = [sys.executable, "-m", "tests.simulation", "--until-found"]
        command += ["--runs", str((most or mutation.within) // 125)]
        command += ["--seconds", "1800", "--jobs", "1"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    last = re.search(r"(\d+) findings in \d+ runs, (\d+) operations", done.stdout)
    if last is None:
        raise RuntimeError(done.stdout + done.stderr)
    lines = done.stdout.splitlines()
    return (int(last[2]), lines[1].strip()) if int(last[1]) else (None, "")


def held(mutation: Mutation) -> bool:
    """Tell whether the tests that are to find a mistake do."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package_with(mutation, folder)
        for settings in ("pyproject.toml", "README.md", "docs"):
            (folder / settings).symlink_to(Path(tests.__path__[0]).parent / settings)
        command = [sys.executable, "-m", "pytest", "-q", "-x", *mutation.held_by.split()]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode == 1 and " failed" in done.stdout


def main() -> int:
    """Put in each mistake, and tell how long it takes to find it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations")
    parser.add_argument("--only", default="", help="those whose names have this in them")
    parser.add_argument("--most", type=int, default=0, help="operations; else each has its own")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [one for one in MUTATIONS if arguments.only in one.name]
    missed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for is_found, line in pool.map(lambda one: _try(one, arguments.most), chosen):
            missed += not is_found
            print(line, flush=True)
    print(f"{missed} of {len(chosen)} mistakes were missed")
    return min(missed, 1)


def _try(mutation: Mutation, most: int) -> tuple[bool, str]:
    if mutation.held_by:
        is_held = held(mutation)
        how = f"{'held' if is_held else 'NOT HELD'} by {mutation.held_by}: {mutation.why}"
        return is_held, f"{'-':>8}  {mutation.name}; {how}"
    count, words = operations_until_found(mutation, most)
    if count is None:
        return False, f"{'-':>8}  {mutation.name}: NOT FOUND"
    return True, f"{count:>8}  {mutation.name}: {words}"


if __name__ == "__main__":
    sys.exit(main())
