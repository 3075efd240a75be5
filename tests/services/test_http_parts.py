"""What the modules for web frameworks share: header fields, problem details. Without any server."""

import io
import json
import logging
import math
import re
from pathlib import Path

import pytest
from aiohttp import web
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    OperationFailure,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

import aioretry.aiohttp as for_aiohttp
import aioretry.asgi as for_asgi
import aioretry.fastapi as for_fastapi
from aioretry import (
    Attempt,
    ClientDraining,
    DeadlineExceeded,
    Outcome,
    PartialResult,
    RetryClient,
)
from aioretry._web.keys import KeyOfRequest
from aioretry._web.problems import Problem, log_problem, page_of, problem_of
from aioretry._web.requests import RequestLimits, digest_of, joined, key_of, seconds_of
from aioretry._web.serving import Probes, paths_of
from aioretry.errors import attach
from aioretry.idempotent import IdempotencyConflict, KeyExpiredError, KeyInUseError, Keys

PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255)
TOKEN = st.text("!#$%&'*+.^_`|~:/-" + "abcxyzABCXYZ0189", min_size=1, max_size=255)
ANY_TEXT = st.text(st.characters(exclude_categories=()))  # surrogates, too
SECRET = b"0123456789abcdef"
BUSY = {"errorLabels": ["SystemOverloadedError", "RetryableError"]}


def limits(default=5.0, maximum=30.0, header="X-Time", parse=seconds_of, grace=1.0):
    """Limits, most of which don't matter."""
    return RequestLimits(default, maximum, header, parse, grace)


@pytest.mark.parametrize("module", [for_aiohttp, for_asgi, for_fastapi], ids=lambda m: m.__name__)
def test_the_page_names_what_is_public(module):
    """The reference of the web modules mentions every public name."""
    page = (Path(__file__).parents[2] / "docs" / "web-services.md").read_text()
    assert [] == [name for name in module.__all__ if not re.search(rf"\b{name}\b", page)]


class TestSeconds:
    @given(st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1))
    def test_reads_decimals(self, whole, fraction):
        """Digits, with a fraction or without."""
        assert seconds_of(str(whole)) == whole
        assert seconds_of(f"{whole}.{fraction}") == float(f"{whole}.{fraction}")

    @given(st.text())
    def test_reads_nothing_else(self, text):
        """Anything but ASCII digits and one point is refused, and never read as something."""
        if all(char in "0123456789." for char in text):
            return
        with pytest.raises(ValueError, match="seconds"):
            seconds_of(text)

    @pytest.mark.parametrize(
        "text", ["", "-1", "+1", "1e3", "inf", "nan", "1_0", ".5", "5.", " 5", "٣", "1" * 10]
    )
    def test_refuses(self, text):
        """Neither do signs, exponents, infinity or other digits pass."""
        with pytest.raises(ValueError, match="seconds"):
            seconds_of(text)


