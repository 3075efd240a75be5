"""Mistakes in single rules of the specifications, to be put into the library on purpose.

Most of these are found by pure tests: a simulated world has no place for them.
"""

from collections.abc import Iterator

from tests.simulation.mistakes import Mutation

ALL_ELIGIBLE = "no simulated server is ineligible"
ALL_NEW = "all simulated servers are 4.4 or newer"
ALL_ACKNOWLEDGED = "all simulated writes have w: majority"
NO_LAW_OF_TIME = "how long it waits is no law of the judge's"
NO_OPTION = "simulated clients have that option as it is by default"
NO_SUCH_OPERATION = "no simulated operation is of that kind"
NO_TEXT = "what an error says beside its kind is no law of the judge's"
COSTS_TIME = "it costs time only"

BELOW = "it lies below the port"
RARE = "it was not seen in 18,000 operations"

CODES = "frozenset({6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})"


def _held(path: str, held_by: str, why: str, *mistakes: tuple[str, str, str]) -> Iterator[Mutation]:
    """Return mistakes in one file that the same tests hold: name, what is right, what is wrong."""
    for name, right, wrong in mistakes:
        yield Mutation(name, path, right, wrong, f"tests/unit/{held_by}", why)


ELIGIBILITY = [
    *_held(
        "_drivers/port.py",
        "_retry/test_loop.py -k ineligible",
        ALL_ELIGIBLE,
        (
            "every server has sessions",
            "return self.has_sessions and self.max_wire_version",
            "return self.max_wire_version",
        ),
        (
            "a standalone server is eligible",
            "case ServerKind.PRIMARY | ServerKind.MONGOS:",
            "case ServerKind.PRIMARY | ServerKind.MONGOS | ServerKind.STANDALONE:",
        ),
    ),
    *_held(
        "_retry/attempt.py",
        "_retry/test_loop.py -k ineligible",
        ALL_ELIGIBLE,
        (
            "an ineligible server gets a number",
            "numbering is not Numbering.NEVER\n            and server.can_retry_writes,",
            "numbering is not Numbering.NEVER,",
        ),
        (
            "a retry goes to an ineligible server",
            "        if execution.numbering is Numbering.REQUIRED and not server.can_retry_writes:",
            "        if False:",
        ),
    ),
    *_held(
        "_retry/loop.py",
        "_retry/test_loop.py -k ineligible",
        "labels of what is told are no law of the judge's",
        (
            "a label without a number",
            "if (execution.has_transaction_id or ends_transaction) and needs_label(",
            "if needs_label(",
        ),
    ),
]

