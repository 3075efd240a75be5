"""Mistakes that are put into the library on purpose: ``python -m tests.simulation.mutations``."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import aioretry
import tests

MOST = 30_000


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake."""

    name: str
    path: str
    right: str
    """What stands in the file, once."""

    wrong: str


MUTATIONS = [
    Mutation(
        "the first attempt of a retry gets a new number",
        "_retry/sessions.py",
        "        if self._number is None:\n            self._number",
        "        if True:\n            self._number",
    ),
    Mutation(
        "225 to a command that was sent before denies it",
        "_retry/verdict.py",
        "        if was_sent and _has_forgotten(attempt.error):",
        "        if False:",
    ),
    Mutation(
        "217 denies",
        "_retry/verdict.py",
        "    _INCOMPLETE_TRANSACTION_HISTORY,\n}",
        "}",
    ),
    Mutation(
        "a session with an open question is leased again",
        "_retry/sessions.py",
        "            self._is_given_back = not (self._in_doubt or self._is_asked)",
        "            self._is_given_back = True",
    ),
    Mutation(
        "an attempt under way is not among those that a share knows",
        "_retry/command_execution.py",
        "        under_way = [] if self.pending is None else [self.pending.so_far()]",
        "        under_way = []",
    ),
    Mutation(
        "an answer that comes late is not noted",
        "_retry/attempt.py",
        "        if noted is not None and noted.sent and record is not None:",
        "        if False:",
    ),
    Mutation(
        "an error after one that was sent denies it",
        "_retry/verdict.py",
        "                in_doubt.add(attempt.address)",
        "                in_doubt = {attempt.address}",
    ),
    Mutation(
        "what is not acknowledged by a majority counts as applied",
        "_commands/replies.py",
        '    return _concern_error_in(reply) if "writeConcernError" in reply else None',
        "    return None",
    ),
    Mutation(
        "no pause between breaks",
        "_retry/verdict.py",
        "        if self._breaks < 2 or failure.server_lost:",
        "        if True:",
    ),
    Mutation(
        "a retry after the server may have forgotten the id",
        "_retry/command_execution.py",
        "        return is_known and self.age(now) >= self.trusted_seconds",
        "        return False",
    ),
    Mutation(
        "a cancelled write is sent all the same",
        "_retry/attempt.py",
        "            record = self._note(sent=not self._token.revoke(), error=reason)",
        "            record = self._note(sent=self._token.is_sending, error=reason)",
    ),
    Mutation(
        "an attempt that was given up keeps its place",
        "_retry/attempt.py",
        "            if self._call is None or self._leaves_thread():\n",
        "            if False:\n",
    ),
    Mutation(
        "no retry",
        "_retry/verdict.py",
        "        if self.retries > self._limit():",
        "        if self.retries > 0:",
    ),
    Mutation(
        "a deadline does not end an attempt",
        "_retry/attempt.py",
        "execution.deadline.is_limited:\n            self._timer",
        "False:\n            self._timer",
    ),
    Mutation(
        "a lost server is not noticed",
        "_retry/pending.py",
        "            if now - since >= grace and (attempt.has_transaction_id or not is_alone):",
        "            if False:",
    ),
    Mutation(
        "refused statements are told as applied",
        "_writes/bulk_result.py",
        "            outcome = denied\n",
        "            outcome = applied\n",
    ),
    Mutation(
        "update_many has a number",
        "_drivers/port.py",
        "        return self.may_have_transaction_id and not self.command.holds_multi",
        "        return self.may_have_transaction_id",
    ),
    Mutation(
        "nothing has a number",
        "_drivers/port.py",
        "        return self.may_have_transaction_id and not self.command.holds_multi",
        "        return False",
    ),
    Mutation(
        "every error is retried",
        "_retry/verdict.py",
        "    if _has(failure.error, RETRYABLE_WRITE):",
        "    if True:",
    ),
    Mutation(
        "a router's last word denies all its sendings",
        "_retry/verdict.py",
        "    if is_sharded and _is_of_last_sending(error):",
        "    if False:",
    ),
    Mutation(
        "an insert that is cancelled in the air is told as not applied",
        "_writes/group/command.py",
        "        if index is None:\n            attach",
        "        if True:\n            attach",
    ),
    Mutation(
        "the session of a key is not ended",
        "_writes/keyed.py",
        "            self._source.end(answer)",
        "            pass",
    ),
    Mutation(
        "a write that may be forgotten is resolved",
        "_writes/resolve.py",
        "        if age >= trusted:",
        "        if False:",
    ),
    Mutation(
        "a write is resolved though its session has gone on",
        "_writes/resolve.py",
        "        if not is_latest or execution.lease.is_given_back:",
        "        if False:",
    ),
    Mutation(
        "an attempt keeps its place after its end",
        "_retry/attempt.py",
        "that the next attempt can take\n                self._places.remove(self)",
        "that the next attempt can take\n                pass",
    ),
    Mutation(
        "nobody who waits is let go on when a place is free",
        "_retry/pending.py",
        "        if self._lanes[False] or self._lanes[True]:",
        "        if False:",
    ),
]


def package_with(mutation: Mutation | None, folder: Path) -> None:
    """Copy the package and the tests' own code, with a mistake.

    Raises:
        ValueError: The place of the mistake is not there, or not the only one.
    """
    source = Path(aioretry.__file__).parent
    shutil.copytree(source, folder / "aioretry", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(Path(tests.__path__[0]))
    if mutation is None:
        return
    path = folder / "aioretry" / mutation.path
    text = path.read_text()
    if text.count(mutation.right) != 1:
        raise ValueError(
            f"{mutation.name}: {mutation.path} has its place {text.count(mutation.right)} times"
        )
    path.write_text(text.replace(mutation.right, mutation.wrong))


def operations_until_found(mutation: Mutation, most: int = MOST) -> tuple[int | None, str]:
    """Return after how many operations a mistake was found, and the first words about it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package_with(mutation, folder)
        command = [sys.executable, "-m", "tests.simulation", "--until-found"]
        command += ["--runs", str(most // 150), "--seconds", "600", "--jobs", "1"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    last = re.search(r"(\d+) findings in \d+ runs, (\d+) operations", done.stdout)
    if last is None:
        raise RuntimeError(done.stdout + done.stderr)
    lines = done.stdout.splitlines()
    return (int(last[2]), lines[1].strip()) if int(last[1]) else (None, "")


def main() -> None:
    """Put in each mistake, and tell how long it takes to find it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations")
    parser.add_argument("--only", default="", help="those whose names have this in them")
    parser.add_argument("--most", type=int, default=MOST, help="operations")
    arguments = parser.parse_args()
    for mutation in MUTATIONS:
        if arguments.only in mutation.name:
            count, words = operations_until_found(mutation, arguments.most)
            print(f"{'-' if count is None else count:>8}  {mutation.name}: {words}", flush=True)


if __name__ == "__main__":
    main()
