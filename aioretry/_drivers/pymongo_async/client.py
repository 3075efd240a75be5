"""PyMongo's asynchronous client, as a client of ours is one."""

from typing import Any

import pymongo

from aioretry._drivers.engine.cursors import next_batch, time_to_find
from aioretry._drivers.port import DocumentT


class AsyncMongoClient(pymongo.AsyncMongoClient[DocumentT]):
    """PyMongo's client, whose cursors do not wait long for a server that is lost."""

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