class TestLimits:
    def test_default(self):
        """A request that asks for nothing has the default."""
        assert limits().seconds([]) == 5.0

    @given(st.floats(0.001, 1000))
    def test_maximum(self, asked):
        """A request gets what it asks for, and never more than the maximum."""
        assert limits(parse=float).seconds([str(asked)]) == min(asked, 30.0)

    def test_without_a_maximum_it_can_only_shorten(self):
        """Where there is no maximum, the default is it."""
        assert limits(maximum=None).seconds(["60"]) == 5.0
        assert limits(maximum=None).seconds([" 2 "]) == 2.0

    @pytest.mark.parametrize("fields", [["x"], ["0"], [""], ["1", "1"], ["1, 2"]])
    def test_bad_fields(self, fields):
        """What can't be read is a problem, and so is a field that is there twice."""
        problem = limits().seconds(fields)
        assert isinstance(problem, Problem)
        assert (problem.status, problem.reason) == (400, "bad_header")
        assert "X-Time" in problem.detail

    @pytest.mark.parametrize("given", [float("nan"), -1.0, 0.0])
    def test_what_a_parser_gives_is_looked_at(self, given):
        """A parser can't make a request last for ever, or for no time."""
        assert isinstance(limits(parse=lambda text: given).seconds(["1"]), Problem)

    def test_a_number_that_is_too_large(self):
        """What a parser can't calculate is the caller's fault too."""
        assert isinstance(limits(parse=lambda text: int(text) / 1000).seconds(["9" * 400]), Problem)

    def test_an_endless_time_is_the_maximum(self):
        """Infinity is more than the maximum."""
        assert limits(parse=float).seconds(["inf"]) == 30.0

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ({"default": None}, TypeError, "default"),
            ({"default": True}, TypeError, "default"),
            ({"default": 0}, ValueError, "default"),
            ({"default": 31}, ValueError, "maximum=30.0"),
            ({"maximum": float("inf")}, ValueError, "maximum"),
            ({"maximum": "30"}, TypeError, "maximum"),
            ({"maximum": -1}, ValueError, "maximum"),
            ({"header": b"X"}, TypeError, "header"),
            ({"header": "X: y"}, ValueError, "header"),
            ({"header": ""}, ValueError, "header"),
            ({"parse": None}, TypeError, "parse"),
            ({"grace": 0}, ValueError, "grace"),
        ],
    )
    def test_bad_arguments(self, arguments, error, text):
        """They are refused at once, by name."""
        with pytest.raises(error, match=text):
            limits(**arguments)


class TestKey:
    @given(PRINTABLE)
    def test_strings(self, key):
        """A structured field string gives what it was made of (RFC 9651, 4.1.6)."""
        quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        assert key_of([f" {quoted}\t"], required=True) == key

    @given(TOKEN)
    def test_tokens(self, key):
        """A token, such as a UUID without quotes, is itself."""
        assert key_of([key], required=True) == key

    @given(st.text())
    def test_anything(self, text):
        """Whatever is sent gives a key that can be used, or a problem."""
        found = key_of([text], required=True)
        if isinstance(found, Problem):
            assert found.status == 400
        else:
            assert 0 < len(found) <= 255
            assert found.isascii()
            assert found.isprintable()

    @pytest.mark.parametrize(
        "fields",
        [
            [""],
            ['""'],
            ['"open'],
            ['a"b'],
            ["two words"],
            ["a,b"],
            ['"a", "b"'],
            ['"a\\b"'],
            ['"é"'],
            ['"a\x7f"'],
            ['"a"\n'],
            ["a", "a"],
            ["a" * 256],
            ['"' + "a" * 256 + '"'],
        ],
    )
    def test_refuses(self, fields):
        """No key, more than one, or one that is too long."""
        problem = key_of(fields, required=False)
        assert isinstance(problem, Problem)
        assert (problem.status, problem.reason) == (400, "bad_header")

    def test_missing(self):
        """Where it is required that is a problem; elsewhere each request is one of its own."""
        problem = key_of([], required=True)
        assert isinstance(problem, Problem)
        assert (problem.status, problem.reason) == (400, "key_missing")
        assert key_of([], required=False) != key_of([], required=False)

    @given(st.lists(st.binary()), st.lists(st.binary()))
    def test_joined(self, one, other):
        """No two lists of parts are joined to the same."""
        assert (joined(*one) == joined(*other)) == (one == other)

    @given(ANY_TEXT, ANY_TEXT)
    def test_joined_texts(self, one, other):
        """Nor any two texts, also of header bytes that are no UTF-8."""
        assert (joined(one) == joined(other)) == (one == other)

    @given(st.binary(max_size=10), st.integers(0, 10))
    def test_digest(self, content, position):
        """A file stands for its content, wherever it was read to, and stays there."""
        file = io.BytesIO(content)
        file.seek(position)
        assert digest_of(file) == digest_of(io.BytesIO(content)) != digest_of(io.BytesIO(b"x" * 11))
        assert file.tell() == position


