"""Mistakes that are put into the library on purpose: ``python -m tests.simulation.mutations``."""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aioretry
import tests
from tests.simulation.mistakes import MISTAKES, Mutation
from tests.simulation.mistakes_in_rules import MISTAKES_IN_RULES

MUTATIONS = [*MISTAKES, *MISTAKES_IN_RULES]


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


def operations_until_found(mutation: Mutation, most: int = 0) -> tuple[int | None, str]:
    """Return after how many operations a mistake was found, and the first words about it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package_with(mutation, folder)
        command = [sys.executable, "-m", "tests.simulation", "--until-found"]
        command += ["--runs", str((most or mutation.within) // 125)]
        command += ["--seconds", "1800", "--jobs", "1"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    last = re.search(r"(\d+) findings in \d+ runs, (\d+) operations", done.stdout)
    if last is None:
        raise RuntimeError(done.stdout + done.stderr)
    lines = done.stdout.splitlines()
    return (int(last[2]), lines[1].strip()) if int(last[1]) else (None, "")


def held(mutation: Mutation) -> bool:
    """Tell whether the tests that are to find a mistake do."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package_with(mutation, folder)
        for settings in ("pyproject.toml", "README.md", "docs"):
            (folder / settings).symlink_to(Path(tests.__path__[0]).parent / settings)
        command = [sys.executable, "-m", "pytest", "-q", "-x", *mutation.held_by.split()]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode == 1 and " failed" in done.stdout


def main() -> int:
    """Put in each mistake, and tell how long it takes to find it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations")
    parser.add_argument("--only", default="", help="those whose names have this in them")
    parser.add_argument("--most", type=int, default=0, help="operations; else each has its own")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [one for one in MUTATIONS if arguments.only in one.name]
    missed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for is_found, line in pool.map(lambda one: _try(one, arguments.most), chosen):
            missed += not is_found
            print(line, flush=True)
    print(f"{missed} of {len(chosen)} mistakes were missed")
    return min(missed, 1)


def _try(mutation: Mutation, most: int) -> tuple[bool, str]:
    if mutation.held_by:
        is_held = held(mutation)
        how = f"{'held' if is_held else 'NOT HELD'} by {mutation.held_by}: {mutation.why}"
        return is_held, f"{'-':>8}  {mutation.name}; {how}"
    count, words = operations_until_found(mutation, most)
    if count is None:
        return False, f"{'-':>8}  {mutation.name}: NOT FOUND"
    return True, f"{count:>8}  {mutation.name}: {words}"


if __name__ == "__main__":
    sys.exit(main())
