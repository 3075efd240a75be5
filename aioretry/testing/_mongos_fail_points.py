"""The fail point `failCommand` of a fake mongos, without any input or output.

It does what a real mongos does (`CommandHelpers::evaluateFailCommandFailPoint` and `strategy.cpp`
in the server's source); the router carries it out. What it does not know it refuses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aioretry.testing._actions import is_retryable, labels_for
from aioretry.testing._fault import Request
from aioretry.testing._wire import command_name, command_of, header_of

CONFIGURE: Final = "configureFailPoint"

_NAME: Final = "failCommand"
_TEXT: Final = "Failing command via 'failCommand' failpoint"
# The server's numbers of its errors.
_BAD_VALUE: Final = 2
_UNAUTHORIZED: Final = 13
_TYPE_MISMATCH: Final = 14
_ILLEGAL_OPERATION: Final = 20
_MAX_TIME_EXPIRED: Final = 50
_INVALID_OPTIONS: Final = 72
_FAIL_POINT_SET_FAILED: Final = 266
# What ends a transaction that can be run again, its commit included, whatever else the error is:
# LockTimeout, WriteConflict, SnapshotTooOld, SnapshotUnavailable, NoSuchTransaction and
# PreparedTransactionInProgress.
_TRANSIENT: Final = frozenset({24, 112, 239, 246, 251, 267})
# The wire versions of 4.4: a mongos before it knows no labels for writes, one from 5.0 on leaves
# them to its shards.
_LABELS_WRITES: Final = range(9, 13)


@dataclass(frozen=True, slots=True)
class Failing:
    """What becomes of a command before it is run.

    Attributes:
        seconds: how long it is held up first.
        hangs_up: whether the client's connection is closed then.
        error: what is answered instead of its run; None if it is run.
    """

    seconds: float
    hangs_up: bool
    error: Mapping[str, Any] | None


class MongosFailPoint:
    """The fail point `failCommand` of one fake mongos; off at first. Used on its event loop."""

    def __init__(self) -> None:
        self._data = _Data()
        self._is_on = False
        self._skip = 0  # how many commands still pass
        self._times: int | None = None  # how many still fail; None for all
        self._count = 0  # how many have failed, however often it was configured

    @property
    def is_on(self) -> bool:
        """Whether commands may fail."""
        return self._is_on

    def configure(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Turn it on or off.

        Args:
            command: a `configureFailPoint`.

        Returns:
            The answer: how often it has struck so far, or an error.
        """
        try:
            mode, number = _mode_of(command)
            data = _Data() if mode == "off" else _data_of(command.get("data"))
        except _RefusedError as exc:
            return _error(exc.code, exc.text)
        self._data = data
        self._is_on = mode != "off"
        self._skip = number if mode == "skip" else 0
        self._times = number if mode == "times" else None
        return {"count": self._count, "ok": 1.0}

    def before_run(self, message: bytes, app_name: str | None, wire_version: int) -> Failing | None:
        """Say what becomes of a command before it is run, and count it.

        Args:
            message: the request.
            app_name: the application name that the client gave when it connected.
            wire_version: that of the servers.

        Returns:
            What becomes of it; None if that is nothing.
        """
        request = self._find(message, app_name)
        if request is None or not self._data.acts_before or not self._strike():
            return None
        return self._data.failing(request, wire_version)

    def after_run(self, message: bytes, app_name: str | None) -> dict[str, Any]:
        """Give what is put into the answer to a command that was run, and count it.

        Args:
            message: the request.
            app_name: the application name that the client gave when it connected.

        Returns:
            Fields of the answer; none if it stays as it is.
        """
        error = self._data.write_concern_error
        if error is None or self._find(message, app_name) is None or not self._strike():
            return {}
        labels = self._data.labels
        return {"writeConcernError": error, **({"errorLabels": list(labels)} if labels else {})}

    def _find(self, message: bytes, app_name: str | None) -> Request | None:
        """Read a request if it is one of those that are to fail."""
        if not self._is_on:
            return None
        name = command_name(header_of(message), message)
        if name is None or name.lower() not in self._data.commands:
            return None
        request = Request(name, command_of(message), app_name)
        return request if self._data.matches(request) else None

    def _strike(self) -> bool:
        if self._skip:
            self._skip -= 1
            return False
        self._count += 1
        if self._times is not None:
            self._times -= 1
            self._is_on = self._times > 0  # {times: 0} strikes once, at a server too
        return True