class TestKeyOfRequest:
    async def test_is_used_once(self):
        """A key that is used twice in one request is refused, but on another collection."""
        client = RetryClient("mongodb://127.0.0.1:1/?connect=false")
        database = client["shop"]
        key = KeyOfRequest(Keys(SECRET, "tests"), database, "me", "key", b"")
        key.source(database.orders)
        key.source(database.stock)
        with pytest.raises(InvalidOperation, match="used already"):
            key.source(database.orders)
        with pytest.raises(InvalidOperation, match="used already"):
            await key._kept(lambda session: None)
        client.close()

    @pytest.mark.parametrize(("caller", "error"), [("", ValueError), (None, TypeError)])
    def test_needs_a_caller(self, caller, error):
        """A scope that says nothing would give all callers the same keys."""
        with pytest.raises(error, match="scope"):
            KeyOfRequest(Keys(SECRET, "tests"), None, caller, "key", b"")


class TestKeys:
    @pytest.mark.parametrize(("at_once", "error"), [(0, ValueError), ("1", TypeError)])
    def test_at_once(self, at_once, error):
        """How many may work at once is looked at where it is given."""
        with pytest.raises(error, match="at_once"):
            Keys(SECRET, "tests", at_once=at_once)

    async def test_once(self):
        """So are the arguments of a call, before anything is done."""
        client = RetryClient("mongodb://127.0.0.1:1/?connect=false")
        keys = Keys(SECRET, "tests")
        with pytest.raises(TypeError, match="payload"):
            await keys.once("key", None, database=client.shop, payload="text")
        with pytest.raises(ValueError, match="key"):
            await keys.once("", None, database=client.shop)
        client.close()


