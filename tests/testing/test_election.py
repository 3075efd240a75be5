"""What counts as a set that has come to rest."""

import pytest

from aioretry.testing._election import _are_settled


def reply(term: int = 1, **is_what: bool) -> dict:
    return {**is_what, "lastWrite": {"opTime": {"t": term}}}


PRIMARY = {"ismaster": True, "secondary": False}
SECONDARY = {"ismaster": False, "secondary": True}
NEITHER = {"ismaster": False, "secondary": False}


@pytest.mark.parametrize(
    ("replies", "settled"),
    [
        ([reply(**PRIMARY), reply(**SECONDARY), reply(**SECONDARY)], True),
        ([reply(**PRIMARY), reply(**SECONDARY)], False),
        ([reply(**PRIMARY), reply(**SECONDARY), reply(**NEITHER)], False),
        ([reply(2, **PRIMARY), reply(2, **SECONDARY), reply(1, **PRIMARY)], False),
        ([reply(2, **PRIMARY), reply(2, **SECONDARY), reply(1, **SECONDARY)], False),
        ([reply(**SECONDARY)] * 3, False),
    ],
    ids=["settled", "silent", "rolling back", "two primaries", "behind", "no primary"],
)
def test_settled(replies: list[dict], settled: bool) -> None:
    """All answer, one is the primary, and the others have its term's writes."""
    assert settled is _are_settled(replies, 3)
