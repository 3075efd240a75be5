"""A set that is closed while it starts."""

import threading

import pytest

from aioretry.testing import ReplicaSet, _cluster


def test_a_start_ends_when_the_set_is_closed():
    """Closing ends a start that is under way, at whatever point it finds it."""
    for delay in (0.0, 0.3, 0.6):
        servers = ReplicaSet()
        errors = []

        def start(servers=servers, errors=errors):
            try:
                servers.start()
            except RuntimeError as exc:
                errors.append(exc)

        thread = threading.Thread(target=start)
        thread.start()
        thread.join(delay)
        servers.close()
        thread.join(20)
        assert not thread.is_alive()
        assert all("closed" in str(error) for error in errors)
        with pytest.raises(RuntimeError):
            servers.start()


def test_a_start_that_is_closed_while_it_waits_for_a_server_says_so(monkeypatch):
    """The connection that breaks when its server is ended isn't what the caller hears of."""
    servers = ReplicaSet(members=1)

    def close(*_args):
        servers.close()
        raise ConnectionResetError("the server closed the connection")

    monkeypatch.setattr(_cluster, "initiate", close)
    with pytest.raises(RuntimeError, match="closed before it had started"):
        servers.start()
