"""Runs one official test (unified test format)."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pymongo import ASCENDING
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from tests.spec.arguments import Arguments
from tests.spec.assertions import ASSERTIONS
from tests.spec.data import OfficialTest
from tests.spec.deployments import Deployment
from tests.spec.entities import Entities
from tests.spec.events import check_events
from tests.spec.failures import check_error
from tests.spec.kinds import ClientKind
from tests.spec.matching import MISSING, MismatchError, match
from tests.spec.operations import OPERATIONS, Call
from tests.spec.options import options_of
from tests.spec.unsupported import UnsupportedError, require_known

_OPERATION = {
    "name",
    "object",
    "arguments",
    "expectError",
    "expectResult",
    "saveResultAsEntity",
    "ignoreResultAndError",
}
_DATA = {"databaseName", "collectionName", "documents"}


class Runner:
    """Runs one test on one deployment.

    Args:
        test: The test.
        deployment: Where it runs.
        kind: Which client it is about.
        internal: PyMongo's own client of the deployment, to prepare and to look.
    """

    def __init__(
        self, test: OfficialTest, deployment: Deployment, kind: ClientKind, internal: Any
    ) -> None:
        self._test = test
        self._kind = kind
        self._internal = internal
        with_login = any(
            requirement.get("auth") for each in test.requirements for requirement in each
        )
        self._entities = Entities(deployment, kind, with_login=with_login)
        self._fail_points: list[tuple[Any, str]] = []

    async def run(self) -> None:
        """Run it.

        Raises:
            MismatchError: Something is not as the test expects.
            UnsupportedError: The test has something that is not known here.
        """
        try:
            self._prepare()
            await self._entities.create(self._test.shared.get("createEntities", []))
            for number, operation in enumerate(self._test.content["operations"]):
                await self._run_operation(operation, f"operation {number}, {operation['name']}")
            for expectation in self._test.content.get("expectEvents", []):
                recorder = self._recorder(expectation["client"])
                check_events(expectation, recorder, self._entities.lsids)
            self._check_outcome()
        finally:
            for client, name in self._fail_points:
                await client.admin.command({"configureFailPoint": name, "mode": "off"})
            await self._entities.close()
            self._end_transactions()

    def _prepare(self) -> None:
        for data in self._test.shared.get("initialData", []):
            require_known("initialData", data, _DATA)
            database = self._internal.get_database(
                data["databaseName"], write_concern=WriteConcern("majority")
            )
            database.drop_collection(data["collectionName"])
            if data["documents"]:
                database[data["collectionName"]].insert_many(data["documents"])
            else:
                database.create_collection(data["collectionName"])

    def _end_transactions(self) -> None:
        # One that is left open would hold up the next test's preparations.
        names = {operation["name"] for operation in self._test.content["operations"]}
        if names & {"startTransaction", "withTransaction"}:
            with contextlib.suppress(OperationFailure):  # its own session is ended, too
                self._internal.admin.command("killAllSessions", [])

    def _recorder(self, client: str) -> Any:
        self._entities.get(client, "client")
        return self._entities.recorders[client]

    async def _run_operation(self, operation: Mapping[str, Any], where: str) -> Exception | None:
        require_known("an operation", operation, _OPERATION)
        arguments = Arguments(operation["name"], operation.get("arguments", {}))
        if operation["object"] == "testRunner":
            await self._run_own(operation, arguments)
            return None
        seconds = _seconds(arguments.take("timeoutMS", None))
        call = self._call(operation, arguments)
        arguments.require_all_taken()
        error: Exception | None = None
        result: Any = MISSING
        try:
            async with self._kind.limit(seconds):
                result = await call()
        except AssertionError:  # in a callback
            raise
        except TypeError as exc:  # the method takes something else
            raise UnsupportedError(f"{where} raised {exc!r}") from exc
        except Exception as exc:  # noqa: BLE001  # what it may be the test says
            error = exc
        if operation.get("ignoreResultAndError", False):
            return error
        if "expectError" in operation:
            check_error(operation["expectError"], error, self._kind.partial_result)
        elif error is not None:
            raise MismatchError(f"{where} raised {error!r}") from error
        elif "expectResult" in operation:
            match(operation["expectResult"], result, where)
        if "saveResultAsEntity" in operation:
            self._entities.add(operation["saveResultAsEntity"], result)
        return error

    def _call(self, operation: Mapping[str, Any], arguments: Arguments) -> Call:
        kind, target = self._entities.get(operation["object"])
        if (kind, operation["name"]) == ("session", "withTransaction"):
            callback = partial(self._run_callback, arguments.take("callback"))
            options = options_of(arguments.operation, arguments.take_rest())
            return partial(target.with_transaction, callback, **options)
        build = OPERATIONS.get((kind, operation["name"]))
        if build is None:
            raise UnsupportedError(f"the operation {operation['name']} of a {kind}")
        return build(target, arguments, self._entities)

    async def _run_callback(self, operations: Sequence[Mapping[str, Any]], _: Any) -> None:
        for number, operation in enumerate(operations):
            where = f"operation {number} of the callback, {operation['name']}"
            error = await self._run_operation(operation, where)
            if error is not None:
                raise error

    async def _run_own(self, operation: Mapping[str, Any], arguments: Arguments) -> None:
        match operation["name"]:
            case "failPoint":
                client = self._entities.get(arguments.take("client"), "client")[1]
                await self._set_fail_point(client, arguments)
            case "targetedFailPoint":
                session = self._entities.pymongos_session(arguments.take("session"))
                client = self._entities.client_of(*session._transaction.pinned_address)
                await self._set_fail_point(client, arguments)
            case "createEntities":
                entities = arguments.take("entities")
                arguments.require_all_taken()
                await self._entities.create(entities)
            case name if name in ASSERTIONS:
                ASSERTIONS[name](arguments, self._entities, self._internal)
                arguments.require_all_taken()
            case name:
                raise UnsupportedError(f"the operation {name} of the test runner")

    async def _set_fail_point(self, client: Any, arguments: Arguments) -> None:
        command = arguments.take("failPoint")
        arguments.require_all_taken()
        self._fail_points.append((client, command["configureFailPoint"]))
        await client.admin.command(command)

    def _check_outcome(self) -> None:
        for data in self._test.content.get("outcome", []):
            require_known("outcome", data, _DATA)
            collection = self._internal[data["databaseName"]].get_collection(
                data["collectionName"],
                read_preference=ReadPreference.PRIMARY,
                read_concern=ReadConcern("local"),
            )
            found = list(collection.find(sort=[("_id", ASCENDING)]))
            if found != data["documents"]:
                raise MismatchError(f"outcome: expected {data['documents']!r}, found {found!r}")


def _seconds(milliseconds: float | None) -> float | None:
    if milliseconds is None:
        return None
    return math.inf if milliseconds == 0 else milliseconds / 1000
