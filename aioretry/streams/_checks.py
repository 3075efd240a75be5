"""Arguments that are refused at once, by their names."""

import math


def require_texts(**texts: object) -> None:
    """Raise a TypeError for what is no text."""
    for what, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{what} must be a str, not {text!r}")


def require_numbers(**numbers: object) -> None:
    """Raise an error for what is no whole number above 0."""
    for what, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{what} must be an int, not {number!r}")
        if number < 1:
            raise ValueError(f"{what} must be at least 1, not {number!r}")


def require_seconds(**times: object) -> None:
    """Raise an error for what is no time of a millisecond or more."""
    for what, seconds in times.items():
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"{what} must be a number of seconds, not {seconds!r}")
        if not 0.001 <= seconds < math.inf:
            raise ValueError(f"{what} must be at least 0.001 and finite, not {seconds!r}")
