"""A short load run, with a killed primary in the middle."""

from pathlib import Path

import pytest
from rich.console import Console

from tests.lengths import FULL, in_full
from tests.load.report import print_report
from tests.load.run import ASYNCIO, ASYNCIO_OUTBOX, MOTOR, OURS, OUTBOX, Options, Side, run

OTHERS = [ASYNCIO, OUTBOX, ASYNCIO_OUTBOX, MOTOR] if FULL else [OUTBOX, MOTOR]
SIDES = [OURS, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)]


@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.name)
@pytest.mark.long
@pytest.mark.server
async def test_each_order_once(side: Side, tmp_path, capsys, server_version):
    """The shop takes each order once and breaks no rule; on Motor it may, and the run shows it."""
    options = Options(
        tmp_path,
        seconds=in_full(10.0, otherwise=5.0),
        connections=20,
        freezes=False,
        grace=30.0,
        server=server_version,
    )
    faults: list[str] = []
    result = await run(side, options, faults.append)
    is_told = side.relay is not None
    assert (4 if is_told else 2) == len(faults), faults
    assert result.books.accepted > options.connections
    assert 0 == result.books.undecided
    assert result.books.is_true
    print_report(Console(), options, [result])
    printed = capsys.readouterr().out
    assert str(result.books.accepted) in printed
    if result.handed is not None:
        assert result.handed.deliveries >= result.books.stored
    assert is_told == (result.handed is not None)
    if side is not MOTOR:
        assert result.kept_the_rules, printed + "".join(map(_tail, tmp_path.glob("*.log")))
        assert "each order once" in printed


def _tail(log: Path) -> str:
    """The end of what a service has logged, for whoever looks for the reason of a 500."""
    return f"\n{log.name}: ...{log.read_text()[-10_000:]}"