class TestProblems:
    def test_body(self):
        """The members of RFC 9457, and ours."""
        problem = Problem(503, "no_server", "later", Outcome.NOT_APPLIED, 2)
        assert problem.headers() == {"Retry-After": "2"}
        assert json.loads(problem.body()) == {
            "type": "about:blank",
            "title": "Service Unavailable",
            "status": 503,
            "detail": "later",
            "reason": "no_server",
            "outcome": "not applied",
        }

    def test_documentation(self):
        """A page that explains problems is their type, and is linked."""
        page = page_of("https://example.com/problems/")
        problem = Problem(422, "key_reused", "used")
        assert json.loads(problem.body(page))["type"] == f"{page}#key_reused"
        assert problem.headers(page) == {
            "Link": f'<{page}#key_reused>; rel="describedby"; type="text/html"'
        }
        assert page_of(None) is None

    @pytest.mark.parametrize(
        ("documentation", "error"),
        [
            (1, TypeError),
            ("", ValueError),
            ("/problems", ValueError),
            ("ftp://example.com/", ValueError),
            ("https://example.com/#here", ValueError),
            ("https://example.com/a b", ValueError),
            ('https://example.com/">', ValueError),
            ("https://example.com/\r\nX: y", ValueError),
        ],
    )
    def test_bad_documentation(self, documentation, error):
        """It is refused at once, by name, wherever it is given."""

        async def app(scope, receive, send): ...

        for refuse in (
            lambda: for_asgi.ProblemMiddleware(app, documentation=documentation),
            lambda: for_asgi.DeadlineMiddleware(app, default=1.0, documentation=documentation),
            lambda: for_fastapi.add_problem_handlers(FastAPI(), documentation=documentation),
            lambda: for_aiohttp.document_problems(web.Application(), documentation),
        ):
            with pytest.raises(error, match="documentation"):
                refuse()

    @pytest.mark.parametrize(
        ("error", "is_over", "status"),
        [
            (ClientDraining("ends"), False, 503),
            (DeadlineExceeded("late"), False, 504),
            (NetworkTimeout("late"), False, 504),
            (ExecutionTimeout("late", 50), False, 504),
            (ServerSelectionTimeoutError("none"), True, 504),
            (ServerSelectionTimeoutError("none"), False, 503),
            (WaitQueueTimeoutError("none is free"), False, 503),
            (AutoReconnect("lost"), False, 500),
            (AutoReconnect("lost"), True, 500),
            (KeyInUseError("running"), True, 409),
            (IdempotencyConflict("other"), False, 422),
            (KeyExpiredError("old"), False, 422),
            (DuplicateKeyError("E11000", 11000), True, None),
            (OperationFailure("failed validation", 121), False, None),
            (OperationFailure("busy", 462, BUSY), False, 503),
            (InvalidOperation("wrong"), False, None),
            (TimeoutError(), True, None),
            (ValueError(), True, None),
        ],
        ids=repr,
    )
    def test_statuses(self, error, is_over, status):
        """What is known of an error decides; what is the application's is left to it."""
        problem = problem_of(error, "POST", is_over=is_over)
        assert (problem and problem.status) == status

    def test_a_command_that_is_the_drivers_own(self):
        """It may have been a write, unless the request can't mean one; a read of ours was none."""
        lost = AutoReconnect("lost")
        problem = problem_of(lost, "POST", is_over=False)
        assert (problem.reason, problem.outcome) == ("unknown_outcome", Outcome.UNKNOWN)
        late = problem_of(NetworkTimeout("late"), "POST", is_over=True)
        assert (late.reason, late.outcome) == ("deadline_exceeded", Outcome.UNKNOWN)
        for method in ("GET", "HEAD"):
            problem = problem_of(lost, method, is_over=False)
            assert (problem.reason, problem.outcome) == ("no_server", None)
        attach(lost, None, [Attempt(("a", 1), 0.0, 0.1, True, lost)])
        assert problem_of(lost, "POST", is_over=False).reason == "no_server"
        unsent = DeadlineExceeded("late")  # of a read for which there was no server
        attach(unsent, None, [])
        assert problem_of(unsent, "POST", is_over=True).outcome is None

    @pytest.mark.parametrize(
        ("outcomes", "reason"),
        [
            ((Outcome.APPLIED, Outcome.NOT_APPLIED), "partly_applied"),
            ((Outcome.APPLIED, Outcome.UNKNOWN), "unknown_outcome"),
            ((Outcome.NOT_APPLIED, Outcome.NOT_APPLIED), "no_server"),
        ],
    )
    def test_a_part_of_a_bulk(self, outcomes, reason):
        """Where a part of a bulk write is applied, nobody is asked to repeat the request."""
        lost = AutoReconnect("lost")
        outcome = outcomes[0] if len(set(outcomes)) == 1 else Outcome.UNKNOWN
        attach(lost, outcome, (), PartialResult(None, outcomes))
        problem = problem_of(lost, "POST", is_over=False)
        assert problem.reason == reason
        assert ("Retry-After" in problem.headers()) == (reason == "no_server")

    def test_groups(self):
        """A group whose errors mean the same means that; any other one is the application's."""
        late, lost = DeadlineExceeded("late"), AutoReconnect("lost")
        group = ExceptionGroup("tasks", [late, ExceptionGroup("more", [late])])
        assert problem_of(group, "GET", is_over=True) == problem_of(late, "GET", is_over=True)
        assert problem_of(ExceptionGroup("tasks", [late, lost]), "GET", is_over=False) is None
        assert (
            problem_of(ExceptionGroup("tasks", [late, ValueError()]), "GET", is_over=True) is None
        )

    @pytest.mark.parametrize(
        "module", [for_aiohttp, for_asgi, for_fastapi], ids=lambda m: m.__name__
    )
    def test_statuses_of_ones_own(self, module):
        """A status without a name has no title; one that is no error is refused at once."""
        body = json.loads(module.ProblemError(499, "gone", "too late").problem.body())
        assert (body["status"], body.get("title")) == (499, None)
        for status in 200, 600:
            with pytest.raises(ValueError, match="status"):
                module.ProblemError(status, "fine", "all is well")
        with pytest.raises(TypeError, match="status"):
            module.ProblemError("409", "text", "no number")

    def test_log(self, caplog):
        """Classes, codes and what was tried are told, and no content."""
        caplog.set_level(logging.INFO, "aioretry")
        lost = AutoReconnect("to secret:27017")
        lost.__cause__ = OSError("secret")
        lost.__context__ = ValueError("secret")
        told, note = "POST /orders is answered with", "aioretry: insert_one on db.things"
        lost.add_note(note)
        lost.add_note("secret")
        refused = OperationFailure("secret", 462)
        both = ExceptionGroup("secret", [lost, refused, refused])
        for problem, error in [
            (Problem(500, "unknown_outcome", ""), lost),
            (Problem(503, "overloaded", ""), refused),
            (Problem(422, "key_reused", ""), both),
        ]:
            log_problem(problem, "POST /orders", error)
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            (
                "ERROR",
                f"{told} 500 unknown_outcome: AutoReconnect, from OSError; {note}",
            ),
            ("WARNING", f"{told} 503 overloaded: OperationFailure 462"),
            (
                "INFO",
                f"{told} 422 key_reused: ExceptionGroup(AutoReconnect, OperationFailure 462)",
            ),
        ]

    def test_too_late_for_another_run(self):
        """The deadline of a transaction is told when a pause would outlast it: nobody is gone."""
        late = DeadlineExceeded("late")
        attach(late, Outcome.NOT_APPLIED, ())
        problem = problem_of(late, "POST", is_over=False)
        assert (problem.status, problem.reason) == (504, "deadline_exceeded")

    def test_unknown_commit(self):
        """A commit that was not answered leaves the outcome unknown, whatever ended it."""
        late = DeadlineExceeded("late", {"errorLabels": ["UnknownTransactionCommitResult"]})
        problem = problem_of(late, "POST", is_over=True)
        assert (problem.status, problem.outcome) == (504, Outcome.UNKNOWN)
        lost = AutoReconnect("lost", {"errorLabels": ["UnknownTransactionCommitResult"]})
        problem = problem_of(lost, "POST", is_over=False)
        assert (problem.status, problem.outcome) == (500, Outcome.UNKNOWN)


