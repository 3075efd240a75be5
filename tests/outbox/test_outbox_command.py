"""The command ``python -m aioretry outbox``, with the example."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from email import message_from_string

import pytest

from aioretry.outbox import Outbox
from tests.outbox.conftest import emptied

ORDER = ("examples/outbox.py", "order")
COMMAND = ("-m", "aioretry", "outbox")
TARGET = "examples.outbox:relay"


class Web:
    """A service that is called, and a server for mail: what they get, they remember."""

    def __init__(self):
        self.keys = Counter()
        self.mails = []
        self.answers = {}

    async def webhook(self, reader, writer):
        """Take a call."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        lines = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
        body = json.loads(await reader.readexactly(int(lines["content-length"])))
        self.keys[lines["idempotency-key"]] += 1
        codes = self.answers.get(body["customer"], [])
        code = codes.pop(0) if codes else 200
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % code)
        await writer.drain()
        writer.close()

    async def smtp(self, reader, writer):
        """Take a mail; the first one also when it says that it has not."""
        writer.write(b"220 mail\r\n")
        while line := await reader.readline():
            word = line[:4].upper()
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                mail = await reader.readuntil(b"\r\n.\r\n")
                self.mails.append(message_from_string(mail.decode()))
                if len(self.mails) == 1:
                    writer.write(b"451 later\r\n")
                    continue
            writer.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                break
        writer.close()


@pytest.fixture
async def web():
    """Both, on free ports."""
    web = Web()
    async with (
        await asyncio.start_server(web.webhook, "127.0.0.1") as calls,
        await asyncio.start_server(web.smtp, "127.0.0.1") as mails,
    ):
        web.ports = [server.sockets[0].getsockname()[1] for server in (calls, mails)]
        yield web


@pytest.fixture
async def start(replica_set, web, client):
    """Start Python as a reader does."""
    await client.drop_database("shop")
    started = []
    calls, mails = web.ports

    async def start(*arguments, **env):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            env={
                **os.environ,
                "MONGODB_URI": replica_set.uri,
                "WEBHOOK": f"http://127.0.0.1:{calls}/orders",
                "SMTP": f"127.0.0.1:{mails}",
                "PYTHONPATH": os.getcwd(),  # noqa: PTH109 - as text
                **env,
            },
            stdout=PIPE,
            stderr=PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def done(process):
    """Its exit code, and what it has written."""
    said, complained = await process.communicate()
    return process.returncode, said.decode(), complained.decode()


@pytest.mark.slow
async def test_from_an_order_to_its_mail(client, start, web):
    """Both follow, with the ids of their entries; what failed once is done again."""
    web.answers = {"Rex": [503], "Ida": [410]}
    for customer in "Rex", "Ida":
        code, _, why = await done(await start(*ORDER, customer, "7"))
        assert code == 0, why
    code, said, _ = await done(await start(*COMMAND, "status", TARGET))
    told = json.loads(said)
    assert (code, told["pending"], told["dead"]) == (0, 4, 0)
    relay = await start(*COMMAND, "run", TARGET)
    outbox = Outbox(client.shop.outbox)
    await emptied(outbox)
    relay.send_signal(signal.SIGTERM)
    code, _, why = await done(relay)
    assert code == 0, why
    assert sorted(web.keys.values()) == [1, 2]
    assert {"Ida@example.org", "Rex@example.org"} == {mail["To"] for mail in web.mails}
    mails = Counter(mail["Message-ID"] for mail in web.mails)
    assert [1, 2] == sorted(mails.values())
    entries = await client.shop.outbox.find({"kind": "mail"}).to_list(None)
    assert mails.keys() == {f"<{entry['_id']}@example.org>" for entry in entries}
    code, said, _ = await done(await start(*COMMAND, "dead", TARGET))
    dead = json.loads(said)
    assert (code, dead["kind"], dead["error"]) == (
        0,
        "webhook",
        "Undeliverable: the receiver answers 410",
    )
    assert "payload" not in dead
    for verb, left in ("retry", 0), ("retry", 1):
        code, _, _ = await done(await start(*COMMAND, verb, TARGET, dead["id"]))
        assert code == left
    assert (await outbox.status()).pending == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "examples.outbox:nothing"), 2, "can't be imported"),
        (("status", "examples.outbox:SMTP"), 2, "is no aioretry.outbox.Relay"),
        (("discard", TARGET, 24 * "a"), 1, "was given up; `dead` says which were"),
        (("retry", "no.such:relay", "zzz"), 2, "'zzz' is no id"),
        (("run",), 2, "TARGET"),
    ],
)
async def test_misuse(start, arguments, code, words):
    """It says in one line what is wrong, and ends with its code."""
    ended, _, complained = await done(await start(*COMMAND, *arguments))
    assert (ended, complained.count("\n")) == (code, 1)
    assert words in complained


async def test_nobody_there(start, free_port):
    """One line says which servers were asked, and what to do."""
    there = f"127.0.0.1:{free_port}"
    env = {"MONGODB_URI": f"mongodb://{there}/?serverSelectionTimeoutMS=300"}
    code, _, complained = await done(await start(*COMMAND, "status", TARGET, **env))
    assert (code, complained.count("\n")) == (1, 1)
    assert f"(asked: {there}); check" in complained
    assert "TopologyDescription" not in complained
