"""PyMongo's source distribution, which has the official test files: fetched once, and kept."""

import functools
import hashlib
import os
import tarfile
import tempfile
import urllib.request
from pathlib import Path, PurePosixPath

from aioretry.testing._mongod import _cache

NAME = "pymongo-4.20.0.tar.gz"
PLACE = "packages/8b/a6/a1ae45c0469af85f2c6793961b5d14de05176ce6265a909a90a0a81aea18"
SHA256 = "f773b0aec28687587cdeda490463a82debc4566a4a3620dcc8dada9d2c0a1acd"
PATIENCE = 20.0  # seconds without a byte

_TESTS = PurePosixPath("pymongo-4.20.0/test")


class FetchError(Exception):
    """It is not here and can't be fetched."""


@functools.cache
def json_files() -> dict[PurePosixPath, str]:
    """The texts of all JSON files below its tests.

    Raises:
        FetchError: It can't be fetched, or isn't what was pinned.
    """
    with tarfile.open(fetch(_cache())) as archive:
        return {
            PurePosixPath(member.name).relative_to(_TESTS): content.read().decode()
            for member in archive
            if PurePosixPath(member.name).is_relative_to(_TESTS)
            and member.name.endswith(".json")
            and (content := archive.extractfile(member)) is not None
        }


def fetch(cache: Path, url: str | None = None, sha256: str = SHA256) -> Path:
    """Give the path of the archive, after fetching it if it isn't in a cache folder.

    Of several processes that ask at once, each fetches it; it appears complete or not at all.

    Raises:
        FetchError: It can't be fetched, or isn't what was pinned.
    """
    path = cache / f"{sha256[:8]}-{NAME}"
    if path.exists():
        return path
    url = url or f"https://{_host()}/{PLACE}/{NAME}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            content = response.read()
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            raise FetchError(f"{url} is not what was pinned: its sha256 is {found}")
        cache.mkdir(parents=True, exist_ok=True)
        number, partial = tempfile.mkstemp(dir=cache, prefix=f"{path.name}.")
        with os.fdopen(number, "wb") as file:
            file.write(content)
        Path(partial).replace(path)
    except OSError as exc:
        raise FetchError(f"{url} can't be fetched: {exc}") from exc
    return path


def _host() -> str:
    """Where the package index keeps its files, as pip knows it."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError as exc:
        raise FetchError("there is no pip that knows where the package index is") from exc
    return PyPI.file_storage_domain
