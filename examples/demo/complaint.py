"""What is told on the command line of a run that can't be made."""

import sys


def complain(what: str, advice: str = "") -> int:
    """Say in one line what is wrong and what to do.

    Args:
        what: What is wrong.
        advice: What to do; empty if what is wrong says it.

    Returns:
        The exit code.
    """
    text = f"{what}; {advice}" if advice else what
    sys.stderr.write(" ".join(text.split()) + "\n")
    return 2
