"""The five ways to write, each with a client of its own."""

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pymongo import AsyncMongoClient, monitoring
from pymongo.errors import PyMongoError

from aioretry import RetryScheduled, deadline
from aioretry.pymongo import AsyncRetryClient
from examples.demo.plan import Plan

DATABASE = "aioretry_demo"
MAJORITY: dict[str, Any] = {"w": "majority", "journal": True}

Send = Callable[[], Awaitable[object]]
Client = Any


class SentCommands(monitoring.CommandListener):
    """Counts the update commands that left a client, by collection; called from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the counter
        self._counter: Counter[str] = Counter()

    def __getitem__(self, collection: str) -> int:
        with self._lock:
            return self._counter[collection]

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Called by the driver: a command is about to be sent."""
        if event.command_name == "update":
            with self._lock:
                self._counter[event.command["update"]] += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Called by the driver: a command was answered."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Called by the driver: a command failed."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to write."""

    key: str
    """Its name in names of collections and in JSON."""

    title: str
    """Its name for people."""

    blind_retries: int = 0
    """How often whatever failed is simply done again."""

    is_ours: bool = False
    """Whether it is aioretry that writes, and not a plain driver."""

    deadline: float | None = None
    """The deadline of each write, in seconds."""

    async def write(self, send: Send, note_retry: Callable[[], None]) -> None:
        """Write one event.

        Args:
            send: Calls the client once.
            note_retry: Called before it is called again.

        Raises:
            PyMongoError: What the strategy lets through.
        """
        async with deadline(self.deadline):
            for _ in range(self.blind_retries):
                try:
                    await send()
                except PyMongoError:
                    note_retry()
                else:
                    return
            await send()

    def open_client(
        self,
        uri: str,
        plan: Plan,
        sent: SentCommands,
        note_retry: Callable[[RetryScheduled], None],
    ) -> Client:
        """Return a client that writes this way.

        Args:
            uri: Of the set.
            plan: The figures of the run.
            sent: Counts its commands.
            note_retry: Told of every retry of aioretry's own.
        """
        # A selection ends at the nearer of the two: the deadline is to be what counts where there
        # is one.
        selection = plan.server_selection_timeout if self.deadline is None else self.deadline
        options: dict[str, Any] = {
            "serverSelectionTimeoutMS": int(selection * 1000),
            "event_listeners": [sent],
            "maxPoolSize": 100 + plan.writers,
            "appName": f"aioretry demo: {self.title}",
            **MAJORITY,
        }
        ours, plain = _classes(plan)
        if self.is_ours:
            return ours(uri, hooks=[note_retry], retryWrites=True, **options)
        return plain(uri, retryWrites=False, **options)


def _classes(plan: Plan) -> tuple[Any, Any]:
    if plan.client == "asyncio":
        return AsyncRetryClient, AsyncMongoClient
    from motor.motor_asyncio import AsyncIOMotorClient  # noqa: PLC0415  # it may not be installed

    from aioretry import RetryClient  # noqa: PLC0415

    return RetryClient, AsyncIOMotorClient


def strategies(plan: Plan) -> Sequence[Strategy]:
    """Return the ways to write, in the order of the table."""
    return (
        Strategy("no_retry", "no retry"),
        Strategy("blindly_five_times", "retry blindly five times", blind_retries=5),
        Strategy("blindly_once", "retry blindly once", blind_retries=1),
        Strategy("aioretry", "aioretry without a deadline", is_ours=True),
        Strategy(
            "aioretry_deadline",
            f"aioretry, deadline {plan.deadline:.0f} s",
            is_ours=True,
            deadline=plan.deadline,
        ),
    )