OPERATIONS = [
    *_held(
        "_commands/target.py",
        "_writes/test_methods.py -k unacknowledged",
        ALL_ACKNOWLEDGED,
        ("w: 0 is ignored", "            write_concern.acknowledged,", "            True,"),
    ),
    Mutation(
        "the transaction is ignored",
        "_writes/writing.py",
        'return session is not None and bool(getattr(session, "in_transaction", False))',
        "return False",
    ),
    Mutation(
        "whatever is sent has a number",
        "_retry/attempt.py",
        "numbering is not Numbering.NEVER\n            and server.can_retry_writes,",
        "numbering is not None\n            and server.can_retry_writes,",
    ),
    Mutation(
        "a read has a number",
        "_retry/loop.py",
        "self.policy.retry_writes and command.reading is None",
        "self.policy.retry_writes",
    ),
    Mutation(
        "an insert_one has no number",
        "_commands/single.py",
        '"insert", body, self.result)',
        '"insert", body, self.result, holds_multi=True)',
    ),
    Mutation(
        "an update_one has no number",
        "_commands/single.py",
        '"update", body, self.result, holds_multi=is_multi)',
        '"update", body, self.result, holds_multi=self.operation != "replace_one")',
    ),
    Mutation(
        "a replace_one has no number",
        "_commands/single.py",
        '"update", body, self.result, holds_multi=is_multi)',
        '"update", body, self.result, holds_multi=self.operation != "update_one")',
    ),
    Mutation(
        "a delete_one has no number",
        "_commands/single.py",
        '"delete", body, self.result, holds_multi=is_multi)',
        '"delete", body, self.result, holds_multi=True)',
    ),
    Mutation(
        "a find_one_and_update has no number",
        "_commands/single.py",
        "            _value,\n            error_in,\n",
        '            _value,\n            error_in,\n            "update" in self.operation,\n',
    ),
    Mutation(
        "a find_one_and_replace has no number",
        "_commands/single.py",
        "            _value,\n            error_in,\n",
        '            _value,\n            error_in,\n            "replace" in self.operation,\n',
    ),
    Mutation(
        "a find_one_and_delete has no number",
        "_commands/single.py",
        "            _value,\n            error_in,\n",
        '            _value,\n            error_in,\n            "delete" in self.operation,\n',
    ),
    Mutation(
        "an insert_many has no number",
        "_commands/bulk.py",
        "command.holds_multi = batch.kind.holds_multi(batch.statements)",
        'command.holds_multi = self.operation == "insert_many"',
    ),
    Mutation(
        "a bulk_write has no number",
        "_commands/bulk.py",
        "command.holds_multi = batch.kind.holds_multi(batch.statements)",
        'command.holds_multi = self.operation == "bulk_write"',
    ),
    Mutation(
        "a delete_many has a number",
        "_commands/single.py",
        '"delete", body, self.result, holds_multi=is_multi)',
        '"delete", body, self.result)',
    ),
    *_held(
        "_commands/bulk.py",
        "_commands/test_bulk.py -k multi",
        NO_SUCH_OPERATION,
        (
            "a bulk_write that holds an UpdateMany has a number",
            "command.holds_multi = batch.kind.holds_multi(batch.statements)",
            "command.holds_multi = False",
        ),
    ),
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestRetrying",
        "what has no number has no label, either",
        (
            "what has no number is repeated",
            "retryable = _has_number(failure) and _may_be_repeated(failure)",
            "retryable = _may_be_repeated(failure)",
        ),
    ),
]

LABELS = [
    Mutation(
        "the server's label is ignored",
        "_retry/verdict.py",
        "def _may_be_repeated(failure: Failure) -> bool:\n    if _has(",
        "def _may_be_repeated(failure: Failure) -> bool:\n"
        "    if isinstance(failure.error, ConnectionFailure) and _has(",
    ),
    Mutation(
        "what fails before anything is sent has no label",
        "_retry/loop.py",
        "                    self._label(execution, result.error)",
        "                    if result.sent:\n"
        "                        self._label(execution, result.error)",
    ),
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestLabels",
        "no simulated pool is cleared",
        (
            "a pool that was cleared has no label",
            "RETRYABLE_CODES\n    return isinstance(error, ConnectionFailure) and not",
            (
                'RETRYABLE_CODES\n    if "pool paused" in str(error):\n        return False\n'
                "    return isinstance(error, ConnectionFailure) and not"
            ),
        ),
        (
            "a pool that is full has a label",
            "RETRYABLE_CODES\n    return isinstance(error, ConnectionFailure) and not",
            (
                "RETRYABLE_CODES\n    if isinstance(error, WaitQueueTimeoutError):\n"
                "        return True\n    return isinstance(error, ConnectionFailure) and not"
            ),
        ),
    ),
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestLabels",
        ALL_NEW,
        (
            "4.4 gets labels by its codes",
            "_FIRST_LABELLING_WIRE_VERSION = 9 ",
            "_FIRST_LABELLING_WIRE_VERSION = 10 ",
        ),
        (
            "the version of the server is ignored",
            "        if max_wire_version is None or max_wire_version >= _FIRST_LABELLING",
            "        if True or max_wire_version >= _FIRST_LABELLING",
        ),
        (
            "the code of a write error counts",
            "        if isinstance(error, WriteError):\n            return False\n        if",
            "        if",
        ),
        (
            "the code of a mongod's write concern error does not count",
            "if isinstance(error, WriteConcernError) and is_mongos:",
            "if isinstance(error, WriteConcernError):",
        ),
        (
            "the code of a router's write concern error counts",
            "if isinstance(error, WriteConcernError) and is_mongos:",
            "if False:",
        ),
    ),
    *_held(
        "_commands/error_codes.py",
        "_commands/test_error_codes.py",
        ALL_NEW,
        *(
            (f"{code} is missing among the codes of older servers", CODES, f"{CODES} - {{{code}}}")
            for code in (6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436)
        ),
    ),
]

