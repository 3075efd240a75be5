"""What is told of a deployment by what it says in the handshake: made by hand, as its makers
document it or its source has it."""

import pytest

from aioretry._commands.look_alikes import look_alike_of

SIZES = {
    "maxBsonObjectSize": 16777216,
    "maxWriteBatchSize": 100000,
    "maxMessageSizeBytes": 48000000,
}
SESSIONS = {"logicalSessionTimeoutMinutes": 30, "minWireVersion": 0, "readOnly": False, "ok": 1.0}
MONGOD = {"isWritablePrimary": True, "topologyVersion": {}, **SIZES, **SESSIONS}
AMAZON = "shop.cluster-abc.eu-west-1.docdb.amazonaws.com"
# Hosts, wire version, hello, buildInfo; and what is told of it.
CASES = {
    "a standalone server": (["db"], 17, MONGOD, {"version": "6.0.27"}, None),
    "a member of a set": (["db1", "db2"], 21, {**MONGOD, "setName": "rs0"}, {}, None),
    "a mongos": (["router"], 25, {**MONGOD, "msg": "isdbgrid"}, {"version": "8.0.4"}, None),
    "a load balancer, which nobody asks": (["lb.example.com"], 0, None, None, None),
    "Atlas": (["shop-shard-00-00.abc.mongodb.net"], 21, MONGOD, {"version": "7.0.1"}, None),
    "a name that only holds one": (["docdb.amazonaws.com.example.com"], 13, MONGOD, {}, None),
    "Amazon DocumentDB 5.0": ([AMAZON], 13, None, None, ("Amazon DocumentDB", False)),
    "in capitals": ([AMAZON.upper()], 13, None, None, ("Amazon DocumentDB", False)),
    "through a tunnel, by its set's hosts": (
        ["localhost", AMAZON],
        13,
        {**MONGOD, "setName": "rs0"},
        {},
        ("Amazon DocumentDB", False),
    ),
    "Amazon DocumentDB 8.0": ([AMAZON], 25, None, None, ("Amazon DocumentDB", True)),
    "an elastic cluster, however new": (
        ["shop-1.eu-west-1.docdb-elastic.amazonaws.com"],
        25,
        {**MONGOD, "msg": "isdbgrid"},
        {},
        ("an elastic cluster of Amazon DocumentDB", False),
    ),
    "Cosmos DB (RU)": (
        ["shop.mongo.cosmos.azure.com"],
        7,
        None,
        None,
        ("Azure Cosmos DB for MongoDB (RU)", True),
    ),
    "Cosmos DB (RU) by another name": (
        ["db.example.com"],
        7,
        {"_t": "IsMasterResponse", "ismaster": True, "setName": "globaldb"},
        {},
        ("Azure Cosmos DB for MongoDB (RU)", True),
    ),
    "Cosmos DB (vCore)": (
        ["fc-1.shop.mongocluster.cosmos.azure.com"],
        21,
        None,
        None,
        ("Azure Cosmos DB for MongoDB (vCore)", False),
    ),
    "its engine elsewhere": (
        ["db"],
        21,
        {**MONGOD, "msg": "isdbgrid", "internal": {}},
        {},
        ("DocumentDB on PostgreSQL", False),
    ),
    "FerretDB 1": (["db"], 21, MONGOD, {"ferretdbVersion": "v1.24.0"}, ("FerretDB", False)),
    "FerretDB 2": (
        ["db"],
        21,
        MONGOD,
        {"version": "7.0.77", "ferretdb": {"version": "v2.7.0"}},
        ("FerretDB", False),
    ),
    "FerretDB, by its handshake alone": (["db"], 21, MONGOD, None, None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_told(name):
    """MongoDB is taken for nothing else, and what can't be told is not guessed."""
    *said, expected = CASES[name]
    found = look_alike_of(*said)
    assert expected == (None if found is None else (found.name, found.may_retry))
    assert found is None or "retryWrites=false" in found.advice
