"""What services answer when databases fail: the same in all frameworks, by real faults."""

import logging

import pytest

from tests.services.apps import PAGE

PROBLEM = "application/problem+json"


def problem_in(answer):
    """The members of a problem that tell what it is, and nothing that is nobody's business."""
    assert answer.headers["Content-Type"] == PROBLEM
    assert not [
        word for word in ("secret", "127.0.0.1", "mongodb", "update") if word in answer.text
    ]
    members = answer.json()
    assert members["type"] == f"{PAGE}#{members['reason']}"
    assert answer.headers["Link"].startswith(f"<{members['type']}>; ")
    assert members["status"] == answer.status_code
    return answer.status_code, members["reason"], members.get("outcome")


class TestDeadlines:
    async def test_default_and_maximum(self, service):
        """The header shortens or lengthens what a request has, up to the maximum."""
        for asked, most in (
            ({}, 30),
            ({"X-Request-Timeout": "7.5"}, 7.5),
            (
                {"X-Request-Timeout": "100"},
                60,
            ),
        ):
            left = (await service.get("/left", headers=asked)).json()
            assert 0 < left <= most

    @pytest.mark.parametrize("text", ["soon", "-1", "0", "1e9", ""])
    async def test_bad_header(self, service, text):
        """A header that can't be read is the caller's fault."""
        answer = await service.get("/left", headers={"X-Request-Timeout": text})
        assert problem_in(answer) == (400, "bad_header", None)

    async def test_write_that_hangs(self, service, faults):
        """The deadline is over while a server has the write, which may be applied."""
        await service.post("/write")
        faults.hang("update", times=None)
        answer = await service.post("/write", headers={"X-Request-Timeout": "1"})
        assert problem_in(answer) == (504, "deadline_exceeded", "unknown")

    async def test_read_that_hangs(self, service, faults):
        """A read obeys the deadline as well."""
        await service.post("/write")
        faults.hang("find", times=None)
        answer = await service.get("/read", headers={"X-Request-Timeout": "1"})
        assert problem_in(answer) == (504, "deadline_exceeded", None)

    async def test_no_server(self, scene, start, faults):
        """No server until the deadline is over: nothing was written."""
        scene.options["startup_timeout"] = 0.1
        faults.refuse_connections(times=None)
        service = await start()
        answer = await service.post("/write", headers={"X-Request-Timeout": "1"})
        assert problem_in(answer) == (504, "deadline_exceeded", "not applied")
        answer = await service.get("/read", headers={"X-Request-Timeout": "1"})
        assert problem_in(answer) == (504, "deadline_exceeded", None)

    async def test_what_does_not_obey(self, scene, start):
        """A handler that waits for something else is cancelled, and answered for."""
        scene.grace = 0.1
        service = await start()
        answer = await service.get("/forever", headers={"X-Request-Timeout": "0.1"})
        assert problem_in(answer) == (504, "deadline_exceeded", None)

    async def test_cancelled_write(self, scene, start, faults):
        """A write that is cancelled with its handler says how it has ended."""
        scene.grace = 0.001
        service = await start()
        await service.post("/write")
        faults.hang("update", times=None)
        answer = await service.post("/write", headers={"X-Request-Timeout": "1"})
        assert problem_in(answer) == (504, "deadline_exceeded", "unknown")


class TestWithoutTime:
    async def test_no_server(self, scene, start, free_port):
        """No server within the driver's own time: later there may be one."""
        scene.uri = f"mongodb://127.0.0.1:{free_port}/?replicaSet=rs0"
        scene.options.update(serverSelectionTimeoutMS=100, startup_timeout=0.2)
        service = await start()
        answer = await service.post("/write")
        assert problem_in(answer) == (503, "no_server", "not applied")
        assert int(answer.headers["Retry-After"]) > 0

    async def test_unknown_outcome(self, scene, start, faults, caplog):
        """Nobody knows whether a write is applied whose concern is not met."""
        service = await start()
        await service.post("/write")
        faults.write_concern_error(64, "update", times=None)
        with caplog.at_level(logging.INFO, "aioretry"):
            answer = await service.post("/write")
        assert problem_in(answer) == (500, "unknown_outcome", "unknown")
        (told,) = [r.getMessage() for r in caplog.records if "answered" in r.msg]
        assert told.startswith("POST /write is answered with 500 unknown_outcome: Write")
        assert "secret" not in caplog.text

    async def test_other_errors(self, service):
        """What is the application's stays so."""
        answer = await service.post("/duplicate")
        assert answer.status_code == 500
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert (await service.get("/nothing")).status_code == 404