RETRIES = [
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestRetrying",
        "the judge allows two retries, as overload has",
        (
            "two retries without a deadline",
            "        return math.inf if self.under_deadline else 1",
            "        return math.inf if self.under_deadline else 2",
        ),
    ),
    Mutation(
        "a write concern error is not retried",
        "_retry/verdict.py",
        "    if _has(failure.error, RETRYABLE_WRITE):",
        "    if _has(failure.error, RETRYABLE_WRITE) and not (\n"
        "        isinstance(failure.error, WriteConcernError)\n    ):",
        held_by="tests/unit/_retry/test_loop.py -k news_are_waited",
        why=RARE,
    ),
    *_held(
        "_retry/loop.py",
        "_retry/test_loop.py -k news",
        COSTS_TIME,
        (
            "nobody waits for news after a write concern error",
            "            if server is None or result.is_server_well or not may_be:",
            (
                "            may_be = may_be and type(error).__name__ != 'WriteConcernError'\n"
                "            if server is None or result.is_server_well or not may_be:"
            ),
        ),
    ),
    *_held(
        "_retry/surfacing.py",
        "_retry/test_surfacing.py",
        "a doubt stays one, whatever the error is",
        (
            "a selection that fails hides the error before",
            "error = execution.last_error() or ServerSelectionTimeoutError(",
            "error = ServerSelectionTimeoutError(",
        ),
    ),
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestSurfacing",
        "a doubt stays one, whatever the error is",
        (
            "always the latest error, also of what was never sent",
            "(failure.sent and not _has(failure.error, NO_WRITES))",
            "not _has(failure.error, NO_WRITES)",
        ),
    ),
]

OVERLOAD = [
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestOverload",
        NO_LAW_OF_TIME,
        (
            "backoff has no jitter",
            "return self.random() * min(_MAX_BACKOFF,",
            "return min(_MAX_BACKOFF,",
        ),
        ("backoff begins with another base", "_BASE_BACKOFF = 0.1\n", "_BASE_BACKOFF = 0.05\n"),
        ("backoff grows by steps", "2.0**self.retries)", "2.0 * self.retries)"),
        ("backoff begins with the base itself", "2.0**self.retries)", "2.0 ** (self.retries - 1))"),
        ("backoff has no cap", "_MAX_BACKOFF = 10.0", "_MAX_BACKOFF = math.inf"),
        (
            "the server's base is ignored",
            "    if isinstance(milliseconds, int | float) and milliseconds > 0:",
            "    if False:",
        ),
        (
            "whatever is retried backs off",
            "        if kind is _Kind.OVERLOADED:\n            wait",
            "        if True:\n            wait",
        ),
    ),
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestPauses",
        NO_LAW_OF_TIME,
        (
            "pauses between breaks have no jitter",
            "return self.random() * min(_MAX_PAUSE,",
            "return min(_MAX_PAUSE,",
        ),
        ("pauses between breaks have no cap", "_MAX_PAUSE = 1.0", "_MAX_PAUSE = math.inf"),
    ),
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestOverload",
        NO_OPTION,
        (
            "maxAdaptiveRetries is ignored",
            "            return self.policy.max_adaptive_retries",
            "            return 2",
        ),
        (
            "overload is retried without retryWrites",
            "is_on = self.policy.retry_writes or failure.ends_transaction",
            "is_on = True",
        ),
        (
            "overload is retried without retryReads",
            "is_on = self.policy.retry_reads\n",
            "is_on = True\n",
        ),
    ),
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestOverload",
        "simulated servers give both labels or none",
        (
            "overload needs no RetryableError",
            "repeatable = _has(error, RETRYABLE) and is_on",
            "repeatable = is_on",
        ),
    ),
]

