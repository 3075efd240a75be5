"""What is public stays as it is, unless somebody means to change it."""

from tests.public_api import FROZEN, MODULES, public_api


def test_is_as_it_was():
    """`python -m tests.public_api` writes it anew; a change needs its line in CHANGELOG.md."""
    assert "aioretry.testing" in MODULES
    assert FROZEN.read_text().splitlines() == public_api().splitlines()
