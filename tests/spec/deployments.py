"""The deployments that the official tests run on, and what a test may require of one."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bson import json_util
from pymongo import MongoClient

from tests.spec.unsupported import require_known

_REQUIREMENT = {"minServerVersion", "maxServerVersion", "topologies", "serverless", "auth"}
_TOPOLOGIES = {"single", "replicaset", "sharded", "sharded-replicaset", "load-balanced"}
# From here on the fail point of a server can hold a command up.
_BLOCKS = (4, 2, 9)
# Fake ones give no token to find out on another one whether a commit was made, and their fail
# points give errors without names.
_OF_REAL_MONGOSES = ("recoveryToken", "errorCodeName")


@dataclass(frozen=True)
class Deployment:
    """A running deployment.

    Attributes:
        topology: As the tests call it.
        uri_of_all: The URI with all its servers.
        uri_of_one: The URI with one router, if it is sharded; else the same.
        version: Of its servers.
        user: Who can log in, with the password of the same name.
        is_alone: Whether it is a replica set of one member.
    """

    topology: str
    uri_of_all: str
    uri_of_one: str
    version: tuple[int, ...]
    user: str
    is_alone: bool = False

    def uri(self, *, several_routers: bool, with_login: bool) -> str:
        """The URI for a client."""
        uri = self.uri_of_all if several_routers else self.uri_of_one
        if not with_login:
            return uri
        secret = f"mongodb://{self.user}:{self.user}@"
        return uri.replace("mongodb://", secret, 1).replace("/?", "/admin?", 1)

    def why_not(self, requirements: Sequence[Mapping[str, Any]]) -> str | None:
        """Say why none of the requirements is met, or None if one is.

        Raises:
            UnsupportedError: One has a field that is not known here.
        """
        reasons = [self._lacks(requirement) for requirement in requirements]
        return None if None in reasons else " or ".join(filter(None, dict.fromkeys(reasons)))

    def why_not_in_spite(self, test: Mapping[str, Any]) -> str | None:
        """Say why a test that requires nothing of it can't run all the same, or None if it can."""
        text = json_util.dumps(test)
        if self.is_alone and '"secondary"' in text:
            return "a secondary"
        if self.version < _BLOCKS and "blockConnection" in text:
            return f"a server from {'.'.join(map(str, _BLOCKS))} on"
        if self.topology == "sharded" and any(word in text for word in _OF_REAL_MONGOSES):
            return "a real mongos"
        return None

    def _lacks(self, requirement: Mapping[str, Any]) -> str | None:
        require_known("runOnRequirements", requirement, _REQUIREMENT)
        oldest, newest = requirement.get("minServerVersion"), requirement.get("maxServerVersion")
        if oldest is not None and self.version < _numbers(oldest):
            return f"a server from {oldest} on"
        if newest is not None and self.version[: len(_numbers(newest))] > _numbers(newest):
            return f"a server up to {newest}"
        topologies = requirement.get("topologies")
        if topologies is not None and self.topology not in topologies:
            return f"one of {', '.join(topologies)}"
        if requirement.get("serverless") == "require":
            return "a serverless deployment"
        if requirement.get("auth") is False:
            return "a deployment where nobody can log in"
        return None


def describe(topology: str, uri: str, uri_of_one: str | None = None) -> Deployment:
    """Ask a running deployment what it is, and make a user that can log in."""
    with MongoClient(uri) as client:
        version = tuple(client.server_info()["versionArray"][:3])
        user = f"spec{uuid.uuid4().hex[:8]}"
        client.admin.command("createUser", user, pwd=user, roles=["root"])
        is_alone = len(client.admin.command("isMaster").get("hosts", [])) == 1
    return Deployment(topology, uri, uri_of_one or uri, version, user, is_alone)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
