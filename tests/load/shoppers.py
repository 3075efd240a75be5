"""The clients of a load run: each places one order after the other, until it is accepted."""

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.load.accounting import Answer, Asked, is_success

_PAUSE = 0.25  # before a request is repeated, in seconds
_LONGEST = 100.0  # for an answer, in seconds
_SENT_AGAIN = 0.02  # of the accepted orders, as by a client that has missed the answer


@dataclass(slots=True)
class Told:
    """What clients have asked for, and what they were told."""

    started: float = field(default_factory=time.monotonic)
    asked: list[Asked] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started


@dataclass(frozen=True, slots=True)
class Shopping:
    """How clients behave.

    Attributes:
        services: The URLs of the service's processes.
        connections: How many clients there are, and connections at most.
        seconds: How long they place new orders.
        settle: How long they go on repeating requests after that, in seconds.
        deadline: The seconds that each request asks for.
        skus: What they order.
    """

    services: Sequence[str]
    connections: int
    seconds: float
    settle: float
    deadline: float
    skus: Sequence[str]

    async def run(self, told: Told) -> None:
        """Have all clients order until the time is over, and each order has its answer."""
        connector = aiohttp.TCPConnector(limit=self.connections)
        timeout = aiohttp.ClientTimeout(total=_LONGEST)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            async with asyncio.TaskGroup() as clients:
                for _ in range(self.connections):
                    clients.create_task(self._client(session, told))

    async def _client(self, session: aiohttp.ClientSession, told: Told) -> None:
        while told.now < self.seconds:
            order = Asked(uuid.uuid4().hex, random.choice(self.skus), quantity=random.randint(1, 3))
            told.asked.append(order)
            await self._until_decided(session, told, order)
            if order.ids and random.random() < _SENT_AGAIN:
                await self._send(session, told, order)

    async def _until_decided(
        self, session: aiohttp.ClientSession, told: Told, order: Asked
    ) -> None:
        while True:
            pause = await self._send(session, told, order)
            if pause is None or told.now > self.seconds + self.settle:
                return
            await asyncio.sleep(pause)

    async def _send(self, session: aiohttp.ClientSession, told: Told, order: Asked) -> float | None:
        """Send a request; give the seconds after which to repeat it, None if it is decided."""
        sent = told.now
        status, pause, text = None, _PAUSE, ""
        try:
            async with session.post(
                f"{random.choice(self.services)}/orders",
                json={"sku": order.sku, "quantity": order.quantity},
                headers={
                    "Idempotency-Key": order.key,
                    "X-Request-Timeout": f"{self.deadline:g}",
                },
            ) as response:
                status = response.status
                pause = float(response.headers.get("Retry-After", 0.0))
                if is_success(status):
                    order.ids.add((await response.json())["id"])
                else:
                    text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as exc:
            status, text = None, repr(exc)
        told.answers.append(Answer(told.now, told.now - sent, status, text))
        return decide(order, status, pause)


def decide(order: Asked, status: int | None, retry_after: float) -> float | None:
    """Say when to repeat a request, None if there is nothing to repeat.

    Args:
        order: What was asked for.
        status: What it was answered with; None if it was not.
        retry_after: The seconds that the answer names; 0 if none.
    """
    if is_success(status):
        return None
    if status is not None and status < 500 and not retry_after:
        order.refused = status
        return None
    return max(retry_after, _PAUSE) * random.uniform(0.5, 1.5)
