"""A simulated replica set alone, without the library."""

from random import Random

import pytest

from tests.simulation.clock import Clocks, VirtualLoop
from tests.simulation.commands import Command
from tests.simulation.members import Request
from tests.simulation.replica_set import ReplicaSet


class World:
    """A replica set, and the answers that it has given."""

    def __init__(self):
        self.loop = VirtualLoop()
        self.clocks = Clocks(self.loop)
        self.set = ReplicaSet(self.loop, self.clocks, Random(1), lambda _: None)
        self.answers = []
        """Those to what was sent, and not asked."""

    def go_on(self, seconds):
        """Let the time pass."""
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def send(
        self,
        name,
        statements,
        *,
        to=None,
        number=None,
        session=b"s",
        w="majority",
        max_time=None,
        answers=None,
        **more,
    ):
        """Have a command executed; its answer comes later."""
        fields = {"insert": "documents", "update": "updates", "delete": "deletes"}
        body = {name: "things", **more}
        if name in fields:
            body[fields[name]] = statements
        member = to or self.set.primary
        command = Command(name, body, session, number)
        wtimeout = more.get("wtimeout")
        answer = (self.answers if answers is None else answers).append
        member.receive(Request(command, w == "majority", wtimeout, max_time, answer))

    def part(self, number, key=1, *, session=b"t", starts=False, name="update", **more):
        """Return the answer to a part of a transaction."""
        more |= {"startTransaction": True} if starts else {}
        statements = [{"q": {"_id": key}, "u": {"$inc": {"n": 1}}, "upsert": True}]
        if name == "insert":
            statements = [{"_id": key}]
        if name == "find":
            more["filter"] = {"_id": key}
        where = {"session": session, "number": number}
        return self.ask(name, statements, **where, autocommit=False, **more)

    def end(self, name, number, *, session=b"t", **more):
        """Return the answer to a commit or an abort."""
        return self.ask(name, [], session=session, number=number, autocommit=False, **more)

    def found(self, key, **more):
        """Return a document as a read gives it, or None."""
        found = self.ask("find", [], session=None, filter={"_id": key}, **more)
        return next(iter(found["cursor"]["firstBatch"]), None)

    def ask(self, name, statements, **more):
        """Return the answer to a command."""
        answers = []
        self.send(name, statements, answers=answers, **more)
        self.go_on(1.0)
        hidden = {"topologyVersion", "operationTime", "$clusterTime"}
        return {key: value for key, value in answers.pop().items() if key not in hidden}

    def document(self, key):
        """Return a document of the present primary."""
        return self.set.primary.state.documents("things").get(key)


@pytest.fixture
def world():
    """A set of three with a primary."""
    made = World()
    made.go_on(1.0)
    yield made
    made.loop.close()
