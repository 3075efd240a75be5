"""The demo: what it concludes from figures, what it refuses, and one real run."""

import asyncio
import io
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from pymongo.errors import AutoReconnect
from rich.console import Console

from aioretry import Outcome
from examples.demo.__main__ import main
from examples.demo.command import _get_enough_threads
from examples.demo.counting import Tally, Told, exit_code, tally, told_by
from examples.demo.display import picture, show
from examples.demo.faults import EXISTING_SET, OWN_SET
from examples.demo.plan import LEAST_SECONDS, Plan
from examples.demo.report import as_data, print_report
from examples.demo.run import Line, Result
from examples.demo.state import Cell, State
from examples.demo.strategies import strategies
from tests.lengths import FULL

PLAN = Plan(90.0, 10)
KEYS = [strategy.key for strategy in strategies(PLAN)]
OURS = ["aioretry", "aioretry_deadline"]


def count(told: Mapping[int, Told], times: Mapping[int, int], *, must_tell: bool = True) -> Tally:
    return tally(told, times, sum(times.values()), must_tell=must_tell)


# What is concluded from the figures.


def test_an_exact_cell() -> None:
    """Acknowledged and counted once, refused and not counted, unknown and either: all is true."""
    told = {
        1: Told.ACKNOWLEDGED,
        2: Told.NOT_APPLIED,
        3: Told.UNKNOWN,
        4: Told.UNKNOWN,
        5: Told.APPLIED,
    }
    cell = count(told, {1: 1, 3: 1, 5: 1})
    assert cell == Tally(
        events=5,
        acknowledged=1,
        errors=4,
        unknown=2,
        counted=3,
        over=0,
        under=2,
        counted_errors=2,
        false=0,
    )
    assert exit_code([cell]) == 0


@pytest.mark.parametrize(
    ("told", "times"),
    [
        pytest.param(Told.ACKNOWLEDGED, 0, id="lost"),
        pytest.param(Told.ACKNOWLEDGED, 2, id="doubled"),
        pytest.param(Told.NOT_APPLIED, 1, id="applied after all"),
        pytest.param(Told.UNKNOWN, 2, id="unknown and doubled"),
        pytest.param(Told.APPLIED, 0, id="not applied after all"),
        pytest.param(Told.NOTHING, 0, id="an error without a word"),
    ],
)
def test_one_untrue_word_fails_the_demo(told: Told, times: int) -> None:
    """A single event of which aioretry said something untrue makes the exit code 1."""
    good = dict.fromkeys(range(2, 100), Told.ACKNOWLEDGED)
    cell = count({1: told, **good}, {1: times, **dict.fromkeys(good, 1)})
    assert cell.false == 1
    assert exit_code([count(good, dict.fromkeys(good, 1)), cell]) == 1


def test_a_loss_and_a_double_do_not_cancel_out() -> None:
    """A lost event beside a doubled one leaves the sum right; both are seen all the same."""
    cell = count({1: Told.ACKNOWLEDGED, 2: Told.ACKNOWLEDGED}, {1: 2})
    assert (cell.acknowledged, cell.counted) == (2, 2)
    assert (cell.over, cell.under, cell.false) == (1, 1, 2)


def test_an_event_that_nobody_wrote() -> None:
    """An event that is counted but never happened is one too many."""
    cell = count({}, {7: 1})
    assert (cell.events, cell.counted, cell.over, cell.false) == (0, 1, 1, 1)


def test_a_counter_that_disagrees_with_its_events() -> None:
    """A counter that is not the sum of the events it stands for makes the exit code 1."""
    assert exit_code([tally({1: Told.ACKNOWLEDGED}, {1: 1}, 2, must_tell=True)]) == 1


def test_plain_errors_say_nothing() -> None:
    """Of plain Motor, no word about the write is expected, and counting twice is still seen."""
    told = {1: Told.NOTHING, 2: Told.NOTHING, 3: Told.NOTHING}
    cell = count(told, {1: 1, 2: 2}, must_tell=False)
    assert (cell.over, cell.under, cell.counted_errors, cell.false) == (1, 1, 2, 1)


def test_every_outcome_is_told() -> None:
    """Each outcome has its word, and an error without an outcome has its own."""
    assert {told_by(outcome) for outcome in (*Outcome, None)} == set(Told) - {Told.ACKNOWLEDGED}


def test_figures_add_up() -> None:
    """What was counted is what happened, less what is missing, and what is too much."""
    told = dict.fromkeys(range(10), Told.ACKNOWLEDGED)
    cell = count(told, {0: 3, 1: 2, 2: 1, 99: 2})
    assert cell.counted == cell.events - cell.under + cell.over


# What the plan promises.


@pytest.mark.parametrize("seconds", [LEAST_SECONDS, 45.0, 90.0, 600.0])
def test_the_outage_outlasts_every_selection(seconds: float) -> None:
    """The outage is longer than a client looks for a primary, and shorter than the deadline."""
    plan = Plan(seconds, 10)
    assert plan.server_selection_timeout < plan.outage < plan.deadline


