"""The writers: concurrent tasks that count events."""

import asyncio
from collections.abc import Sequence

from anyio import move_on_after
from pymongo.errors import PyMongoError

from aioretry import outcome_of
from examples.demo.counting import told_by
from examples.demo.state import Cell, State
from examples.demo.strategies import DATABASE, Client, Strategy

EVENTS_PER_DAY = 250  # the days of the demo are short, so that their documents stay small
_BAD_ONES = 10  # where commands are to fail, every tenth does


class Writers:
    """The writers of one strategy under one fault.

    Args:
        state: The run.
        strategy: How they write.
        client: The strategy's client.
        cell: Where they note what they were told.
        some_fail: Whether every tenth update is one that the server refuses.
    """

    def __init__(
        self, state: State, strategy: Strategy, client: Client, cell: Cell, *, some_fail: bool
    ) -> None:
        self._state = state
        self._strategy = strategy
        self._events = client[DATABASE][cell.collection]
        self._cell = cell
        self._some_fail = some_fail
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Write until stopped, and a little longer; what does not end then is cancelled."""
        plan = self._state.plan
        tasks = [
            asyncio.create_task(self._write(plan.beat * number / plan.writers))
            for number in range(plan.writers)
        ]
        try:
            await self._stop.wait()
            await asyncio.wait(tasks, timeout=plan.drain)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._cell.end_pause()
        _raise_first(tasks)

    def stop(self) -> None:
        """Begin no further event."""
        self._stop.set()

    async def _write(self, delay: float) -> None:
        await self._rest(delay)
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            next_one = loop.time() + self._state.plan.beat
            await self._count_event()
            await self._rest(next_one - loop.time())

    async def _rest(self, seconds: float) -> None:
        with move_on_after(seconds):
            await self._stop.wait()

    async def _count_event(self) -> None:
        cell = self._cell
        number = cell.begin()
        try:
            await self._strategy.write(lambda: self._send(number), self._note_retry)
        except (PyMongoError, asyncio.CancelledError) as exc:
            cell.fail(number, told_by(outcome_of(exc)), exc)
            if isinstance(exc, asyncio.CancelledError):
                raise
        else:
            cell.acknowledge(number)
            self._state.note_acknowledged(cell.strategy)

    async def _send(self, number: int) -> None:
        day = f"day {1 + number // EVENTS_PER_DAY}"
        if self._some_fail and number % _BAD_ONES == 0:
            update: dict[str, object] = {"$inc": {"counter": "one"}}  # not a number: it is refused
        else:
            update = {"$inc": {"counter": 1, f"events.{number}": 1}}
        await self._events.update_one({"_id": day}, update, upsert=True)

    def _note_retry(self) -> None:
        self._cell.retries += 1


def _raise_first(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
