"""A line on standard error that shows that something long is alive."""

import sys
import time
from types import TracebackType
from typing import Final, Self

_MEGABYTE: Final = 1e6


class Progress:
    """One line on standard error, from the start to the end of something.

    On a terminal the line is rewritten with the seconds and megabytes so far; elsewhere there is
    a line at the start and a line at the end.

    Args:
        what: what is going on, as `fetching mongod 6.0`.
    """

    def __init__(self, what: str) -> None:
        self._what = f"aioretry: {what}"
        self._live = sys.stderr.isatty()
        self._start = time.monotonic()
        self._bytes = 0

    def __enter__(self) -> Self:
        sys.stderr.write(f"{self._what} ..." + ("" if self._live else "\n"))
        sys.stderr.flush()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        how = "done" if exc_type is None else "failed"
        sys.stderr.write(f"{self._rewind()}{self._what}: {how}{self._so_far()}\n")
        sys.stderr.flush()

    def update(self, size: int) -> None:
        """Show how far it is.

        Args:
            size: bytes so far; a smaller figure than before is ignored.
        """
        self._bytes = max(self._bytes, size)
        if self._live:
            sys.stderr.write(f"{self._rewind()}{self._what} ...{self._so_far()}")
            sys.stderr.flush()

    def _rewind(self) -> str:
        return "\r\x1b[K" if self._live else ""

    def _so_far(self) -> str:
        seconds = f" {time.monotonic() - self._start:.0f} s"
        return f" {self._bytes / _MEGABYTE:.1f} MB{seconds}" if self._bytes else seconds
