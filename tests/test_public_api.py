"""What is public stays as it is, unless somebody means to change it."""

import inspect

import pytest

from aioretry import RetryClient
from aioretry.pymongo import AsyncRetryClient
from tests.public_api import FROZEN, MODULES, public_api


def test_is_as_it_was():
    """`python -m tests.public_api` writes it anew; a change needs its line in CHANGELOG.md."""
    assert "aioretry.testing" in MODULES
    assert FROZEN.read_text().splitlines() == public_api().splitlines()


@pytest.mark.parametrize("client", [RetryClient, AsyncRetryClient])
def test_help_has_our_arguments(client):
    """It does not go on with the driver's text about a constructor that has others."""
    assert "hooks:" in client.__doc__
    assert "above" in inspect.getdoc(client.__init__)
