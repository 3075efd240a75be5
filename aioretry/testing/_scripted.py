"""A server that says what a test tells it to: for what no real server can be brought to say."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal, TypeAlias, get_args

from aioretry.testing._listening_thread import ListeningThread
from aioretry.testing._running import Running
from aioretry.testing._scram import Login, User
from aioretry.testing._scripted_request import ScriptedRequest
from aioretry.testing._scripted_service import ScriptedService
from aioretry.testing._wire import LIMITS, is_hello

Kind: TypeAlias = Literal["primary", "mongos", "standalone"]
"""What a scripted server says it is."""

Answer: TypeAlias = Mapping[str, Any] | Callable[["ScriptedRequest"], Mapping[str, Any] | None]
"""A reply, or what makes one; None from it: it has answered by itself, or nothing is answered."""

_SET_NAME: Final = "scripted"
_SHOWN: Final = 10  # how many commands an error names

# What drivers send without being asked to, other than hello, and what they are answered.
_COURTESIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "buildinfo": {"version": "0.0.0", "versionArray": [0, 0, 0, 0]},
    "endsessions": {},
    "killcursors": {"cursorsKilled": [], "cursorsNotFound": [], "cursorsAlive": []},
    "ping": {},
}

_HELLO: Final[Mapping[str, Any]] = {
    "helloOk": True,
    "isWritablePrimary": True,
    "ismaster": True,
    **LIMITS,
    "minWireVersion": 0,
    "maxWireVersion": 17,
    "readOnly": False,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Expectation:
    """Somebody who waits for a command."""

    keys: frozenset[str]
    """The names that will do; empty for any."""

    came: Future[ScriptedRequest] = field(default_factory=Future)

    def matches(self, request: ScriptedRequest) -> bool:
        return not self.keys or _key(request.name) in self.keys


class ScriptedServer(Running):
    """A server on a loopback port that answers commands as a test says.

    Every command waits for an `expect`, in the order of arrival, unless it has a standing answer.
    By default those are hello, ping and what else drivers send by themselves. Use it in a `with` or
    `async with` block; at its end it is an error if a command has come that nobody expected. The
    connection of one that was expected and not answered is closed then.

    It runs in a thread and an event loop of its own; everything may be called from any thread.

    Args:
        kind: what it says it is: the primary of a replica set of one member, a mongos, or a server
            that is no member of a set.
        hello: what its hello reply says otherwise than by default; a value of None takes a field
            out. By default it is a 6.0 server (wire version 17) with sessions of 30 minutes and
            without `topologyVersion`, so that drivers poll. With one, a driver is told at once when
            it changes.
        tls: the server's side of TLS, with its certificate; None for connections without.
        user: name and password of the only one who may log in, with SCRAM-SHA-256 and at the
            database `admin`. Whoever has not is refused all but hello, ping and what a login takes,
            before anybody can expect it. None: nobody has to.

    Raises:
        ValueError: there is no such kind.
    """

    def __init__(
        self,
        *,
        kind: Kind = "primary",
        hello: Mapping[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
        user: tuple[str, str] | None = None,
    ) -> None:
        if kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, not {kind!r}")
        self._kind: Final = kind
        self._is_encrypted: Final = tls is not None
        self._user: Final = User(*user) if user else None
        self._thread = ListeningThread("aioretry-scripted", self._make_service, tls)
        self._lock = threading.Lock()  # guards everything below, up to the empty line
        self._hello = dict(hello or {})
        self._answers: dict[str, Answer | None] = {}
        self._traffic: list[ScriptedRequest] = []
        self._requests: list[ScriptedRequest] = []
        self._unexpected: list[ScriptedRequest] = []
        self._expectations: list[_Expectation] = []
        self._failures: list[Exception] = []
        self._closed = False

        # Hello requests that are answered when the hello changes; of the thread's event loop alone.
        self._awaiting: dict[ScriptedRequest, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return f"<ScriptedServer {self.address if self.port else 'not running'}: {self._kind}>"

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before it was started."""
        return self._thread.port

    @property
    def address(self) -> str:
        """Host and port that it listens on."""
        return self._thread.address

    @property
    def uri(self) -> str:
        """The URI for a client, with the user; it names the replica set if there is one.

        With `tls`, the client is to be told whom to trust, as by `tlsCAFile`.
        """
        name = self._whole_hello().get("setName")
        options = ([f"replicaSet={name}"] if name else []) + ["tls=true"] * self._is_encrypted
        query = f"?{'&'.join(options)}" if options else ""
        user = self._user.in_uri if self._user else ""
        return f"mongodb://{user}{self.address}/{query}"

    @property
    def hello(self) -> Mapping[str, Any]:
        """What its hello reply says otherwise than by default. It can be replaced at any time."""
        with self._lock:
            return dict(self._hello)

    @hello.setter
    def hello(self, hello: Mapping[str, Any]) -> None:
        with self._lock:
            self._hello = dict(hello)
        self._thread.run(self._tell_awaiting)

    @property
    def requests(self) -> tuple[ScriptedRequest, ...]:
        """The commands so far, in their order, without those that it has answered by default."""
        with self._lock:
            return tuple(self._requests)

    @property
    def traffic(self) -> tuple[ScriptedRequest, ...]:
        """All commands so far, in their order, with what drivers have sent by themselves."""
        with self._lock:
            return tuple(self._traffic)

    def start(self) -> None:
        """Listen, on a free port.

        Raises:
            OSError: no port was free.
            RuntimeError: it was started before.
        """
        self._thread.start()

    def close(self) -> None:
        """Close every connection and wait until its thread has ended; fine to repeat."""
        self._thread.close()
        with self._lock:
            self._closed = True
            for expectation in self._expectations:
                expectation.came.set_exception(RuntimeError(f"{self!r} was closed"))
            self._expectations.clear()

    def verify(self) -> None:
        """Raise an error if something came that the script has no place for.

        Raises:
            AssertionError: commands have come that nobody expected.
            Exception: what a function raised that was to answer.
        """
        if self._failures:
            raise self._failures[0]
        if self._unexpected:
            raise AssertionError(f"nobody expected {_listed(self._unexpected)}")

    def answer(self, name: str, answer: Answer | None) -> None:
        """Answer every command of a name, those too that are waiting for an `expect`.

        An `expect` that names it still comes first.

        Args:
            name: the command's name; `hello` for all its spellings.
            answer: the reply, or a function that makes one of a request. It is called in the
                server's thread, and may answer the request by itself and return None. What it
                raises ends the connection, and is raised again at the end of the block. None:
                commands of this name wait to be expected, even ping and the like.
        """
        key = _key(name)
        with self._lock:
            self._answers[key] = answer
            if answer is None:
                return
            waiting = [request for request in self._unexpected if _key(request.name) == key]
            self._unexpected = [one for one in self._unexpected if one not in waiting]
        for request in waiting:
            self._thread.run(partial(self._give, request, answer))

    async def expect(self, *names: str, timeout: float = 10.0) -> ScriptedRequest:  # noqa: ASYNC109
        """Wait for a command, and take it.

        If it is cancelled, the command is left for the next one.

        Args:
            names: names of commands, of which any will do; if there are none, any command that has
                no standing answer.
            timeout: how long to wait, in seconds.

        Returns:
            The first such command that nobody has taken, to be answered.

        Raises:
            TimeoutError: none came in time.
            RuntimeError: the server was closed.
        """
        expectation = _Expectation(frozenset(map(_key, names)))
        # Not to be cancelled: by what `_withdraw` does, no command is lost.
        expectation.came.set_running_or_notify_cancel()
        self._add(expectation)
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.wrap_future(expectation.came)
        except TimeoutError:
            self._withdraw(expectation)
            raise TimeoutError(self._what_came_instead(names, timeout)) from None
        except BaseException:
            self._withdraw(expectation)
            raise

    def _make_service(self) -> "ScriptedService":
        return ScriptedService(self._connected, self._thread.run)

    def _connected(self) -> Callable[[ScriptedRequest], None]:
        """Called on the thread's event loop: a client has come."""
        return partial(self._arrived, Login(self._user))

    def _arrived(self, login: Login, request: ScriptedRequest) -> None:
        """Called on the thread's event loop: a command has come."""
        key = _key(request.name)
        if (refusal := login.refusal(request.name)) is not None:
            with self._lock:
                self._traffic.append(request)
            self._give(request, refusal)
            return
        with self._lock:
            by_default = key not in self._answers
            answer = self._default_answer(key, login) if by_default else self._answers[key]
            expectation = self._expectation_of(request, only_named=answer is not None)
            self._traffic.append(request)
            if expectation is not None or answer is None or not by_default:
                self._requests.append(request)
            if expectation is not None:
                self._expectations.remove(expectation)
                expectation.came.set_result(request)
                return
            if answer is None:
                self._unexpected.append(request)
                return
        self._give(request, answer)

    def _default_answer(self, key: str, login: Login) -> Answer | None:
        if key == "hello":
            return partial(self._answer_hello, login)
        if login.has_answer(key):
            return lambda request: login.answer(request.command)
        return _COURTESIES.get(key)

    def _expectation_of(self, request: ScriptedRequest, *, only_named: bool) -> _Expectation | None:
        for expectation in self._expectations:
            if expectation.matches(request) and (expectation.keys or not only_named):
                return expectation
        return None

    def _give(self, request: ScriptedRequest, answer: Answer) -> None:
        """Give a standing answer; on the thread's event loop."""
        try:
            document = answer if isinstance(answer, Mapping) else answer(request)
            if document is not None and request.expects_reply:
                request.reply(document)
        except Exception as exc:  # noqa: BLE001 - raised at the end of the block
            with self._lock:
                self._failures.append(exc)
            if not request.is_answered:
                request.hang_up()

    def _add(self, expectation: _Expectation) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self!r} was closed")
            request = next(filter(expectation.matches, self._unexpected), None)
            if request is None:
                self._expectations.append(expectation)
            else:
                self._unexpected.remove(request)
                expectation.came.set_result(request)

    def _withdraw(self, expectation: _Expectation) -> None:
        with self._lock:
            if expectation in self._expectations:
                self._expectations.remove(expectation)
            elif expectation.came.done() and expectation.came.exception() is None:
                self._put_back(expectation.came.result())

    def _put_back(self, request: ScriptedRequest) -> None:
        """Leave a command to the next one; with the lock held."""
        other = self._expectation_of(request, only_named=False)
        if other is not None:
            self._expectations.remove(other)
            other.came.set_result(request)
            return
        self._unexpected.append(request)
        self._unexpected.sort(key=self._traffic.index)

    def _what_came_instead(self, names: Sequence[str], seconds: float) -> str:
        with self._lock:
            wanted = " or ".join(names) or "command"
            return (
                f"no {wanted} came within {seconds:g} s; waiting to be expected: "
                f"{_listed(self._unexpected)}; all that came: {_listed(self._traffic)}"
            )

    def _whole_hello(self) -> dict[str, Any]:
        with self._lock:
            overrides = self._hello
        hello = {**_HELLO, "localTime": datetime.now(UTC), **self._role(), **overrides}
        return {key: value for key, value in hello.items() if value is not None}

    def _role(self) -> dict[str, Any]:
        if self._kind == "standalone":
            return {}
        if self._kind == "mongos":
            return {"msg": "isdbgrid"}
        here = {"hosts": [self.address], "me": self.address, "primary": self.address}
        return {"setName": _SET_NAME, "setVersion": 1, "secondary": False, **here}

    def _answer_hello(self, login: Login, request: ScriptedRequest) -> Mapping[str, Any] | None:
        hello = {**login.greet(request.command), **self._whole_hello()}
        version = hello.get("topologyVersion")
        milliseconds = request.command.get("maxAwaitTimeMS")
        if version is None or version != request.command.get("topologyVersion"):
            return hello
        if not isinstance(milliseconds, int) or not request.expects_reply:
            return hello
        self._awaiting[request] = asyncio.get_running_loop().call_later(
            milliseconds / 1000, self._tell, request
        )
        return None

    def _tell_awaiting(self) -> None:
        for request in tuple(self._awaiting):
            self._tell(request)

    def _tell(self, request: ScriptedRequest) -> None:
        self._awaiting.pop(request).cancel()
        self._give(request, lambda _: self._whole_hello())


def _key(name: str) -> str:
    """What spellings of a command have in common."""
    return "hello" if is_hello(name) else name.lower()


def _listed(requests: Sequence[ScriptedRequest]) -> str:
    shown = ", ".join(map(str, requests[-_SHOWN:])) or "nothing"
    return f"..., {shown}" if len(requests) > _SHOWN else shown
