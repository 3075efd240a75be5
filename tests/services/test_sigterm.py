"""SIGTERM under load: nothing that was answered is lost, and nothing is answered wrongly."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid

import httpx
import pytest

from tests.services.processes import ROOT

CALLERS = 16
SERVERS = {
    "uvicorn": ["uvicorn", "--factory", "tests.services.ending:fastapi_service", "--workers=2"],
    "gunicorn": [
        "gunicorn",
        "tests.services.ending:fastapi_service()",
        "--workers=2",
        "--worker-class=uvicorn_worker.UvicornWorker",
    ],
    "gunicorn-aiohttp": [
        "gunicorn",
        "tests.services.ending:aiohttp_service",
        "--workers=2",
        "--worker-class=aiohttp.GunicornWebWorker",
    ],
}


@pytest.fixture(params=SERVERS)
async def service(request, scene, free_port, tmp_path):
    """The process of a service with two workers, its URL, and the file of what it has said."""
    module, *arguments = SERVERS[request.param]
    port = str(free_port)
    bind = ["--port", port] if module == "uvicorn" else ["--bind", f"127.0.0.1:{port}"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, *bind],
            cwd=ROOT,
            env={
                **os.environ,
                "MONGODB_URI": scene.uri,
                "COLLECTION": scene.collection,
                "PYTHONWARNINGS": "error,default::DeprecationWarning",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process, f"http://127.0.0.1:{port}", log
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


async def ready(client):
    """Wait until the service is ready."""
    async with asyncio.timeout(60):
        while True:
            try:
                if (await client.get("/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.05)


async def orders(url, answered, wanted):
    """Order one thing after the other, until nobody listens any more."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            order = uuid.uuid4().hex
            try:
                answer = (await client.post(f"/orders/{order}")).status_code
            except httpx.ConnectError:
                return
            except httpx.TransportError as exc:
                answer = type(exc).__name__
            answered[order] = answer
            if len(answered) >= 200:
                wanted.set()


@pytest.mark.sample(3)
async def test_two_workers(service, stored):
    """Orders that are answered are there, with what was to be written later; others are not."""
    process, url, log = service
    answered, wanted = {}, asyncio.Event()
    async with httpx.AsyncClient(base_url=url) as client:
        await ready(client)
    async with asyncio.timeout(90), asyncio.TaskGroup() as callers:
        for _ in range(CALLERS):
            callers.create_task(orders(url, answered, wanted))
        await wanted.wait()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    said = log.read_text()
    assert "Traceback" not in said, said
    assert "ERROR" not in said, said
    accepted = {order for order, answer in answered.items() if answer == 201}
    there = {each["_id"] for each in stored.find()}
    assert there == accepted | {f"note of {order}" for order in accepted}
    assert len(accepted) >= 200 - CALLERS
    # Those who were about to ask over a connection that was kept, and found it closed.
    assert {answered[order] for order in answered.keys() - accepted} <= {
        "ReadError",
        "RemoteProtocolError",
    }
