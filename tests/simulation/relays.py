"""Two relays of an outbox in a simulated world of their own, and whether they do as is promised."""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest import mock

import bson
from bson.raw_bson import RawBSONDocument

from aioretry import RetryClient, RetryMotorCollection, run_transaction
from aioretry._commands import reads
from aioretry._drivers import motor, pymongo_async
from aioretry.outbox import Entry, Outbox, OutboxStatus, Relay, Undeliverable
from aioretry.pymongo import AsyncRetryClient, AsyncRetryCollection
from tests.simulation.clock import Clocks, VirtualLoop
from tests.simulation.commands import Command
from tests.simulation.driver import Network, SimulatedDriver
from tests.simulation.replica_set import ReplicaSet

LEASE_SECONDS = 1.0
MAX_ATTEMPTS = 3
AT_ONCE = 2
KEYS, OF_EACH = "abcd", 4
TROUBLES = {"a1": 1, "b0": MAX_ATTEMPTS + 1}
"""How often the receiver refuses what."""

NEVER = {"c1"}
"""What it never takes."""

PATIENCE = 100.0
"""Within how many seconds all is to be told, or given up."""

WELL = Network(opening=0.0)
GONE = replace(WELL, vanished=1.0)
SILENT = replace(WELL, silent=1.0)
LATE = replace(WELL, slow=1.0)


@dataclass(frozen=True, slots=True)
class Blow:
    """What happens to a relay at one of its commands."""

    first: Network = GONE
    """What becomes of that command."""

    then: Network = GONE
    """What becomes of those after it."""

    only: str = ""
    """Of which that is so; all if nothing is said."""

    seconds: float = 4 * LEASE_SECONDS
    """For how long."""

    kills: str = ""
    """Who dies: the process, or the primary, and when after that was sent."""

    walls: tuple[float, float] = (0.0, 0.0)
    """By how much the clients' wall clocks go ahead then, and the servers', in seconds."""


BLOWS = {
    "killed before": Blow(seconds=math.inf, kills="process"),
    "killed after": Blow(SILENT, seconds=math.inf, kills="process"),
    "cut off before": Blow(),
    "cut off after": Blow(SILENT),
    "primary dies before": Blow(WELL, WELL, kills="primary"),
    "primary dies after": Blow(WELL, WELL, kills="primary later"),
    "renewals are lost": Blow(only="findAndModify"),
    "renewals are late": Blow(LATE, LATE, only="findAndModify"),
    "asleep": Blow(only="findAndModify", walls=(100.0, 100.0)),  # and the monotonic one, too
    "clock set back": Blow(only="findAndModify", walls=(-100.0, 0.0)),
}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the receiver."""

    what: str
    entry: Entry
    began: float
    ended: float = math.inf
    result: str = ""
    """What it has ended with: nothing if it has not."""


class FirstBatch:
    """A cursor whose documents all come with the first reply, sent through the port."""

    def __init__(self, collection: Any, name: str, **body: Any) -> None:
        self._collection = collection
        self.operation = name
        self._body = {name: collection.name, **body}

    def sort(self, name: str, direction: int) -> "FirstBatch":
        """As a cursor's."""
        self._body["sort"] = {name: direction}
        return self

    def limit(self, limit: int) -> "FirstBatch":
        """As a cursor's."""
        self._body["limit"] = limit
        return self

    async def to_list(self, _: None) -> list[Any]:
        """Send it, and return the documents."""
        found = await self._collection._read(self, None)
        if self._collection.codec_options.document_class is RawBSONDocument:
            return [RawBSONDocument(bson.encode(one)) for one in found]
        return list(found)

    def command(self, target: Any, reading: Any) -> Any:
        """Return the command."""
        body = target.encode_options(**self._body)
        name = self.operation
        return reads._read(name, name, body, target, reading, _found)


def _found(reply: Any) -> Any:
    return reply["cursor"]["firstBatch"]


def _find(collection: Any, wanted: Any) -> FirstBatch:
    return FirstBatch(collection, "find", filter=wanted)


def _aggregate(collection: Any, pipeline: Any) -> FirstBatch:
    return FirstBatch(collection, "aggregate", pipeline=pipeline, cursor={})


class Prepared(Outbox):
    """An outbox whose collection has its indexes, and is asked for nothing but entries."""

    async def prepare(self) -> None:
        """Make none."""

    async def status(self) -> OutboxStatus:
        """Ask nobody."""
        return OutboxStatus(0, 0, 0.0)


