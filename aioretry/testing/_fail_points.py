"""Fail points: what a server itself does wrong on request."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, Self

from anyio import CancelScope, to_thread

from aioretry.testing._server import MemberState, Server

Mode = Literal["alwaysOn"] | Mapping[str, float]

_TIMEOUT: Final = 10.0


class FailPoint:
    """A fail point of one server, on inside an `async with` block.

    Made by `ReplicaSet.fail_point` and `ReplicaSet.fail_command`.

    Args:
        name: the server's name for it.
        mode: `"alwaysOn"`, `{"times": n}` or `{"skip": n}`.
        data: its options.
        find_server: finds the server at the time that it is turned on.
    """

    def __init__(
        self,
        name: str,
        mode: Mode,
        data: Mapping[str, Any],
        find_server: Callable[[], Awaitable[Server]],
    ) -> None:
        self._command = {"configureFailPoint": name, "mode": mode, "data": dict(data)}
        self._find_server = find_server
        self._server: Server | None = None
        self._pid = 0

    async def on(self) -> None:
        """Turn it on.

        Raises:
            NoPrimaryError: no member was named, and there is no primary.
            CommandFailedError: the server knows no such fail point or option.
            OSError: the server did not answer.
        """
        server = await self._find_server()
        await to_thread.run_sync(_configure, server, self._command)
        self._server, self._pid = server, server.pid

    async def off(self) -> None:
        """Turn it off; fine if it is off already, or if its process has died meanwhile.

        Raises:
            OSError: the server did not answer, because it is frozen.
        """
        server, self._server = self._server, None
        if server is None or server.pid != self._pid or server.state is MemberState.DEAD:
            return
        command = {"configureFailPoint": self._command["configureFailPoint"], "mode": "off"}
        with contextlib.suppress(ConnectionError):  # it died by itself
            await to_thread.run_sync(_configure, server, command)

    async def __aenter__(self) -> Self:
        await self.on()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with CancelScope(shield=True):
            await self.off()


def fail_command_data(
    release: tuple[int, int] | None,
    commands: tuple[str, ...],
    *,
    error_code: int | None,
    error_labels: tuple[str, ...] | None,
    close_connection: bool,
    write_concern_error: Mapping[str, Any] | None,
    block_ms: int | None,
    app_name: str | None,
) -> dict[str, Any]:
    """Write the options of the fail point `failCommand`.

    Raises:
        ValueError: there is nothing to do, or the servers are too old for an option.

    Arguments are as for `ReplicaSet.fail_command`, and the version of the servers, if it is known.
    """
    data: dict[str, Any] = {"failCommands": list(commands)}
    if error_code is not None:
        data["errorCode"] = error_code
    if close_connection:
        data["closeConnection"] = True
    if write_concern_error is not None:
        data["writeConcernError"] = dict(write_concern_error)
    newer: dict[str, Any] = {}
    if error_labels is not None:
        newer["errorLabels"] = list(error_labels)
    if block_ms is not None:
        newer |= {"blockConnection": True, "blockTimeMS": block_ms}
    if app_name is not None:
        newer["appName"] = app_name
    if newer and release is not None and release < (4, 4):
        raise ValueError(f"failCommand of servers before 4.4 has no {', '.join(newer)}")
    data |= newer
    if not commands or data.keys() <= {"failCommands", "appName"}:
        raise ValueError("failCommand needs commands to fail, and a way to fail")
    return data


def _configure(server: Server, command: Mapping[str, Any]) -> None:
    server.command(command, timeout=_TIMEOUT)
