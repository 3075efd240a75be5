"""What a proxy and a fake mongos have in common: a port whose connections faults can strike."""

import asyncio
import ssl
from abc import ABC, abstractmethod

from aioretry.testing._conversation import Conversation
from aioretry.testing._fault import FaultList
from aioretry.testing._link import Links
from aioretry.testing._listening_thread import ListeningThread, Service


class Piped(ABC):
    """A loopback port with faults, in a thread and an event loop of its own.

    Args:
        name: the thread's name.
        tls: how what comes from clients is encrypted; None for not at all.
    """

    def __init__(self, name: str, tls: ssl.SSLContext | None = None) -> None:
        self._fault_list = FaultList(self._lines_changed)
        self._links: Links | None = None  # from the thread's start on
        self._thread = ListeningThread(name, self._make_service, tls)

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before it was started."""
        return self._thread.port

    @property
    def address(self) -> str:
        """Host and port that it listens on."""
        return self._thread.address

    @property
    def fault_list(self) -> FaultList:
        """The faults that are armed at it."""
        return self._fault_list

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

    @abstractmethod
    def _converse(self) -> Conversation:
        """Begin the conversation of a new client."""

    @abstractmethod
    async def _connect(self, upstream: asyncio.Protocol) -> None:
        """Open a client's connection to the server; raise OSError if nobody is there."""

    def _make_service(self) -> Service:
        self._links = Links(self._fault_list, self._converse, self._connect)
        return self._links

    def _lines_changed(self) -> None:
        if self._links is not None:
            self._thread.run(self._links.look_at_lines)