class Struck(SimulatedDriver):
    """A driver that something happens to at one of its commands."""

    strikes_at = math.inf
    blow = Blow()
    struck: Any = staticmethod(lambda: None)
    sent = 0
    _until = -math.inf

    def attempt(self, loop: Any, call: Any, receiver: Any) -> bool:
        """Make an attempt; every connection is open."""
        self.sent += 1
        is_first = self.sent == self.strikes_at
        if is_first:
            self._until = self.loop.time() + self.blow.seconds
            self.struck()
        self.network = WELL
        if self.loop.time() < self._until and self.blow.only in {"", call.command.name}:
            self.network = self.blow.first if is_first else self.blow.then
        return super().attempt(loop, call, receiver)


@dataclass(slots=True)
class Process:
    """A process with a client of its own."""

    driver: Struck
    client: Any
    is_dead: bool = False
    """Whether nothing that it does has any effect."""


@dataclass
class World:
    """Servers, a shop, two relays, and a receiver."""

    blow: Blow = field(default_factory=Blow)
    at: float = math.inf
    """Which command of the first relay is struck."""

    has_coroutines: bool = False
    """Whether the face is that of PyMongo's asyncio client, and not Motor's."""

    lease_seconds: float = LEASE_SECONDS
    sent: list[tuple[int, Command]] = field(default_factory=list)
    """What was sent, and by which of the processes."""

    calls: list[Call] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    ids: dict[str, str] = field(default_factory=dict)
    """The entries' ids, by what they tell, as their transactions were told to be committed."""

    was_struck: bool = False

    def run(self) -> None:
        """Have everything told, or given up."""
        self.loop = VirtualLoop()
        self.clocks, servers = Clocks(self.loop), Clocks(self.loop)
        self.servers = servers
        face = AsyncRetryCollection if self.has_coroutines else RetryMotorCollection
        with (
            self.clocks.in_force(0),
            mock.patch.object(face, "find", _find),
            mock.patch.object(face, "aggregate", _aggregate),
        ):
            self.set = ReplicaSet(self.loop, servers, Random(1), lambda _: None)
            try:
                self.loop.run_until_complete(self._run())
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()

    async def _run(self) -> None:
        processes = [self._process(number) for number in range(3)]
        self.set.has_changed = lambda member: [one.driver.hears_of(member) for one in processes]
        self.set.has_frozen = lambda member: [one.driver.doubts(member) for one in processes]
        shop, first, _ = processes
        first.driver.blow, first.driver.strikes_at = self.blow, self.at
        first.driver.struck = lambda: self._strike(first)
        relays = [
            asyncio.create_task(self._relay(one, starts).run())
            for one, starts in zip(processes[1:], (0.0, 0.5), strict=True)
        ]
        await self._sell(shop)
        began = self.loop.time()
        while self._left() and self.loop.time() < began + PATIENCE:
            await asyncio.sleep(0.1)
        for relay in relays:
            relay.cancel()
        await asyncio.wait(relays)
        for one in processes:
            closing = one.client.close()
            if closing is not None:
                await closing
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:  # such as are aborting transactions
            await asyncio.wait(others)

    def _process(self, number: int) -> Process:
        room, driver, face = motor, "MotorDriver", RetryClient
        if self.has_coroutines:
            room, driver, face = pymongo_async, "AsyncioDriver", AsyncRetryClient
        random = Random(f"driver {number}")
        made = Struck(self.loop, self.set, (), random, WELL, number, lambda _: None, 1000)
        made.has_sent = lambda _, command: self.sent.append((number, command))
        with mock.patch.object(room, driver, made.of):
            return Process(made, face("mongodb://simulated/?w=majority"))

    def _outbox(self, process: Process) -> Outbox:
        return Prepared(process.client.db.outbox)

    def _relay(self, process: Process, starts: float) -> Relay:
        async def deliver(entry: Entry) -> None:
            if process.is_dead:
                await asyncio.Event().wait()
            await self._receive(process, entry)

        return Relay(
            self._outbox(process),
            deliver,
            at_once=AT_ONCE,
            max_attempts=MAX_ATTEMPTS,
            first_pause=0.2,
            longest_pause=0.4,
            poll_seconds=0.2,
            lease_seconds=self.lease_seconds,
        )

    async def _sell(self, shop: Process) -> None:
        outbox = self._outbox(shop)
        for number in range(OF_EACH):
            for key in KEYS:
                what = f"{key}{number}"

                async def place(session: Any, what: str = what) -> str:
                    await shop.client.db.orders.insert_one({"_id": what}, session=session)
                    return await outbox.add(session, "tell", {"what": what}, key=what[0])

                self.ids[what] = await run_transaction(shop.client, place)

    async def _receive(self, process: Process, entry: Entry) -> None:
        what = entry.payload["what"]
        call = Call(what, entry, self.loop.time())
        place = len(self.calls)
        self.calls.append(call)
        await asyncio.sleep(0.1 + 0.05 * (place % 7))
        if process.is_dead:
            return
        result = "told"
        if what in NEVER:
            result = "Undeliverable"
        elif self.refused[what] < TROUBLES.get(what, 0):
            self.refused[what] += 1
            result = "ValueError"
        self.calls[place] = replace(call, ended=self.loop.time(), result=result)
        if result == "ValueError":
            raise ValueError(what)
        if result != "told":
            raise Undeliverable(what)

    def _strike(self, process: Process) -> None:
        self.was_struck = True
        process.is_dead = self.blow.kills == "process"
        if self.blow.kills == "primary":
            self._kill()
        elif self.blow.kills == "primary later":  # when it has got that, if not yet acknowledged
            self.loop.call_later(0.004, self._kill)
        for clocks, seconds in zip((self.clocks, self.servers), self.blow.walls, strict=True):
            clocks.set_wall(seconds)

    def _kill(self) -> None:
        primary = self.set.primary
        self.set.kill(primary, loses=True)
        self.loop.call_later(5.0, self.set.start, primary)

    def _stored(self) -> list[Any]:
        changes = [change for entry in self.set.committed for change in entry.changes]
        return [*{key: one for name, key, one in changes if name == "outbox"}.values()]

    def _left(self) -> bool:
        stored = self._stored()
        return len(stored) < len(self.ids) or any(one["state"] == "pending" for one in stored)

    def wrong(self) -> Iterator[str]:
        """Whatever is not as it is promised."""
        stored = {one["payload"]["what"]: one for one in self._stored()}
        if {what: one["_id"] for what, one in stored.items()} != self.ids:
            yield "other entries are stored than were added"
        for what, entry in stored.items():
            yield from self._wrong_with(what, entry)
        for key in KEYS:
            for number in range(1, OF_EACH):
                yield from self._disordered(f"{key}{number - 1}", f"{key}{number}")
        fences = [call.entry.fence for call in self.calls]
        if fences != sorted(fences):
            yield f"who had lost its lease has begun once more: {fences}"
        again = Counter(call.what for call in self.calls if call.result == "told")
        most = AT_ONCE if self.was_struck else 0
        if sum(again.values()) - len(again) > most:
            yield f"more was told again than was under way: {again}"

    def _wrong_with(self, what: str, entry: Any) -> Iterator[str]:
        calls = [call for call in self.calls if call.what == what]
        if {call.entry.id for call in calls} != {self.ids[what]}:
            yield f"{what} was told with other ids than its own"
        end, attempts, error = "delivered", TROUBLES.get(what, 0), f"ValueError: {what}"
        if what in NEVER:
            end, attempts, error = "dead", 1, f"Undeliverable: {what}"
        elif attempts >= MAX_ATTEMPTS:
            end, attempts = "dead", MAX_ATTEMPTS
        if entry["state"] != end:
            yield f"{what} is {entry['state']}, and not {end}"
        if end == "delivered" and not any(call.result == "told" for call in calls):
            yield f"{what} was told to nobody"
        if end == "dead" and (entry["attempts"], entry.get("error")) != (attempts, error):
            yield f"{what} is dead after {entry['attempts']} attempts: {entry.get('error')}"

    def _disordered(self, before: str, after: str) -> Iterator[str]:
        began = min(call.began for call in self.calls if call.what == after)
        results = [
            call.result for call in self.calls if call.what == before and call.ended <= began
        ]
        is_given_up = results.count("ValueError") >= MAX_ATTEMPTS
        if not is_given_up and {"told", "Undeliverable"}.isdisjoint(results):
            yield f"{after} has overtaken {before}"
