"""One run of one client, from the first server to the verdict."""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from aioretry.idempotent import Keys
from aioretry.testing import ReplicaSet
from tests.chaos.book import Book, Figures
from tests.chaos.calls import Habits
from tests.chaos.clients import Side
from tests.chaos.faults import Saboteur, Say
from tests.chaos.judge import Verdict, judge, too_hot, unexplained
from tests.chaos.load import Load, Writers
from tests.chaos.schedule import schedule
from tests.chaos.sessions import PARAMETERS, Sessions, sessions_at
from tests.chaos.timeline import Timeline
from tests.chaos.truth import COLLECTION, DATABASE, prepare, read
from tests.clients import close

_PATIENCE = 120.0  # seconds for what has to end by itself, on a very slow machine
_PAUSE = 0.1
_UNLIMITED = 0.25  # of the calls
_OURS = ("aioretry-", "pymongo")  # names of threads


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is like."""

    seed: int
    seconds: float
    members: int = 3
    version: str | None = None
    timeout: float = 5.0
    writers: int = 40
    isolates: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to."""

    name: str
    timeline: Timeline
    figures: Figures
    verdicts: Sequence[Verdict]
    findings: Sequence[str]
    """What must not be, besides what the verdicts say: wrong results, hangs, leaks."""

    @property
    def is_true(self) -> bool:
        """Whether nothing was lost, doubled or told wrongly, and nothing hung or was left."""
        return not self.findings and all(verdict.is_true for verdict in self.verdicts)


async def run(side: Side, options: Options, say: Say = lambda _: None) -> Result:
    """Write to a replica set of the run's own while it is being broken, and judge.

    Args:
        side: The client.
        options: What the run is like.
        say: Told of what happens.
    """
    plan = schedule(options.seed, options.seconds, options.members, isolates=options.isolates)
    load = Load(
        options.seed,
        Habits(options.timeout, unlimited=_UNLIMITED),
        options.writers,
        seconds=options.seconds,
    )
    book, timeline = Book(side.outcome_of), Timeline()
    async with ReplicaSet(
        options.members,
        options.version,
        faults=True,
        member_proxies=options.isolates,
        parameters=PARAMETERS,
    ) as servers:
        await prepare(servers, load.victims)
        sessions = Sessions(servers, await sessions_at(servers), options.writers)
        threads = _threads()
        tasks = asyncio.all_tasks()
        client = side.connect(servers.uri, options.timeout)
        try:
            timeline.start()
            keys = Keys(secrets.token_bytes(), "chaos") if side.tells else None
            writers = Writers(side, client[DATABASE][COLLECTION], book, timeline, load, keys)
            saboteur = Saboteur(servers, timeline, lambda what: say(_at(timeline, what)))
            with _complaints(book.find):
                await _write_and_break(writers, saboteur.run(plan), options, timeline, book.find)
            if keys is not None:
                await keys.close()
            await servers.heal()
            if side.tells:
                await sessions.count(book, timeline.faults, is_open=True)
        finally:
            await close(client)
        if side.tells:
            await sessions.count(book, timeline.faults, is_open=False)
            await _look_for_leaks(threads, tasks, book.find)
        say(_at(timeline, "all is whole and written; reading it"))
        found = await read(servers, load.victims)
    for failed in unexplained(book.failures, timeline.faults):
        book.find(f"a call failed while nothing was broken that explains it: {failed}")
    if side.tells:
        for fault in too_hot(timeline.faults, options.writers):
            book.find(f"a command was sent too often: {fault}")
    return Result(side.name, timeline, book.figures, judge(book, found), tuple(book.findings))


async def _write_and_break(
    writers: Writers,
    sabotage: Coroutine[Any, Any, None],
    options: Options,
    timeline: Timeline,
    find: Callable[[str], None],
) -> None:
    writing = asyncio.create_task(writers.run())
    breaking = asyncio.create_task(sabotage)
    try:
        await asyncio.wait({writing, breaking}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({writing}, timeout=max(0.0, options.seconds - timeline.now))
        writers.stop()
        timeline.stop()
        await asyncio.wait({writing}, timeout=options.timeout + _PATIENCE)
        if not writing.done():
            find(f"calls hang: {len(asyncio.all_tasks())} tasks are left")
    finally:
        writing.cancel()
        breaking.cancel()
        await asyncio.wait({writing, breaking})
    for task in (breaking, writing):
        if not task.cancelled():
            task.result()


class _complaints:  # noqa: N801 - used like a function
    """A block in which what the event loop complains of is found."""

    def __init__(self, find: Callable[[str], None]) -> None:
        self._find = find

    def __enter__(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._note)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().set_exception_handler(None)

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._find(f"the event loop complains: {context}")


async def _look_for_leaks(
    threads: set[threading.Thread],
    tasks: set["asyncio.Task[Any]"],
    find: Callable[[str], None],
) -> None:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        left_threads = sorted(thread.name for thread in _threads() - threads)
        left_tasks = [str(task) for task in asyncio.all_tasks() - tasks]
        if not left_threads and not left_tasks:
            return
        await asyncio.sleep(_PAUSE)
    find(f"left behind: threads {left_threads}, tasks {left_tasks}")


def _threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith(_OURS)}


def _at(timeline: Timeline, what: str) -> str:
    return f"{timeline.now:7.1f} s  {what}"
