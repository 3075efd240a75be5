import io
import re

import pytest

from aioretry.testing._progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal one line is rewritten with what has come so far."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("fetching it") as progress:
        progress.update(1_500_000)
        progress.update(1_000_000)
        text = terminal.getvalue()

    assert ["aioretry: fetching it ...", *["aioretry: fetching it ... 1.5 MB 0 s"] * 2] == (
        text.split("\r\x1b[K")
    )


def test_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere there is a line at the start and a line at the end, which says how it ended."""

    def fail() -> None:
        with Progress("fetching it") as progress:
            progress.update(1_500_000)
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    [start, end] = capsys.readouterr().err.splitlines()
    assert "aioretry: fetching it ..." == start
    assert re.fullmatch(r"aioretry: fetching it: failed 1\.5 MB \d s", end)
