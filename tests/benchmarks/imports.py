"""How long an import takes, beside that of the driver: each in an interpreter of its own, in turns.

The CPU time of the import alone, in a process that has done nothing else; the first round, which
may have to compile, does not count.
"""

import argparse
import json
import statistics
import subprocess
import sys

from rich.console import Console
from rich.table import Table

MOTOR, PYMONGO = "import motor.motor_asyncio", "from pymongo import AsyncMongoClient"
PAIRS = {
    "import aioretry": MOTOR,
    "from aioretry import RetryClient": MOTOR,
    "from aioretry.pymongo import AsyncRetryClient": PYMONGO,
}
_TIMED = """
import time, warnings
warnings.simplefilter("ignore")
began = time.process_time()
{statement}
print(time.process_time() - began)
"""


def measure(statement: str) -> float:
    """Run an import in a new interpreter; return its CPU time in milliseconds."""
    command = [sys.executable, "-c", _TIMED.format(statement=statement)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ended.stdout) * 1e3


def compare(rounds: int) -> dict[str, list[float]]:
    """Run all rounds; return the times of each import."""
    times: dict[str, list[float]] = {name: [] for name in dict.fromkeys([*PAIRS, *PAIRS.values()])}
    for number in range(rounds + 1):
        for name, found in times.items():
            time = measure(name)
            if number:
                found.append(time)
    return times


def main() -> None:
    """Measure what the command line says, and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.imports", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="that count; one more comes first")
    parser.add_argument("--json", action="store_true", help="print data and no table")
    options = parser.parse_args()
    medians = {name: statistics.median(found) for name, found in compare(options.rounds).items()}
    if options.json:
        sys.stdout.write(json.dumps(medians, indent=2) + "\n")
        return
    table = Table("import", "ms", "beside", "ms", "ratio")
    for name, beside in PAIRS.items():
        own, other = medians[name], medians[beside]
        table.add_row(name, f"{own:.0f}", beside, f"{other:.0f}", f"{own / other:.2f}")
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
