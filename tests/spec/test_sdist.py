"""PyMongo's source distribution: what is fetched, kept and refused."""

import hashlib

import pytest

from tests.spec import sdist

CONTENT = b"what was pinned"
PIN = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def served(tmp_path):
    """A file that can be fetched."""
    path = tmp_path / "served.tar.gz"
    path.write_bytes(CONTENT)
    return path


def test_is_fetched_once(served, tmp_path):
    """And read from the cache folder then."""
    cache = tmp_path / "cache"
    found = sdist.fetch(cache, served.as_uri(), PIN)
    served.unlink()
    assert found == sdist.fetch(cache, served.as_uri(), PIN)
    assert CONTENT == found.read_bytes()
    assert [found] == list(cache.iterdir())


def test_nothing_else_is_kept(served, tmp_path):
    """What isn't what was pinned is refused."""
    served.write_bytes(b"something else")
    with pytest.raises(sdist.FetchError, match="not what was pinned"):
        sdist.fetch(tmp_path / "cache", served.as_uri(), PIN)
    assert not (tmp_path / "cache").exists()


def test_what_can_not_be_fetched(served, tmp_path):
    """Whatever stands between is one error."""
    served.unlink()
    with pytest.raises(sdist.FetchError, match="can't be fetched"):
        sdist.fetch(tmp_path / "cache", served.as_uri(), PIN)