DEPRIORITIZING = [
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestDeprioritizing",
        COSTS_TIME,
        (
            "a router that has failed is avoided only on overload",
            "        if failure.is_sharded:\n            return True\n",
            "        if failure.is_sharded:\n            return kind is _Kind.OVERLOADED\n",
        ),
        (
            "an overloaded server is never avoided",
            "return kind is _Kind.OVERLOADED and self.policy.overload_retargeting",
            "return False",
        ),
        (
            "an overloaded server is avoided though nobody asked for that",
            "return kind is _Kind.OVERLOADED and self.policy.overload_retargeting",
            "return kind is _Kind.OVERLOADED",
        ),
    ),
    *_held(
        "_retry/loop.py",
        "_retry/test_loop.py -k avoid",
        COSTS_TIME,
        (
            "only the router that has failed last is avoided",
            "execution.deprioritized |= {server.address}",
            "execution.deprioritized = frozenset({server.address})",
        ),
    ),
    *_held(
        "_retry/server_selection.py",
        "_retry/test_server_selection.py",
        COSTS_TIME,
        (
            "the only server is not used again",
            "        return servers[0] if servers else None",
            "        return next((s for s in servers if s.address not in deprioritized), None)",
        ),
        (
            "where all have failed, nobody is chosen",
            "if server.address not in deprioritized] or servers\n",
            "if server.address not in deprioritized]\n    if not servers:\n        return None\n",
        ),
    ),
    *_held(
        "_retry/server_selection.py",
        "_retry/test_pending.py -k deprioritized",
        COSTS_TIME,
        (
            "where there is no room, one that has failed comes before others",
            "(server.address in deprioritized, server.round_trip_time)",
            "server.round_trip_time",
        ),
    ),
]

NO_RETRYABLE_WRITES = [
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k without_retryable_writes",
        ALL_ELIGIBLE,
        (
            "code 20 is told as it is",
            "        if says_no_retryable_writes(failure.error) and not failure.in_transaction:",
            "        if False:",
        ),
    ),
    *_held(
        "_commands/error_codes.py",
        "_commands/test_error_codes.py",
        ALL_ELIGIBLE,
        (
            "what replaces code 20 has no cause",
            "    replacement.__cause__ = error\n",
            "",
        ),
        (
            "the text of code 20 may stand anywhere",
            'str(error).startswith("Transaction numbers")',
            '"Transaction numbers" in str(error)',
        ),
        (
            "the text of code 20 counts with any code",
            "        and error.code == _ILLEGAL_OPERATION\n",
            "",
        ),
    ),
]

TIME = [
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k max_time_expired",
        "no simulated server knows maxTimeMS",
        (
            "code 50 is let through",
            "if math.isfinite(time_left) and _says_time_is_over(failure.error):",
            "if False:",
        ),
        (
            "code 50 is a timeout without a deadline, too",
            "if math.isfinite(time_left) and _says_time_is_over(failure.error):",
            "if _says_time_is_over(failure.error):",
        ),
    ),
    *_held(
        "_retry/surfacing.py",
        "_retry/test_surfacing.py",
        NO_TEXT,
        (
            "a deadline that is over says nothing of the last error",
            'attempts; the last error: "\n        f"{type(last).__name__}: {last}"',
            'attempts"',
        ),
    ),
    *_held(
        "_retry/loop.py",
        "_retry/test_loop.py -k timer_that_is_early",
        NO_TEXT,
        (
            "a deadline that is over has no cause",
            "        late.__cause__ = error\n",
            "",
        ),
    ),
    Mutation(
        "wtimeout is sent under a deadline",
        "_commands/target.py",
        '        document.pop("wtimeout", None)\n',
        "        pass\n",
    ),
    Mutation(
        "wtimeout is never sent",
        "_commands/target.py",
        "    if under_deadline:\n",
        "    if True:\n",
    ),
    *_held(
        "deadlines.py",
        "test_deadlines.py",
        "no simulated deadline is as short as that",
        (
            "a deadline of 0 is none",
            "        if self._seconds is None:\n            inner",
            "        if not self._seconds:\n            inner",
        ),
    ),
    Mutation(
        "nobody looks at the deadline between attempts",
        "_retry/waiting.py",
        "        if execution.time_left() <= 0:\n            return False\n        reading",
        "        reading",
        held_by="tests/unit/_retry/test_loop.py -k timer_that_is_early",
        why=RARE,
    ),
]

