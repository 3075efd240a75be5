"""The pytest plugin: a real replica set, faults, a ledger and clients as fixtures.

It is active wherever aioretry is installed (entry point `pytest11`), and starts nothing until a
test asks for it.
"""

import inspect
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import anyio
import pytest

from aioretry.testing._admin import run_command, split_address
from aioretry.testing._black_pipe import BlackPipe
from aioretry.testing._fault import FaultNotFiredError
from aioretry.testing._faults import Faults
from aioretry.testing._ledger import Ledger
from aioretry.testing._mongod import MongodNotFoundError
from aioretry.testing._random_faults import OPTION, one_fault, tell
from aioretry.testing._replica_set import ReplicaSet

pytest_plugins: list[str] = ["aioretry.testing._client_fixtures"]

URI_VARIABLE: Final = "AIORETRY_TEST_URI"

_NAME: Final = "mongo_replica_set"  # of the fixture and of the marker
_PASSED: Final = pytest.StashKey[bool]()
_MARKER_HELP: Final = (
    f"{_NAME}(members=1, version=None, processes=False): what the fixture of this name is to be "
    "for the test: how many members, which version of the server (as '5.0'; the test runs on each "
    "of a list), and whether the test kills, freezes or restarts servers"
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a test asks for.

    Attributes:
        members: how many members.
        version: the server's version; None for any.
        processes: whether it is about to break server processes.
    """

    members: int = 1
    version: str | None = None
    processes: bool = False

    def __str__(self) -> str:
        return f"{self.version or 'mongo'}x{self.members}"


class Deployments:
    """The deployments of one test session, each started when it is first wanted."""

    def __init__(self, uri: str | None) -> None:
        self._uri = uri
        self._stack = ExitStack()
        self._running: dict[tuple[int, str | None], ReplicaSet] = {}
        self._pipe: BlackPipe | None = None

    def give(self, wanted: Wanted) -> ReplicaSet | BlackPipe:
        """Give what is wanted, or skip the test."""
        return self._existing(wanted) if self._uri else self._started(wanted)

    def close(self) -> None:
        """End all."""
        self._stack.close()

    def _started(self, wanted: Wanted) -> ReplicaSet:
        key = (wanted.members, wanted.version)
        if key not in self._running:
            servers = ReplicaSet(wanted.members, wanted.version, faults=True)
            try:
                servers.start()
            except MongodNotFoundError as exc:
                pytest.fail(str(exc), pytrace=False)
            self._stack.callback(servers.close)
            self._running[key] = servers
        return self._running[key]

    def _existing(self, wanted: Wanted) -> BlackPipe:
        if self._pipe is None:
            pipe = BlackPipe(self._uri or "")
            pipe.start()
            self._stack.callback(pipe.close)
            self._pipe = pipe
        lacking = _lacking(self._pipe, wanted)
        if lacking:
            pytest.skip(f"the deployment in {URI_VARIABLE} {lacking}")
        return self._pipe


def pytest_addoption(parser: pytest.Parser) -> None:
    """Make the option known."""
    parser.getgroup("aioretry").addoption(
        OPTION,
        type=int,
        metavar="SEED",
        help=f"break one command of each test that uses {_NAME} and has no faults of its own, "
        "chosen by this number and the test's name; tests that fail are listed at the end",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what random faults have broken."""
    seed = terminalreporter.config.getoption(OPTION)
    if seed is not None:
        tell(terminalreporter, seed)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and clients on the loops of pytest-asyncio, where it is active."""
    config.addinivalue_line("markers", _MARKER_HELP)
    if hasattr(config.option, "asyncio_mode"):
        config.pluginmanager.import_plugin("aioretry.testing._asyncio_fixtures")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with what its marker asks for; more than once if it names several versions."""
    markers = [*metafunc.definition.iter_markers(_NAME)]
    if not markers or _NAME not in metafunc.fixturenames:
        return
    arguments: dict[str, Any] = {}
    try:
        for marker in reversed(markers):  # the nearest one has the last word
            arguments |= _SIGNATURE.bind(*marker.args, **marker.kwargs).arguments
    except TypeError as exc:
        where = metafunc.definition.nodeid
        raise pytest.Collector.CollectError(f"{where}: the marker {_NAME}: {exc}") from exc
    metafunc.parametrize(_NAME, _wanted(**arguments), indirect=True, ids=str, scope="session")


@pytest.fixture(scope="session")
def _mongo_deployments() -> Iterator[Deployments]:
    deployments = Deployments(os.environ.get(URI_VARIABLE))
    try:
        yield deployments
    finally:
        deployments.close()


@pytest.fixture(scope="session")
def mongo_replica_set(
    request: pytest.FixtureRequest, _mongo_deployments: Deployments
) -> ReplicaSet | BlackPipe:
    """A running replica set of real servers with proxies before them; for the whole session.

    It has one member, or as many as a marker of the same name asks for. Where the environment
    variable `AIORETRY_TEST_URI` names a deployment, that one is used, behind a `BlackPipe`; then
    there are no processes to kill. Servers that a test leaves dead or frozen are brought back
    after it.
    """
    return _mongo_deployments.give(getattr(request, "param", None) or Wanted())


@pytest.fixture
def faults(
    request: pytest.FixtureRequest, mongo_replica_set: ReplicaSet | BlackPipe
) -> Iterator[Faults]:
    """What the proxies before `mongo_replica_set` can do wrong, for one test.

    A fault that never struck fails the test, unless it was declared with `must_fire=False`. All
    are disarmed after the test.
    """
    faults = mongo_replica_set.faults
    try:
        yield faults
        if request.node.stash.get(_PASSED, False):  # it was asked for at run time
            _verify(faults)
    finally:
        faults.clear()


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """A ledger for one test; a test that records writes in it and never checks them fails."""
    ledger = Ledger()
    yield ledger
    if request.node.stash.get(_PASSED, False):  # it was asked for at run time
        _verify(ledger)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that passed, and has faults that never struck or writes never checked."""
    with _random_fault(item):
        result = yield
    for value in getattr(item, "funcargs", {}).values():
        _verify(value)
    item.stash[_PASSED] = True
    return result


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, Any, Any]:
    """Bring servers back that a test has left dead or frozen, by whatever means."""
    try:
        return (yield)
    finally:
        servers = getattr(item, "funcargs", {}).get(_NAME)
        if nextitem is not None and isinstance(servers, ReplicaSet):  # else all has ended
            anyio.run(servers.heal)  # at once where nothing is broken


def _random_fault(item: pytest.Item) -> AbstractContextManager[None]:
    seed = item.config.getoption(OPTION)
    arguments = getattr(item, "funcargs", {})
    servers = arguments.get(_NAME)
    if seed is None or servers is None or "faults" in arguments:
        return nullcontext()
    wanted = getattr(getattr(item, "callspec", None), "params", {}).get(_NAME)
    if isinstance(wanted, Wanted) and wanted.processes:
        return nullcontext()
    return one_fault(item, servers.faults, seed)


def _verify(fixture: object) -> None:
    """Fail the test if a fixture of it was left with something to do."""
    if isinstance(fixture, Faults):
        try:
            fixture.verify()
        except FaultNotFiredError as exc:
            pytest.fail(str(exc), pytrace=False)
    elif isinstance(fixture, Ledger) and fixture.unchecked:
        pytest.fail(
            f"{fixture!r}: writes were recorded and never checked; call one of its check methods",
            pytrace=False,
        )


def _wanted(
    members: int = 1, version: str | Sequence[str] | None = None, *, processes: bool = False
) -> list[Wanted]:
    versions = [version] if version is None or isinstance(version, str) else list(version)
    return [Wanted(members, one, processes) for one in versions]


_SIGNATURE: Final = inspect.signature(_wanted)


def _lacking(pipe: BlackPipe, wanted: Wanted) -> str | None:
    """What an existing deployment lacks of what a test wants."""
    if wanted.processes:
        return "has no processes that a test may break"
    if len(pipe.members) < wanted.members:
        return f"has {len(pipe.members)} members, not {wanted.members}"
    if wanted.version is not None and not _version_of(pipe).startswith(f"{wanted.version}."):
        return f"is no {wanted.version}"
    return None


def _version_of(pipe: BlackPipe) -> str:
    server = split_address(pipe.members[0].address)  # whose proxy speaks TLS where it has to
    return str(run_command(*server, {"buildInfo": 1}, timeout=10.0)["version"])
