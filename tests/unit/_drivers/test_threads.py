"""A bounded pool of threads, and what is abandoned in it."""

import os
import signal
import threading
import time

import pytest

from aioretry._drivers.port import ThreadCounts
from aioretry._drivers.threads import Job, ThreadPool


class TestThreads:
    def test_runs_everything_on_few_threads(self):
        """Every job runs, on no more threads than allowed."""
        pool = ThreadPool(4, "test-pool")
        left, done = [1000], threading.Event()
        names, lock = set(), threading.Lock()

        def job():
            with lock:
                names.add(threading.get_ident())
                left[0] -= 1
                if not left[0]:
                    done.set()

        for _ in range(1000):
            pool.submit(Job(job))
        assert done.wait(10)
        assert 1 <= len(names) <= 4
        assert "size=4" in repr(pool)
        pool.close()

    def test_blocked_jobs_hold_up_nobody(self):
        """As long as there are threads, a job does not wait for another one."""
        pool = ThreadPool(8, "test-pool")
        barrier = threading.Barrier(9)
        for _ in range(8):
            pool.submit(Job(lambda: barrier.wait(10)))
        barrier.wait(10)
        pool.close()

    def test_many_submitters(self):
        """Jobs submitted from many threads at once all run."""
        pool = ThreadPool(3, "test-pool")
        count, lock, done = [0], threading.Lock(), threading.Event()

        def job():
            with lock:
                count[0] += 1
                if count[0] == 2000:
                    done.set()

        submitters = [
            threading.Thread(target=lambda: [pool.submit(Job(job)) for _ in range(200)])
            for _ in range(10)
        ]
        for thread in submitters:
            thread.start()
        assert done.wait(20)
        for thread in submitters:
            thread.join()
        pool.close()

    def test_close_lets_jobs_end(self):
        """What was submitted before close() still runs; then the threads end."""
        pool = ThreadPool(2, "test-closing")
        ran = []
        gate = threading.Event()
        for number in range(20):
            pool.submit(Job(lambda number=number: (gate.wait(10), ran.append(number))))
        pool.close()
        gate.set()
        for thread in threading.enumerate():
            if thread.name == "test-closing":
                thread.join(10)
                assert not thread.is_alive()
        assert 20 == len(ran)
        with pytest.raises(RuntimeError, match="closed"):
            pool.submit(Job(lambda: None))

    def test_idle_threads_end(self, monkeypatch):
        """Threads that have nothing to do end, and new ones begin when there is work."""
        monkeypatch.setattr("aioretry._drivers.threads._IDLE_SECONDS", 0.01)
        pool = ThreadPool(2, "test-idle")
        for _ in range(5):
            done = threading.Event()
            pool.submit(Job(done.set))
            assert done.wait(10)
            for thread in threading.enumerate():
                if thread.name == "test-idle":
                    thread.join(10)
            assert "threads=0" in repr(pool)
        pool.close()

    def test_waking_at_the_last_moment(self, monkeypatch):
        """A thread that is woken while it gives up waiting neither loses the job nor itself."""
        monkeypatch.setattr("aioretry._drivers.threads._IDLE_SECONDS", 0.0005)
        pool = ThreadPool(2, "test-pool")
        for number in range(3000):
            done = threading.Event()
            pool.submit(Job(done.set))
            assert done.wait(10), (number, pool)
            threading.Event().wait(0.0001 * (number % 12))
        pool.close()

    def test_closing_at_the_last_moment(self):
        """A job that was taken before close() runs, whatever its thread is about to do."""
        for _ in range(300):
            pool = ThreadPool(1, "test-pool")
            first, second = threading.Event(), threading.Event()
            pool.submit(Job(first.set))
            first.wait(10)
            pool.submit(Job(second.set))
            pool.close()
            assert second.wait(10), pool

    def test_without_threads_to_be_had(self, monkeypatch):
        """If no thread can be started the job is refused, and later ones are not held up by it."""
        pool = ThreadPool(2, "test-pool")

        def refuse(thread):
            raise RuntimeError("can't start new thread")

        ran = []
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                pool.submit(Job(lambda: ran.append("refused")))
        done = threading.Event()
        pool.submit(Job(done.set))
        assert done.wait(10)
        assert [] == ran
        pool.close()

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_a_job_that_raises_ends_no_thread(self):
        """Whatever a job raises, its thread takes the next one."""
        pool = ThreadPool(1, "test-pool")

        def fail():
            raise SystemExit

        done = threading.Event()
        for _ in range(3):
            pool.submit(Job(fail))
        pool.submit(Job(done.set))
        assert done.wait(10)
        pool.close()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_has_its_own(self):
        """A forked child does not wait for threads that only its parent has."""
        pool = ThreadPool(1, "test-fork")
        done = threading.Event()
        pool.submit(Job(done.set))
        assert done.wait(10)
        child = os.fork()
        if not child:
            again = threading.Event()
            pool.submit(Job(again.set))
            os._exit(0 if again.wait(10) else 1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        pool.close()


class Held(Job):
    """A job that runs until it is told to end."""

    def __init__(self):
        super().__init__(self.hold)
        self.began = threading.Event()
        self.gate = threading.Event()

    def hold(self):
        self.began.set()
        assert self.gate.wait(30)


def held_by(pool, count):
    """Jobs that run in a pool, each on a thread of its own."""
    jobs = [Held() for _ in range(count)]
    for job in jobs:
        pool.submit(job)
    for job in jobs:
        assert job.began.wait(10)
    return jobs


def wait_for_threads(name, count):
    """Wait until a pool has no more than so many threads."""
    wait_until(lambda: count >= sum(thread.name == name for thread in threading.enumerate()))


def wait_until(condition):
    """Wait until something holds."""
    ends = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


class TestAbandoning:
    def test_frees_its_place(self):
        """What waited for the place of an abandoned job runs; the surplus thread ends after."""
        pool = ThreadPool(1, "test-freed")
        (old,) = held_by(pool, 1)
        new = Held()
        pool.submit(new)
        assert ThreadCounts(threads=1, idle=0, queued=1, abandoned=0) == pool.counts()
        assert pool.abandon(old)
        assert new.began.wait(10)
        assert ThreadCounts(threads=2, idle=0, queued=0, abandoned=1) == pool.counts()
        old.gate.set()
        wait_for_threads("test-freed", 1)
        assert ThreadCounts(threads=1, idle=0, queued=0, abandoned=0) == pool.counts()
        new.gate.set()
        held_by(pool, 1)[0].gate.set()
        assert 1 == pool.counts().threads
        pool.close()
        wait_for_threads("test-freed", 0)

    def test_if_nobody_took_its_place(self):
        """Its thread goes on with other jobs when it has ended."""
        pool = ThreadPool(1, "test-untaken")
        (job,) = held_by(pool, 1)
        assert pool.abandon(job)
        job.gate.set()
        wait_until(lambda: 1 == pool.counts().idle)
        held_by(pool, 1)[0].gate.set()
        assert (1, 0) == (pool.counts().threads, pool.counts().abandoned)
        pool.close()
        wait_for_threads("test-untaken", 0)

    def test_is_bounded(self):
        """As many jobs may be abandoned as there are places; then a place has to come back."""
        pool = ThreadPool(2, "test-bounded")
        first = held_by(pool, 2)
        assert [True, True] == [pool.abandon(job) for job in first]
        second = held_by(pool, 2)
        assert [False, False] == [pool.abandon(job) for job in second]
        assert ThreadCounts(threads=4, idle=0, queued=0, abandoned=2) == pool.counts()
        first[0].gate.set()
        wait_for_threads("test-bounded", 3)
        assert [True, False] == [pool.abandon(job) for job in second]
        for job in first + second:
            job.gate.set()
        pool.close()
        wait_for_threads("test-bounded", 0)
        assert 0 == pool.counts().abandoned

    def test_only_what_runs(self):
        """A job that is queued, has ended or was abandoned already is not abandoned."""
        pool = ThreadPool(1, "test-running")
        (job,) = held_by(pool, 1)
        queued = Held()
        pool.submit(queued)
        assert not pool.abandon(queued)
        assert pool.abandon(job)
        assert not pool.abandon(job)
        for one in (job, queued):
            one.gate.set()
        pool.close()
        wait_for_threads("test-running", 0)
        assert [False, False, False] == [pool.abandon(one) for one in (job, queued, Held())]
        assert ThreadCounts(threads=0, idle=0, queued=0, abandoned=0) == pool.counts()

    def test_closing_meanwhile(self):
        """close() waits for no abandoned job; what is queued behind one runs."""
        pool = ThreadPool(1, "test-closed")
        (job,) = held_by(pool, 1)
        queued = Held()
        pool.submit(queued)
        pool.close()
        assert pool.abandon(job)
        assert queued.began.wait(10)
        for one in (job, queued):
            one.gate.set()
        wait_for_threads("test-closed", 0)

    def test_without_another_thread_to_be_had(self, monkeypatch):
        """What is queued then runs when the abandoned job has ended after all."""
        pool = ThreadPool(1, "test-pool")
        (job,) = held_by(pool, 1)
        queued = Held()
        pool.submit(queued)

        def refuse(thread):
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert pool.abandon(job)
        assert not queued.began.is_set()
        job.gate.set()
        assert queued.began.wait(10)
        queued.gate.set()
        pool.close()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_has_none(self):
        """A child begins with a pool of its own, even if a thread held the lock at that moment."""
        pool = ThreadPool(1, "test-fork")
        (job,) = held_by(pool, 1)
        assert pool.abandon(job)
        with pool._lock:
            child = os.fork()
            if not child:
                signal.alarm(30)
                inherited = pool.abandon(job)
                (own,) = held_by(pool, 1)
                pool.close()
                own.gate.set()
                os._exit(0 if not inherited and not pool.counts().abandoned else 1)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert 1 == pool.counts().abandoned
        job.gate.set()
        pool.close()
