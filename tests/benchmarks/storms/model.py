"""What a new primary meets after an outage: clients whose writes have waited (pure, by events).

The server has some cores and one queue. A client opens so many connections at once, uses each as
soon as it is open, and opens more as long as writes wait: so PyMongo's pools do, on which aioretry
stands. Whoever gets no connection within a time tries again later, or gives up.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

_SPAN = 0.1  # in which the peaks are counted, in seconds


@dataclass(frozen=True, slots=True)
class Server:
    """The primary."""

    cores: int = 8
    opening: float = 0.001
    """The seconds of a core that a new connection takes, with its handshake and login."""

    writing: float = 0.0003
    """The same of a write that a majority acknowledges."""

    one_more: float = 0.2
    """The part of that which each further write of one command takes."""

    latency: float = 0.005
    """How long each of these takes beside that, in seconds."""

    abandoned: float = 0.2
    """The part of its work that is done for a connection that nobody wants any more."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a client behaves."""

    name: str
    most_at_once: int = 100
    """Writes under way, and so connections."""

    travel_together: bool = False
    """Whether all writes that wait go in one command, by group commit."""

    opened_at_once: int = 2
    jitter: float = 0.0
    """How long it waits at most once it knows of the primary, in seconds."""

    heard_within: float = 0.01
    """How long it takes at most until it knows, in seconds."""

    patience: float = 20.0
    """How long it waits for a connection to be opened, in seconds."""

    retries: float = 1
    """How often a write is tried again that has got no connection."""

    pause: float = 0.5
    """How long it waits before that, on average, in seconds."""

    lasts: float = 60.0
    """For how long a write may wait beyond the outage, in seconds."""


@dataclass(frozen=True, slots=True)
class Storm:
    """What the primary has seen."""

    opened: int
    """Connections that it has opened, or begun to."""

    most_asked: float
    """The most connections that were asked for a second, within a tenth of one."""

    most_writes: float
    """The most writes that were sent a second."""

    longest_queue: float
    """How long the last one in the queue had to wait at worst, in seconds."""

    calm_after: float
    """When the last write had ended, in seconds."""

    done: int
    failed: int


class _Client:
    __slots__ = ("free", "open", "opening", "tries", "writes")

    def __init__(self, writes: int) -> None:
        self.writes = writes
        self.open = self.opening = self.free = self.tries = 0


class _Request:
    __slots__ = ("is_abandoned", "is_done", "told", "work")

    def __init__(self, work: float, told: Callable[[], None]) -> None:
        self.work, self.told = work, told
        self.is_done = self.is_abandoned = False


class _World:
    def __init__(self, server: Server, how: Behaviour, seed: int) -> None:
        self.server, self.how = server, how
        self.random = random.Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.queue: deque[_Request] = deque()
        self.busy = 0
        self.work = self.longest = self.calm = 0.0
        self.opened = self.done = self.failed = 0
        self.asked: Counter[int] = Counter()
        self.sent: Counter[int] = Counter()

    def at(self, when: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what))

    def run(self) -> None:
        while self.events:
            self.now, _, what = heapq.heappop(self.events)
            what()

    def serve(self, work: float, told: Callable[[], None]) -> "_Request":
        """Have the server do something, and tell when it has."""
        request = _Request(work, told)
        self.queue.append(request)
        self.work += work
        self.longest = max(self.longest, self.work / self.server.cores)
        self._next()
        return request

    def _next(self) -> None:
        while self.queue and self.busy < self.server.cores:
            request = self.queue.popleft()
            self.busy += 1
            work = request.work * (self.server.abandoned if request.is_abandoned else 1.0)
            self.at(self.now + work, lambda request=request: self._end(request))

    def _end(self, request: "_Request") -> None:
        self.busy -= 1
        self.work -= request.work
        request.is_done = True
        if not request.is_abandoned:
            self.at(self.now + self.server.latency, request.told)
        self._next()

    def go_on(self, client: _Client) -> None:
        how = self.how
        while client.writes and client.free:
            client.free -= 1
            number = client.writes if how.travel_together else 1
            client.writes -= number
            self.sent[int(self.now / _SPAN)] += 1
            work = self.server.writing * (1 + self.server.one_more * (number - 1))
            self.serve(work, lambda number=number: self._written(client, number))
        needed = min(client.writes, 1) if how.travel_together else client.writes
        while (
            needed > client.opening
            and client.opening < how.opened_at_once
            and client.open + client.opening < how.most_at_once
        ):
            client.opening += 1
            self.opened += 1
            self.asked[int(self.now / _SPAN)] += 1
            request = self.serve(self.server.opening, lambda: self._opened(client))
            late = self.now + how.patience
            self.at(late, lambda request=request: self._abandon(client, request))

    def _written(self, client: _Client, number: int) -> None:
        if self.now <= self.how.lasts:
            self.done += number
        else:
            self.failed += number
        self.calm = self.now
        client.free += 1
        self.go_on(client)

    def _opened(self, client: _Client) -> None:
        client.opening -= 1
        client.open += 1
        client.free += 1
        self.go_on(client)

    def _abandon(self, client: _Client, request: "_Request") -> None:
        if request.is_done:
            return
        # One of the writes has waited for it in vain.
        request.is_abandoned = True
        client.opening -= 1
        client.tries += 1
        if client.writes and (client.tries > self.how.retries or self.now > self.how.lasts):
            client.writes -= 1
            self.failed += 1
            self.calm = max(self.calm, self.now)
        pause = self.how.pause * 2 * self.random.random()
        self.at(self.now + pause, lambda: self.go_on(client))


def storm(clients: int, writes: int, server: Server, how: Behaviour, seed: int = 1) -> Storm:
    """Have a primary take over while writes wait in many clients.

    Args:
        clients: How many there are.
        writes: How many wait in each.
        server: The primary.
        how: What the clients do.
        seed: Of all that is random.
    """
    world = _World(server, how, seed)
    for _ in range(clients):
        client = _Client(writes)
        heard = world.random.random() * how.heard_within + world.random.random() * how.jitter
        world.at(heard, lambda client=client: world.go_on(client))
    world.run()
    return Storm(
        world.opened,
        max(world.asked.values(), default=0) / _SPAN,
        max(world.sent.values(), default=0) / _SPAN,
        world.longest,
        world.calm,
        world.done,
        world.failed,
    )