@dataclass(frozen=True, slots=True)
class _Data:
    """The options of the fail point."""

    commands: frozenset[str] = frozenset()  # in lower case; `hello` is not `isMaster` here
    app_name: str | None = None
    namespace: str | None = None
    block_ms: float | None = None
    closes: bool = False
    code: int | None = None
    labels: tuple[str, ...] | None = None  # None: those that a mongos would give
    write_concern_error: Mapping[str, Any] | None = None

    @property
    def acts_before(self) -> bool:
        """Whether it does anything before a command is run."""
        return self.closes or self.block_ms is not None or self.code is not None

    def matches(self, request: Request) -> bool:
        """Say whether it is for a command of one of its names."""
        return (self.namespace is None or self.namespace == request.namespace) and (
            self.app_name is None or self.app_name == request.app_name
        )

    def failing(self, request: Request, wire_version: int) -> Failing:
        """Say what becomes of a command that it strikes."""
        block_ms = self.block_ms or 0.0
        limit = _time_limit_of(request)
        if 0 < limit < block_ms:  # a mongos, too, counts the wait
            error = _error(_MAX_TIME_EXPIRED, "operation exceeded time limit", self.labels or ())
            return Failing(limit / 1000, False, error)
        if self.closes or not self.code:
            return Failing(block_ms / 1000, self.closes, None)
        labels = self.labels
        if labels is None:
            labels = _labels_of(request, self.code, wire_version)
        return Failing(block_ms / 1000, False, _error(self.code, _TEXT, labels))


class _RefusedError(Exception):
    """What a fail point is configured with is refused."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def _mode_of(command: Mapping[str, Any]) -> tuple[str, int]:
    """Read when it is to strike: the kind of mode, and its number."""
    if command.get("$db") != "admin":
        raise _RefusedError(
            _UNAUTHORIZED, f"{CONFIGURE} may only be run against the admin database."
        )
    if command[CONFIGURE] != _NAME:
        text = f"{command[CONFIGURE]} not found: a fake mongos has the fail point {_NAME} alone"
        raise _RefusedError(_FAIL_POINT_SET_FAILED, text)
    if "mode" not in command:
        raise _RefusedError(
            _ILLEGAL_OPERATION, "When setting a failpoint, you must supply a 'mode'"
        )
    match command["mode"]:
        case "off" | "alwaysOn" as mode:
            return mode, 0
        case {"times": n, **rest} | {"skip": n, **rest} as mode if not rest and _is_natural(n):
            return next(iter(mode)), int(n)
    accepted = "'off', 'alwaysOn', {times: n} or {skip: n}"
    raise _RefusedError(_BAD_VALUE, f"the 'mode' of a fake mongos must be {accepted}")


def _data_of(data: object) -> _Data:
    """Read what it is to do, and to which commands."""
    if not isinstance(data, Mapping) or "failCommands" not in data:
        raise _RefusedError(_BAD_VALUE, f"{_NAME} needs 'data' with 'failCommands'")
    for key, value in data.items():
        if key not in _OPTIONS:
            raise _RefusedError(_BAD_VALUE, f"{_NAME} of a fake mongos has no option {key!r}")
        is_right, accepted = _OPTIONS[key]
        if not is_right(value):
            raise _RefusedError(_TYPE_MISMATCH, f"{key!r} must be {accepted}")
    if data.get("blockConnection") and "blockTimeMS" not in data:
        text = "must specify 'blockTimeMS' when 'blockConnection' is true"
        raise _RefusedError(_INVALID_OPTIONS, text)
    return _Data(
        commands=frozenset(name.lower() for name in data["failCommands"]),
        app_name=data.get("appName"),
        namespace=data.get("namespace"),
        block_ms=data["blockTimeMS"] if data.get("blockConnection") else None,
        closes=data.get("closeConnection", False),
        code=int(data["errorCode"]) if "errorCode" in data else None,
        labels=tuple(data["errorLabels"]) if "errorLabels" in data else None,
        write_concern_error=data.get("writeConcernError"),
    )


def _is_whole(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _is_natural(value: Any) -> bool:
    return _is_whole(value) and value >= 0


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_document(value: object) -> bool:
    return isinstance(value, Mapping)


_OPTIONS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "failCommands": (_is_texts, "a list of texts"),
    "appName": (_is_text, "a text"),
    "namespace": (_is_text, "a text"),
    "blockConnection": (_is_bool, "a bool"),
    "blockTimeMS": (_is_natural, "a whole number from 0 on"),
    "closeConnection": (_is_bool, "a bool"),
    "errorCode": (_is_whole, "a whole number"),
    "errorLabels": (_is_texts, "a list of texts"),
    "writeConcernError": (_is_document, "a document"),
}


def _time_limit_of(request: Request) -> float:
    """How long a command may take, in milliseconds; 0 for any time."""
    limit: Any = request.body.get("maxTimeMS")
    # That of a getMore is how long to wait for news.
    return float(limit) if _is_natural(limit) and request.command != "getMore" else 0.0


def _labels_of(request: Request, code: int, wire_version: int) -> tuple[str, ...]:
    """Give the labels of an error that a mongos itself meets."""
    if "autocommit" in request.body and code in _TRANSIENT:
        return ("TransientTransactionError",)
    labels = labels_for(request.body) if is_retryable({"code": code}) else ()
    is_for_write = "RetryableWriteError" in labels
    return () if is_for_write and wire_version not in _LABELS_WRITES else labels


def _error(code: int, text: str, labels: tuple[str, ...] = ()) -> dict[str, Any]:
    found = {"errorLabels": list(labels)} if labels else {}
    return {"ok": 0.0, "errmsg": text, "code": code, **found}
