"""What a process knows of itself: its memory, threads, files and CPU time."""

import contextlib
import math
import resource
import threading
from pathlib import Path

_STATUS = Path("/proc/self/status")
_PEAK = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident_kib() -> float:
    """The memory that this process holds (RSS, as Linux tells it); NaN elsewhere."""
    return _status("VmRSS:")


def peak_kib() -> float:
    """The most that it has held since `reset_peak` (Linux); NaN elsewhere."""
    return _status("VmHWM:")


def reset_peak() -> None:
    """Forget how much memory this process has held before (Linux)."""
    with contextlib.suppress(OSError):
        _PEAK.write_text(_RESET_PEAK)


def thread_count() -> int:
    """How many threads this process has, those that Python does not know included."""
    counted = _status("Threads:")
    return threading.active_count() if math.isnan(counted) else int(counted)


def open_files() -> float:
    """How many files and sockets this process has open; NaN where nothing tells."""
    for folder in (Path("/proc/self/fd"), Path("/dev/fd")):
        with contextlib.suppress(OSError):
            return float(len(list(folder.iterdir())))
    return math.nan


def cpu_seconds() -> float:
    """User and system time of this process, all of its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _status(name: str) -> float:
    with contextlib.suppress(FileNotFoundError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(name):
                return float(line.split()[1])
    return math.nan
