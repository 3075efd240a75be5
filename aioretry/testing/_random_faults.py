"""A random fault for each test of an ordinary suite: `pytest --aioretry-faults=SEED`."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, Final

import pytest

from aioretry.testing._fault import Fault
from aioretry.testing._faults import Faults, Only

OPTION: Final = "--aioretry-faults"

_PROPERTY: Final = "aioretry-fault"  # of a test's report; xdist and JUnit's XML keep it
_WRITES: Final = ("insert", "update", "delete", "findAndModify", "commitTransaction")
_STATE_CHANGES: Final = {
    91: "ShutdownInProgress",
    189: "PrimarySteppedDown",
    10107: "NotWritablePrimary",
    11602: "InterruptedDueToReplStateChange",
}
_PAUSE: Final = 0.5
_MOST_NTH: Final = 4


class _Nth:
    """The nth of the commands that a fault is for, and which one that was."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.struck = ""

    def __call__(self, command: Mapping[str, Any]) -> bool:
        self.left -= 1
        if self.left == 0:
            name, target = next(iter(command.items()))
            where = f" on {command.get('$db')}.{target}" if isinstance(target, str) else ""
            self.struck = f"{name}{where}"
        return self.left == 0


@contextmanager
def one_fault(item: pytest.Item, faults: Faults, seed: int) -> Iterator[None]:
    """Arm one fault for a block, and note in the test's report what it was and whether it struck.

    Args:
        item: the test, whose name chooses the fault together with the seed.
        faults: those of the deployment that it uses.
        seed: the seed.
    """
    random = Random(f"{seed} {item.nodeid}")
    # A test sends few commands: the first one is met half of the time.
    nth = _Nth(next((nth for nth in range(1, _MOST_NTH) if random.random() < 0.5), _MOST_NTH))
    what, arm = random.choice(_ways(random, faults, Only(where=nth, must_fire=False)))
    try:
        with arm():
            yield
    finally:
        text = f"{nth.struck}: {what}" if nth.struck else ""
        item.user_properties.append((_PROPERTY, text))
        item.add_report_section("call", "aioretry fault", text or "its fault did not strike")


def tell(terminal: pytest.TerminalReporter, seed: int) -> None:
    """Tell how many tests met their fault, which of them failed, and how to replay those."""
    passed, failed = ([*_faults_of(terminal, outcome)] for outcome in ("passed", "failed"))
    met = [(nodeid, what) for nodeid, what in [*passed, *failed] if what]
    terminal.section(f"aioretry: a random fault for each test, seed {seed}")
    if not passed and not failed:
        terminal.line("no test was broken: none used mongo_replica_set without faults of its own")
        return
    broken = [(nodeid, what) for nodeid, what in failed if what]
    tests = len(passed) + len(failed)
    terminal.line(f"{len(met)} of {tests} tests met their fault; {len(broken)} of them failed")
    for nodeid, what in broken:
        terminal.line(f"{nodeid}: {what}", red=True)
        terminal.line(f"    pytest {OPTION}={seed} {shlex.quote(nodeid)}")


def _ways(random: Random, faults: Faults, only: Only) -> list[tuple[str, Callable[[], Fault]]]:
    """Give what may happen, none of which a service may be broken by."""
    code, name = random.choice([*_STATE_CHANGES.items()])
    is_applied = random.random() < 0.5
    lost, failed = "the answer was lost", f"was answered with error {code}, {name}"
    return [
        (lost, lambda: faults.drop_reply(*_WRITES, **only)),
        (lost, lambda: faults.drop_reply(*_WRITES, **only)),
        (lost, lambda: faults.drop_reply(**only)),
        ("never arrived", lambda: faults.drop_request(**only)),
        (failed, lambda: faults.error(code, *_WRITES, **only)),
        (failed, lambda: faults.error(code, **only)),
        (
            f"was done, and answered with write concern error {code}, {name}",
            lambda: faults.write_concern_error(code, *_WRITES, **only),
        ),
        (
            f"{'the answer' if is_applied else 'it'} came {_PAUSE:g} seconds late",
            lambda: faults.delay(_PAUSE, applied=is_applied, **only),
        ),
    ]


def _faults_of(terminal: pytest.TerminalReporter, outcome: str) -> Iterator[tuple[str, str]]:
    for report in terminal.getreports(outcome):
        if isinstance(report, pytest.TestReport) and report.when == "call":
            for name, what in report.user_properties:
                if name == _PROPERTY:
                    yield report.nodeid, str(what)
