"""PyMongo's asynchronous client, as a client of ours is one."""

import sys
from typing import Any

import pymongo

from aioretry._drivers.engine import private_names
from aioretry._drivers.engine.cursors import next_batch, time_to_find
from aioretry._drivers.port import DocumentT
from aioretry._drivers.pymongo_async.locks import ReturningCondition, ReturningLock


class AsyncMongoClient(pymongo.AsyncMongoClient[DocumentT]):
    """PyMongo's client, whose cursors do not wait long for a server that is lost."""

    def _init_background(self, *args: Any, **kwargs: Any) -> None:
        super()._init_background(*args, **kwargs)
        topology: Any = self._topology
        needed: private_names.Names = ((topology, private_names.OF_WAITING_TOPOLOGY),)
        if sys.version_info < (3, 12) and not private_names.missing(needed):
            lock = topology._lock = ReturningLock()
            topology._condition = ReturningCondition(lock)

    async def _run_operation(self, operation: Any, run_with_conn: Any, address: Any = None) -> Any:
        with next_batch(address):
            return await super()._run_operation(operation, run_with_conn, address)

    async def _select_server(
        self,
        server_selector: Any,
        session: Any,
        operation: str,
        address: Any = None,
        deprioritized_servers: Any = None,
        operation_id: int | None = None,
    ) -> Any:
        with time_to_find(address):
            return await super()._select_server(
                server_selector, session, operation, address, deprioritized_servers, operation_id
            )
