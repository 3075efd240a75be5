"""Proxies before servers that are spoken to over TLS, and that are found by DNS."""

import socket
import ssl
import threading
from contextlib import closing

import dns.message
import dns.resolver
import dns.rrset
import pymongo
import pytest
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError

from aioretry import RetryClient, deadline
from aioretry.testing import BlackPipe, FakeMongoses, ReplicaSet, find_mongod
from aioretry.testing._target import TargetURI
from tests.encrypted import certificates, with_tls

LARGE = "x" * 12_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An authority's certificate, a server's and a client's."""
    return certificates(tmp_path_factory.mktemp("pipe"))


@pytest.fixture(scope="module")
def encrypted(folder):
    """A replica set with a user, which asks whoever encrypts for a certificate."""
    with ReplicaSet(members=1, mongod=with_tls(find_mongod(), folder)) as replica_set:
        with pymongo.MongoClient(replica_set.uri) as client:
            client.admin.command("createUser", "shop", pwd="p@ss", roles=["root"])
        yield replica_set


def uri_of(encrypted, **options):
    """Name the set, with options."""
    text = "".join(f"&{name}={value}" for name, value in options.items())
    return f"mongodb://shop:p%40ss@{encrypted.members[0].address}/admin?replicaSet=rs0{text}"


@pytest.mark.server
async def test_faults_over_tls(encrypted, folder):
    """Clients log in through the proxy, whose faults strike; what is large passes."""
    tls = {"tlsCAFile": folder / "ca.pem", "tlsCertificateKeyFile": folder / "client.pem"}
    async with BlackPipe(uri_of(encrypted, tls="true", **tls)) as pipe:
        assert "tls" not in pipe.uri
        assert pipe.uri.endswith("/admin?replicaSet=rs0")
        assert all(member.tls is not None for member in pipe.members)
        async with RetryClient(pipe.uri) as client:
            things = client.piped.things
            with pipe.faults.drop_reply("insert"):
                async with things.operation() as op:
                    await op.insert_one({"_id": 1, "text": LARGE})
            assert 2 == len(op.attempts)
            assert (await things.find_one({"_id": 1}))["text"] == LARGE
            status = await client.admin.command("connectionStatus")
        assert "shop" == status["authInfo"]["authenticatedUsers"][0]["user"]


