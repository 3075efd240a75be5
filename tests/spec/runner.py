"""Runs one official test (unified test format)."""

import math
from collections.abc import Mapping
from typing import Any

from pymongo import ASCENDING
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from tests.spec.arguments import Arguments
from tests.spec.data import OfficialTest
from tests.spec.deployments import Deployment
from tests.spec.entities import Entities
from tests.spec.events import check_events
from tests.spec.failures import check_error
from tests.spec.kinds import ClientKind
from tests.spec.matching import MISSING, MismatchError, match
from tests.spec.operations import OPERATIONS, Call
from tests.spec.unsupported import UnsupportedError, require_known

_OPERATION = {"name", "object", "arguments", "expectError", "expectResult"}
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
        self._entities = Entities(deployment, kind.make, with_login=with_login)
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
                check_events(expectation, self._recorder(expectation["client"]))
            self._check_outcome()
        finally:
            for client, name in self._fail_points:
                await client.admin.command({"configureFailPoint": name, "mode": "off"})
            await self._entities.close()

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

    def _recorder(self, client: str) -> Any:
        self._entities.get(client, "client")
        return self._entities.recorders[client]

    async def _run_operation(self, operation: Mapping[str, Any], where: str) -> None:
        require_known("an operation", operation, _OPERATION)
        arguments = Arguments(operation["name"], operation.get("arguments", {}))
        if operation["object"] == "testRunner":
            await self._run_own(operation, arguments)
            return
        seconds = _seconds(arguments.take("timeoutMS", None))
        call = self._call(operation, arguments)
        arguments.require_all_taken()
        error: Exception | None = None
        result: Any = MISSING
        try:
            async with self._kind.limit(seconds):
                result = await call()
        except Exception as exc:
            if "expectError" not in operation:
                raise MismatchError(f"{where} raised {exc!r}") from exc
            error = exc
        if "expectError" in operation:
            check_error(operation["expectError"], error, self._kind.partial_result)
        elif "expectResult" in operation:
            match(operation["expectResult"], result, where)

    def _call(self, operation: Mapping[str, Any], arguments: Arguments) -> Call:
        kind, target = self._entities.get(operation["object"])
        build = OPERATIONS.get((kind, operation["name"]))
        if build is None:
            raise UnsupportedError(f"the operation {operation['name']} of a {kind}")
        return build(target, arguments, self._entities)

    async def _run_own(self, operation: Mapping[str, Any], arguments: Arguments) -> None:
        match operation["name"]:
            case "failPoint":
                client = self._entities.get(arguments.take("client"), "client")[1]
                command = arguments.take("failPoint")
                arguments.require_all_taken()
                self._fail_points.append((client, command["configureFailPoint"]))
                await client.admin.command(command)
            case "createEntities":
                entities = arguments.take("entities")
                arguments.require_all_taken()
                await self._entities.create(entities)
            case name:
                raise UnsupportedError(f"the operation {name} of the test runner")

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