REVIEWED = [
    *_held(
        "_retry/verdict.py",
        "_retry/test_verdict.py -k TestMemoriesLost",
        "a session with an open question is used by nobody else, so that no server says so",
        (
            "225 denies",
            "            case _Says.NEVER_THERE if is_by_majority:",
            (
                "            case _Says.NOT_THIS_TIME if code_of(attempt.error) == 225:\n"
                "                in_doubt.clear()\n"
                "            case _Says.NEVER_THERE if is_by_majority:"
            ),
        ),
    ),
    *_held(
        "_retry/lookout.py",
        "_retry/test_lookout.py -k nobodys_context",
        "nothing that it calls reads a context there",
        (
            "the timer of those who look runs in a caller's context",
            "self._loop.call_at(due, self._look, context=self._context)",
            "self._loop.call_at(due, self._look)",
        ),
    ),
    *_held(
        "_retry/attempt.py",
        "_retry/test_pending.py -k no_server_yet",
        BELOW,
        (
            "a command is prepared and numbered twice when its server is deposed",
            "        if call is None or not call.is_waiting or call",
            "        if call is None or call",
        ),
    ),
    *_held(
        "_retry/attempt.py",
        "_retry/test_pending.py -k thread",
        BELOW,
        (
            "an abandoned attempt that hangs in sending keeps its thread",
            "        if self._call is not None and self._driver.abandon(self._call):\n",
            "        if False:\n",
        ),
    ),
    *_held(
        "_writes/bulk.py",
        "_writes/test_bulk.py -k TestLateAnswers",
        "the command has to be answered after its end, and refused in part",
        (
            "what a late answer has refused is told as applied",
            "        if reply is None:\n            return attempt\n        is_sharded",
            (
                "        if reply is None or reply is attempt.reply:\n"
                "            return attempt\n        is_sharded"
            ),
        ),
    ),
    *_held(
        "_writes/group/shares.py",
        "_writes/group/test_queue.py -k numbers_that",
        "no simulated statement is refused before any is executed",
        (
            "resolve() names another statement of a group commit before 5.0",
            "return index if numbers is None or index not in numbers else numbers.index(index)",
            "return index",
        ),
    ),
    Mutation(
        "a thread is faster than the loop",
        "_drivers/motor/opening.py",
        "entry.context.copy().run",
        "entry.context.run",
        held_by="tests/integration/test_on_loop.py -k faster",
        why=BELOW,
    ),
    Mutation(
        "a reply that can't be decoded keeps its connection",
        "_drivers/engine/attempt.py",
        "                self._tell_driver(error, self._connection.connection)\n"
        "            self._release()",
        "                self._tell_driver(error, self._connection.connection)\n"
        "                self._release()",
        held_by="tests/integration/test_on_loop.py -k decoder_that_raises",
        why=BELOW,
    ),
]

MISTAKES_IN_RULES = [
    *ELIGIBILITY,
    *OPERATIONS,
    *LABELS,
    *RETRIES,
    *OVERLOAD,
    *DEPRIORITIZING,
    *NO_RETRYABLE_WRITES,
    *TIME,
    *REVIEWED,
]