@pytest.mark.server
async def test_clients_over_tls(encrypted, folder, client_class):
    """The proxies have a certificate of their own: faults strike as on connections without."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    async with BlackPipe(uri_of(encrypted), client_tls=context) as pipe:
        assert pipe.uri.endswith("?replicaSet=rs0&tls=true")
        trust = {"tlsCAFile": str(folder / "ca.pem")}
        async with client_class(pipe.uri, **trust, retryReads=False) as client:
            things = client[f"clients_{client_class.__name__}"].things
            with pipe.faults.drop_reply("insert"):
                async with things.operation() as op:
                    await op.insert_one({"_id": 1, "text": LARGE})
            assert 2 == len(op.attempts)
            assert (await things.find_one({"_id": 1}))["text"] == LARGE
            with pipe.faults.refuse_connections() as refused, pipe.faults.truncate_reply(9, "find"):
                with pytest.raises(AutoReconnect):
                    await things.find_one()
                await refused.wait_until_fired()
            async with deadline(20.0):
                assert {"_id": 1} == await things.find_one(projection=["_id"])
        plain = pipe.uri.replace("&tls=true", "")
        with pymongo.MongoClient(plain, serverSelectionTimeoutMS=500) as client:
            with pytest.raises(ServerSelectionTimeoutError):
                client.admin.command("ping")


@pytest.mark.server
async def test_fake_mongoses_over_tls(encrypted, folder, client_class):
    """They speak to the servers as the pipe does, and let in a user of their own."""
    tls = {"tlsCAFile": folder / "ca.pem", "tlsCertificateKeyFile": folder / "client.pem"}
    user = ("till", "p@ss:w/rd")
    async with BlackPipe(uri_of(encrypted, tls="true", **tls)) as pipe:
        async with FakeMongoses(pipe, user=user) as cluster, client_class(cluster.uri) as client:
            things = client[client_class.__name__].things
            with cluster.faults.drop_reply("insert"):
                async with things.operation() as op:
                    await op.insert_one({"_id": 1})
            assert 2 == len(op.attempts)
            assert {"_id": 1} == await things.find_one()


@pytest.mark.server
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tlsCAFile": "ca.pem"}, "none of the hosts answers"),  # without a client's certificate
        ({"tlsCertificateKeyFile": "client.pem"}, "CERTIFICATE_VERIFY_FAILED"),
        ({"tlsCAFile": "none.pem"}, "not readable"),
    ],
)
def test_what_cannot_be_trusted(encrypted, folder, options, why):
    """Who is not known is not spoken to."""
    files = {name: folder / file for name, file in options.items()}
    with pytest.raises(OSError, match=why):
        BlackPipe(uri_of(encrypted, ssl="true", **files)).start()


@pytest.mark.server
@pytest.mark.parametrize("option", ["tlsInsecure", "tlsAllowInvalidCertificates"])
def test_an_authority_that_is_not_known(encrypted, folder, option):
    """A test deployment may have made its certificate itself."""
    options = {option: "true", "tlsCertificateKeyFile": folder / "client.pem"}
    with BlackPipe(uri_of(encrypted, tls="true", **options)) as pipe:
        with pymongo.MongoClient(pipe.uri) as client:
            assert client.admin.command("ping")["ok"] == 1


@pytest.fixture
def names(monkeypatch):
    """A server of DNS that knows one deployment."""
    records = {
        "_mongodb._tcp.db.example.net.": (
            "SRV",
            ["0 0 27018 m0.example.net.", "0 0 27019 m1.example.net."],
        ),
        "db.example.net.": ("TXT", ['"authSource=users&replicaSet=rs7"']),
    }

    def serve(connection):
        while (received := connection.recvfrom(4096))[0]:
            question = dns.message.from_wire(received[0])
            name = question.question[0].name.to_text().lower()
            answer = dns.message.make_response(question)
            kind, texts = records[name]
            answer.answer.append(dns.rrset.from_text(name, 60, "IN", kind, *texts))
            connection.sendto(answer.to_wire(), received[1])

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.bind(("127.0.0.1", 0))
        server = threading.Thread(target=serve, args=(connection,))
        server.start()
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], connection.getsockname()[1]
        monkeypatch.setattr(dns.resolver, "default_resolver", resolver)
        yield
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as last:
            last.sendto(b"", ("127.0.0.1", connection.getsockname()[1]))
        server.join()


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("", "/?authSource=users&replicaSet=rs7"),
        ("/shop?w=1", "/shop?w=1&authSource=users&replicaSet=rs7"),
        ("/?authSource=own&srvMaxHosts=0&tlsInsecure=true", "/?authSource=own&replicaSet=rs7"),
    ],
)
def test_a_deployment_that_dns_knows(rest, expected):
    """Its hosts are looked up, and are spoken to over TLS; its options are those of its record."""
    target = TargetURI(f"mongodb+srv://shop:secret@db.example.net{rest}").find()
    assert {"m0.example.net:27018", "m1.example.net:27019"} == set(target.hosts)
    assert expected == target.rest
    assert target.tls is not None
    is_checked = "tlsInsecure" not in rest
    assert (ssl.CERT_REQUIRED if is_checked else ssl.CERT_NONE) is target.tls.verify_mode
    assert is_checked is target.tls.check_hostname


@pytest.mark.usefixtures("names")
def test_a_deployment_that_dns_knows_without_tls():
    """It may be said that there is none."""
    target = TargetURI("mongodb+srv://db.example.net/?tls=false").find()
    assert target.tls is None
    assert "/?authSource=users&replicaSet=rs7" == target.rest
