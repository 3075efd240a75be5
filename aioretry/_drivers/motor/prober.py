"""A thread that keeps PyMongo looking for a server."""

import contextlib
import threading
import weakref
from typing import Any

import pymongo
from pymongo.lock import _create_lock

from aioretry.deadlines import detached

_PROBE_AFTER = 0.1
_PROBE_EVERY = 0.5  # no server is looked at more often


class ThreadProber:
    """One thread that keeps PyMongo looking for a server while somebody waits for one.

    PyMongo looks at a sleeping server every ``heartbeatFrequencyMS`` unless somebody sits in its
    server selection, which is what this thread does. It sends nothing that a listener would see.
    """

    def __init__(self, delegate: pymongo.MongoClient[Any]) -> None:
        self._delegate = weakref.ref(delegate)
        self._wanted = threading.Event()
        self._unwanted = threading.Event()
        # Guards the thread's beginning and end; whole again in a forked child.
        self._lock = _create_lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        with self._lock:
            self._wanted.set()
            self._unwanted.clear()
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="aioretry-prober", daemon=True)
                detached(thread.start)
                self._thread = thread

    def stop(self) -> None:
        self._wanted.clear()
        self._unwanted.set()

    def _run(self) -> None:
        while self._goes_on():
            delegate = self._delegate()
            if delegate is None:
                return
            # Whatever fails here, the writes that wait tell their callers in the end.
            with contextlib.suppress(Exception):
                topology: Any = delegate._get_topology()
                # Whoever connects for the first time is spared the hurry.
                if not self._unwanted.wait(_PROBE_AFTER):
                    topology.request_check_all(_PROBE_EVERY)

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._wanted.is_set():
                self._thread = None
                return False
            return True
