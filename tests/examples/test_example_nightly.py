"""A nightly job that several start, one of which is killed at each of its commands, or frozen."""

import asyncio
import signal

import pytest

from tests.examples.services import PATIENCE, running

JOB = "examples/nightly.py", "2026-11-27"
ACCOUNTS = 30
COMMANDS = ["find", "update", "insert", "commitTransaction"]


@pytest.fixture
def accounts(stored_database):
    """Accounts with a thousand each, which earn one a night."""
    stored_database.accounts.insert_many(
        [{"_id": f"a{n}", "balance": 1000} for n in range(ACCOUNTS)]
    )
    return stored_database


@pytest.fixture
def job(uri, tmp_path):
    """A function that starts it."""
    secrets = {"MONGODB_URI": uri, "BANK_SECRET": "secret" * 8}
    return lambda: running(tmp_path, *JOB, **secrets)


async def ended(process):
    """What it has printed, once it has ended well."""
    async with asyncio.timeout(PATIENCE):
        while not process.has_ended:
            await asyncio.sleep(0.02)
    assert process.output, process.log
    return process.output


def judge(database):
    """Each account has earned once, and there is one entry for each."""
    assert {1001} == {each["balance"] for each in database.accounts.find()}
    assert ACCOUNTS == database.accounts.count_documents({})
    assert ACCOUNTS == len(list(database.interest.find()))
    assert ACCOUNTS == len(database.interest.distinct("account"))


@pytest.mark.slow
async def test_by_three(accounts, job):
    """Who starts it at the same time, or once more, does nothing twice."""
    async with job() as one, job() as two, job() as three:
        outputs = [await ended(each) for each in (one, two, three)]
    judge(accounts)
    assert ACCOUNTS == sum(int(output.split()[0]) for output in outputs)
    async with job() as late:
        assert (await ended(late)).startswith(f"0 of {ACCOUNTS} ")
    judge(accounts)


@pytest.mark.sample(8)
@pytest.mark.long
@pytest.mark.usefixtures("short_transactions")
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
async def test_killed(command, applied, replica_set, accounts, job):
    """Killed before or after any of its commands: another one does the rest."""
    collection = (
        {} if command == "commitTransaction" else {"namespace": accounts.accounts.full_name}
    )
    if command == "insert":
        collection = {"namespace": accounts.interest.full_name}
    async with (
        job() as unlucky,
        replica_set.faults.hang(command, applied=applied, times=None, **collection) as hang,
    ):
        await hang.wait_until_fired(timeout=PATIENCE)
        await unlucky.kill()
    async with job() as other:
        await ended(other)
    judge(accounts)


@pytest.mark.long
@pytest.mark.usefixtures("short_transactions")
async def test_frozen(replica_set, accounts, job):
    """One that is frozen halfway, and thawed when another one has done all, does nothing more."""
    async with job() as frozen:
        async with replica_set.faults.hang("commitTransaction", times=None) as hang:
            await hang.wait_until_fired(timeout=PATIENCE)
            frozen.send(signal.SIGSTOP)
        async with job() as other:
            await ended(other)
        judge(accounts)
        frozen.send(signal.SIGCONT)
        await ended(frozen)
    judge(accounts)
