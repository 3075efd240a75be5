"""The clients of a load run: each places one order after the other, until it is accepted."""

import asyncio
import math
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.examples.services import Count
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
    accepted: Count = field(default_factory=Count)
    closes: float = math.inf
    """When no new orders are placed any more, in seconds since the run began."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started


@dataclass(frozen=True, slots=True)
class Shopping:
    """How clients behave.

    Attributes:
        services: The URLs of the service's processes; it may change meanwhile.
        connections: How many clients there are, and connections at most.
        settle: How long they go on repeating requests after that, in seconds.
        deadlines: The seconds that requests ask for; each client has its own.
        skus: What they order.
    """

    services: Sequence[str]
    connections: int
    settle: float
    deadlines: Sequence[float]
    skus: Sequence[str]

    async def run(self, told: Told) -> None:
        """Have all clients order until the time is over, and each order has its answer."""
        connector = aiohttp.TCPConnector(limit=self.connections)
        timeout = aiohttp.ClientTimeout(total=_LONGEST)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            async with asyncio.TaskGroup() as clients:
                for number in range(self.connections):
                    deadline = self.deadlines[number % len(self.deadlines)]
                    clients.create_task(self._client(session, told, deadline))

    async def _client(self, session: aiohttp.ClientSession, told: Told, deadline: float) -> None:
        while told.now < told.closes:
            order = Asked(uuid.uuid4().hex, random.choice(self.skus), quantity=random.randint(1, 3))
            told.asked.append(order)
            await self._until_decided(session, told, order, deadline)
            if order.ids and random.random() < _SENT_AGAIN:
                await self._send(session, told, order, deadline)

    async def _until_decided(
        self, session: aiohttp.ClientSession, told: Told, order: Asked, deadline: float
    ) -> None:
        while True:
            pause = await self._send(session, told, order, deadline)
            if pause is None or told.now > told.closes + self.settle:
                return
            await asyncio.sleep(pause)

    async def _send(
        self, session: aiohttp.ClientSession, told: Told, order: Asked, deadline: float
    ) -> float | None:
        """Send a request; give the seconds after which to repeat it, None if it is decided."""
        sent, service = told.now, random.choice(self.services)
        path, body = self._request(order)
        status, pause, text = None, _PAUSE, ""
        try:
            async with session.post(
                f"{service}{path}",
                json=body,
                headers={
                    "Idempotency-Key": order.key,
                    "X-Request-Timeout": f"{deadline:g}",
                },
            ) as response:
                status = response.status
                pause = float(response.headers.get("Retry-After", 0.0))
                if is_success(status):
                    order.ids.add(self._id(await response.json()))
                    told.accepted.add()
                else:
                    text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as exc:
            status, text = None, repr(exc)
        told.answers.append(Answer(told.now, told.now - sent, status, text, service))
        return decide(order, status, pause)

    def _request(self, order: Asked) -> tuple[str, Mapping[str, Any] | None]:
        return "/orders", {"sku": order.sku, "quantity": order.quantity}

    def _id(self, accepted: Mapping[str, Any]) -> str:
        return str(accepted["id"])


class Drawing(Shopping):
    """Clients that draw tickets of events, which are their articles."""

    __slots__ = ()

    def _request(self, order: Asked) -> tuple[str, Mapping[str, Any] | None]:
        return f"/events/{order.sku}/tickets", None

    def _id(self, accepted: Mapping[str, Any]) -> str:
        return str(accepted["number"])


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
