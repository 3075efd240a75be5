"""At the end of a run: its slowest tests, and the time by folder, fixtures counted in."""

from collections import Counter

import pytest

SLOWEST = 20


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell where the time went."""
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                tests[report.nodeid] += report.duration
    if not tests:
        return
    folders: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for test, seconds in tests.items():
        folder = test.partition("::")[0].rpartition("/")[0]
        folders[folder] += seconds
        numbers[folder] += 1
    terminalreporter.section(f"slowest {SLOWEST} tests")
    for test, seconds in tests.most_common(SLOWEST):
        terminalreporter.line(f"{seconds:7.1f} s  {test}")
    terminalreporter.section("time by folder")
    for folder, seconds in folders.most_common():
        terminalreporter.line(f"{seconds:7.1f} s  {numbers[folder]:5} tests  {folder}")
