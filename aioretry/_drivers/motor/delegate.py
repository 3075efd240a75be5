"""The blocking client of PyMongo's that a Motor client of ours has."""

from typing import Any

import pymongo

from aioretry._drivers.engine.cursors import next_batch, time_to_find


class MongoClient(pymongo.MongoClient[Any]):
    """PyMongo's client, whose cursors do not wait long for a server that is lost."""

    def _run_operation(self, operation: Any, run_with_conn: Any, address: Any = None) -> Any:
        with next_batch(address):
            return super()._run_operation(operation, run_with_conn, address)

    def _select_server(
        self,
        server_selector: Any,
        session: Any,
        operation: str,
        address: Any = None,
        deprioritized_servers: Any = None,
        operation_id: int | None = None,
    ) -> Any:
        with time_to_find(address):
            return super()._select_server(
                server_selector, session, operation, address, deprioritized_servers, operation_id
            )
