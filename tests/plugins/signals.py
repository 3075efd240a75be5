"""Processes that tests start take signals as they do by default.

A shell's background job ignores some of them, and so would whatever it starts.
"""

import signal

DEFAULTS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
}


def pytest_configure() -> None:
    """Ignore nothing."""
    for number, handler in DEFAULTS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