def test_phases_share_the_time() -> None:
    """The phases end one after the other, the last one before the end of the run."""
    now, left = 4.0, sum(fault.share for fault in OWN_SET)
    ends = []
    for fault in OWN_SET:
        now = PLAN.phase_end(now, fault.share, left)
        left -= fault.share
        ends.append(now)
    assert ends == sorted(ends)
    assert 85.0 < ends[-1] < 90.0


# What is refused.


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seconds", "-3"),
        ("--seconds", "19.9"),
        ("--seconds", "nan"),
        ("--seconds", "inf"),
        ("--seconds", "soon"),
        ("--writers", "0"),
        ("--writers", "201"),
        ("--writers", "2.5"),
        ("--client", "pymongo"),
    ],
)
def test_bad_options(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad value ends with exit code 2 and a message that names option and value."""
    with pytest.raises(SystemExit) as caught:
        main([f"{option}={value}"])
    assert caught.value.code == 2
    [message] = capsys.readouterr().err.splitlines()
    assert option in message
    assert repr(value) in message
    assert message.endswith("see `python -m examples.demo --help`")


def test_a_set_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """An unusable URI ends with exit code 2 and one line that says so."""
    assert main(["--uri", "mongodb://", "--json"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.splitlines()[-1].startswith("the set can't be used: ")
    assert "python -m aioretry doctor" in streams.err


def test_no_mongod(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says what to set."""
    monkeypatch.setenv("AIORETRY_MONGOD", "/nope")
    assert main(["--json"]) == 2
    [told] = capsys.readouterr().err.splitlines()
    assert told.startswith("AIORETRY_MONGOD is no program")
    assert told.endswith("set it to the path of a mongod, or unset it")


def test_without_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without rich, the message is the command that installs it."""
    monkeypatch.delattr("examples.demo.command")
    monkeypatch.delitem(sys.modules, "examples.demo.command")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main([]) == 2
    told = capsys.readouterr().err
    assert told == "the demo needs rich; pip install rich\n"


def test_a_process_of_somebody_else_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only `python -m examples.demo` replaces itself by a process with more of Motor's threads."""
    monkeypatch.delenv("MOTOR_MAX_WORKERS", raising=False)
    monkeypatch.setattr("os.execve", lambda *_: pytest.fail("it was"))
    _get_enough_threads(PLAN)


# What is seen.


def made_up(*, lost: int = 0) -> Result:
    def cell(*, lost: int) -> Tally:
        told = dict.fromkeys(range(100), Told.ACKNOWLEDGED)
        return count(told, {number: 1 for number in told if number >= lost})

    return Result(
        [],
        [
            Line(fault, strategy, cell(lost=lost if strategy.is_ours else 0), 100, 0, 0.25, {})
            for fault in OWN_SET
            for strategy in strategies(PLAN)
        ],
    )


def printed(result: Result) -> str:
    console = Console(width=100, file=io.StringIO())
    print_report(console, State(PLAN), result)
    return console.file.getvalue()


def test_report_is_a_table_of_plain_text() -> None:
    """The report fits into 100 columns and has a line for every strategy under every fault."""
    lines = printed(made_up()).splitlines()
    assert max(map(len, lines)) <= 100
    for strategy in strategies(PLAN):
        assert sum(line.startswith(f"  {strategy.title}  ") for line in lines) == len(OWN_SET)
    assert "What aioretry said was true of all its 800 events." in lines[-2]


def test_report_of_lost_events() -> None:
    """Where aioretry lost events, the report says of how many."""
    result = made_up(lost=3)
    assert "What aioretry said was untrue of 24 of its 800 events." in printed(result)
    assert as_data(State(PLAN), result)["exact"] is False


def test_left_out_faults_are_named() -> None:
    """With an existing set, the report names what was not done."""
    result = Result([fault for fault in OWN_SET if fault not in EXISTING_SET], made_up().lines)
    assert "persistent outage." in printed(result).partition("Left out")[2]


def test_picture_fits_a_terminal() -> None:
    """The live picture is 100 columns wide and has what is being done, and every strategy."""
    state = State(PLAN)
    state.started -= 30.0
    state.members = lambda: [("127.0.0.1:1", "running"), ("127.0.0.1:2", "dead")]
    cells = {key: Cell("election", key) for key in KEYS}
    state.begin_phase("2 of 4: election", cells)
    state.say("kill -9 127.0.0.1:2, the primary")
    for cell in cells.values():
        cell.acknowledge(cell.begin())
        state.note_acknowledged(cell.strategy)
    console = Console(width=120, file=io.StringIO())
    console.print(picture(state))
    lines = console.file.getvalue().splitlines()
    assert {len(line.rstrip()) for line in lines} == {100}
    assert "kill -9 127.0.0.1:2, the primary" in "".join(lines)
    assert all(strategy.title in "".join(lines) for strategy in strategies(PLAN))


async def test_plain_lines_where_there_is_no_terminal() -> None:
    """Elsewhere than on a terminal, every action is one line, at once."""
    console, state = Console(width=100, file=io.StringIO()), State(PLAN)
    async with show(state, console):
        state.say("kill -9 127.0.0.1:2, the primary")
        assert console.file.getvalue() == "  0.0 s  kill -9 127.0.0.1:2, the primary\n"


async def test_live_picture_on_a_terminal() -> None:
    """On a terminal, the picture is drawn while the block lasts, and gone after it."""
    console, state = Console(width=100, file=io.StringIO(), force_terminal=True), State(PLAN)
    async with show(state, console):
        while "aioretry demo" not in console.file.getvalue():
            await asyncio.sleep(0)
    assert console.file.getvalue().endswith("\x1b[2K")
    assert len(asyncio.all_tasks()) == 1


def test_pauses_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest pause is the longest time without an acknowledged event, both ends included."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    cell = Cell("election", "no_retry")
    cell.start()
    now = 101.0
    cell.acknowledge(cell.begin())
    now = 104.0
    cell.fail(cell.begin(), Told.NOTHING, AutoReconnect())
    now = 105.5
    cell.acknowledge(cell.begin())
    assert cell.longest_pause == 4.5
    now = 111.0
    cell.end_pause()
    assert cell.longest_pause == 5.5
    assert (cell.acknowledged, cell.errors, cell.error_classes["AutoReconnect"]) == (2, 1, 1)


# What really happens.


@pytest.fixture(scope="module", params=["motor", "asyncio"] if FULL else ["motor"])
def real_run(request: pytest.FixtureRequest) -> dict[str, Any]:
    command = [sys.executable, "-m", "examples.demo", f"--client={request.param}"]
    command += ["--seconds=30", "--writers=10", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    assert data["client"] == request.param
    return data


def cells_of(data: dict[str, Any], *, strategy: str | None = None) -> list[dict[str, Any]]:
    return [cell for cell in data["cells"] if strategy in {None, cell["strategy"]}]


@pytest.mark.server
def test_every_strategy_meets_every_fault(real_run: dict[str, Any]) -> None:
    """A short run has all cells, with events in each of them."""
    expected = [(fault.key, key) for fault in OWN_SET for key in KEYS]
    assert [(cell["fault"], cell["strategy"]) for cell in cells_of(real_run)] == expected
    assert all(cell["acknowledged"] > 0 for cell in cells_of(real_run))
    assert real_run["skipped"] == []


@pytest.mark.server
def test_aioretry_is_exact(real_run: dict[str, Any]) -> None:
    """Under every fault, aioretry counts what it acknowledged, and nothing twice."""
    for cell in [*cells_of(real_run, strategy=OURS[0]), *cells_of(real_run, strategy=OURS[1])]:
        acknowledged = cell["acknowledged"]
        assert acknowledged <= cell["counted"] <= acknowledged + cell["unknown"], cell
        assert (cell["over"], cell["false"]) == (0, 0), cell
    assert real_run["exact"] is True


@pytest.mark.server
def test_blind_retries_double_what_was_applied(real_run: dict[str, Any]) -> None:
    """Where a reply is lost, blind retries count an event twice, and no retry reports an error."""
    lost = {cell["strategy"]: cell for cell in cells_of(real_run) if cell["fault"] == "reply_lost"}
    assert lost["blindly_five_times"]["over"] + lost["blindly_once"]["over"] > 0
    assert lost["no_retry"]["over"] == 0
    assert lost["no_retry"]["counted_errors"] > 0


@pytest.mark.server
def test_command_errors_are_sent_once(real_run: dict[str, Any]) -> None:
    """An update that the server refuses is sent once by aioretry, and six times blindly."""
    for cell in cells_of(real_run):
        if cell["fault"] == "command_error":
            blindly = {"blindly_five_times": 5, "blindly_once": 1}.get(cell["strategy"], 0)
            assert cell["errors"] > 0
            assert cell["retries"] == blindly * cell["errors"], cell
            assert cell["sent"] == cell["events"] + cell["retries"], cell


@pytest.mark.server
def test_figures_of_a_run_add_up(real_run: dict[str, Any]) -> None:
    """In every cell, what was counted is what happened, less what is missing, and what is over."""
    for cell in cells_of(real_run):
        assert cell["events"] == cell["acknowledged"] + cell["errors"], cell
        assert cell["counted"] == cell["events"] - cell["under"] + cell["over"], cell


@pytest.mark.server
def test_ctrl_c_ends_it() -> None:
    """Ctrl-C in the middle of a phase ends everything at once, with exit code 130."""
    command = [sys.executable, "-m", "examples.demo", "--seconds=60", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "1 of 4: " not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1].startswith("interrupted after ")