class TestProbes:
    @pytest.mark.parametrize(
        ("arguments", "error", "name"),
        [
            ({"live": b"/livez"}, TypeError, "live"),
            ({"ready": "readyz"}, ValueError, "ready"),
            ({"ready": "/livez"}, ValueError, "live and ready"),
            ({"grace": 0}, ValueError, "grace"),
            ({"grace": math.nan}, ValueError, "grace"),
            ({"grace": "1"}, TypeError, "grace"),
        ],
    )
    def test_bad_arguments(self, arguments, error, name):
        """They are refused at once, by name."""
        with pytest.raises(error, match=name):
            Probes(**{"live": "/livez", "ready": "/readyz", "grace": 30.0, **arguments})

    def test_for_ever(self):
        """The grace may be infinite."""
        assert [*Probes("/live", "/ready", math.inf).paths] == ["/live", "/ready"]

    @pytest.mark.parametrize(
        ("exempt", "error"), [("/livez", TypeError), (["livez"], ValueError), ([1], TypeError)]
    )
    def test_bad_exempt(self, exempt, error):
        """So are paths without a deadline."""
        with pytest.raises(error, match="exempt"):
            paths_of(exempt)

    @pytest.mark.parametrize(
        ("arguments", "error", "name"),
        [
            ({"startup_timeout": 0}, ValueError, "startup_timeout"),
            ({"startup_timeout": "1"}, TypeError, "startup_timeout"),
            ({"drain_timeout": None}, TypeError, "drain_timeout"),
            ({"drain_timeout": math.inf}, ValueError, "drain_timeout"),
        ],
    )
    @pytest.mark.parametrize("make", [for_aiohttp.mongodb_ctx, for_asgi.mongodb_lifespan])
    def test_bad_times(self, make, arguments, error, name):
        """And the times of a lifespan."""
        with pytest.raises(error, match=name):
            make("mongodb://127.0.0.1:1", **arguments)
