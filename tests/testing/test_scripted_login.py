"""Scripted servers that encrypt, and that let one user in."""

import asyncio
import re
import secrets
import socket
import ssl
from base64 import b64decode
from types import SimpleNamespace

import pytest
from pymongo.errors import OperationFailure

from aioretry import Outcome, outcome_of
from aioretry.testing import FakeMongoses, ScriptedServer
from aioretry.testing._scram import Login, User
from tests.encrypted import certificates

USER = ("sh,o=p", "p@ss/w\N{LATIN SMALL LETTER O WITH DIAERESIS}rd")
# The example of RFC 7677.
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
FINAL = f"c=biws,r={NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
START = {"payload": b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", "mechanism": "SCRAM-SHA-256"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An authority's certificate and a server's."""
    return certificates(tmp_path_factory.mktemp("scripted"))


@pytest.fixture
async def server(folder):
    """A server that asks for everything."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "server.pem")
    async with ScriptedServer(tls=tls, user=USER) as server:
        yield server


@pytest.fixture
def options(folder):
    """What a client needs beside the URI."""
    return {"tlsCAFile": str(folder / "ca.pem")}


async def test_logged_in(server, options, client_class):
    """A client is known by what its URI says, on each connection that it opens."""
    async with client_class(server.uri, **options) as client:
        write = asyncio.ensure_future(client.db.c.insert_one({"_id": 1}))
        (await server.expect("insert")).hang_up()
        (await server.expect("insert")).reply({"n": 1})
        assert 1 == (await write).inserted_id
    assert ["insert"] * 2 == [request.name for request in server.requests]
    names = [request.name for request in server.traffic]
    assert names.count("saslContinue") >= 2
    assert "saslStart" not in names  # a driver begins with the hello


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"password": "wrong"}, 18),
        ({"username": "shop"}, 18),
        ({"authSource": "db", "authMechanism": "SCRAM-SHA-256"}, 18),
        ({"authMechanism": "SCRAM-SHA-1"}, 18),
        (None, 13),
    ],
)
async def test_not_logged_in(server, options, client_class, changes, code):
    """Whoever is not known is refused, and nothing of it is there to be expected."""
    named = {"username": USER[0], "password": USER[1], **changes} if changes is not None else {}
    uri = f"mongodb://{server.address}/?replicaSet=scripted&tls=true"
    async with client_class(uri, **options, **named) as client:
        with pytest.raises(OperationFailure) as caught:
            await client.db.c.insert_one({"_id": 1})
    assert code == caught.value.code
    assert Outcome.NOT_APPLIED is outcome_of(caught.value)
    assert () == server.requests


async def test_who_does_not_encrypt(server, options, client_class):
    """Whoever says something else is hung up on, and harms nobody."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(b"hello")
        assert b"" == await asyncio.to_thread(connection.recv, 1)
    async with client_class(server.uri, **options) as client:
        assert 1 == (await client.admin.command("ping"))["ok"]


async def test_behind_fake_mongoses(folder, client_class):
    """They encrypt as a member of the set says, and answer each login themselves."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "server.pem")
    trusting = ssl.create_default_context(cafile=folder / "ca.pem")
    async with ScriptedServer(tls=tls) as server:
        server.answer("insert", {"n": 1})
        member = SimpleNamespace(direct_address=server.address, tls=trusting)
        async with FakeMongoses(SimpleNamespace(members=[member]), user=USER) as cluster:
            async with client_class(cluster.uri) as client:
                await client.db.c.insert_one({"_id": 1})
            stranger = re.sub("//.*@", "//", cluster.uri)
            for uri, code in ((stranger, 13), (stranger.replace("//", "//shop:p@"), 18)):
                async with client_class(uri) as client:
                    with pytest.raises(OperationFailure) as caught:
                        await client.db.c.insert_one({"_id": 2})
                assert code == caught.value.code
    assert ["insert"] == [request.name for request in server.requests]


@pytest.fixture
def login(monkeypatch):
    """A login at a server that has drawn what the example has."""
    monkeypatch.setattr(secrets, "token_bytes", lambda _: b64decode(SALT))
    monkeypatch.setattr(secrets, "token_urlsafe", lambda _: NONCE[20:])
    return Login(User("user", "pencil"))


@pytest.mark.parametrize("skips", [True, False])
def test_example_of_the_standard(login, skips):
    """The server's words are those of another implementation."""
    options = {"skipEmptyExchange": skips}
    begun = login.answer({"saslStart": 1, "$db": "admin", "options": options, **START})
    assert f"r={NONCE},s={SALT},i=4096" == begun["payload"].decode()
    assert login.refusal("insert")
    ended = login.answer({"saslContinue": 1, "payload": FINAL.encode()})
    assert b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=" == ended["payload"]
    assert skips is ended["done"]
    assert login.answer({"saslContinue": 1, "payload": b""})["done"]
    assert login.refusal("insert") is None


def test_a_proof_is_good_once(login):
    """Neither is it good before its challenge, nor again, nor is another one."""
    proof = {"saslContinue": 1, "payload": FINAL.encode()}
    assert 18 == login.answer(proof)["code"]
    login.answer({"saslStart": 1, "$db": "admin", **START})
    wrong = {"saslContinue": 1, "payload": FINAL.replace("p=d", "p=e").encode()}
    assert 18 == login.answer(wrong)["code"]
    assert 18 == login.answer(proof)["code"]
    assert 18 == login.answer({"saslContinue": 1})["code"]
    assert login.refusal("insert")
