"""Simulated runs: ``python -m tests.simulation``."""

import argparse
import hashlib
import itertools
import logging
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tests.simulation.plan import Plan
from tests.simulation.run import Run
from tests.simulation.shrink import shrunk

_BATCH = 16


def main() -> None:
    """Run what was asked for, and tell of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on")
    parser.add_argument("--hours", type=float, help="the same in hours")
    parser.add_argument("--runs", type=int, help="how many runs at most")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--until-found", action="store_true", help="end with the first finding")
    parser.add_argument("--replay", type=int, metavar="SEED", help="tell what happens in a run")
    parser.add_argument("--shrink", action="store_true", help="... in as few steps as will do")
    parser.add_argument("--digest", action="store_true", help="... as a hash")
    arguments = parser.parse_args()
    logging.disable()
    if arguments.replay is not None:
        _replay(arguments.replay, to_shrink=arguments.shrink, as_digest=arguments.digest)
    else:
        seconds = arguments.seconds if arguments.hours is None else arguments.hours * 3600
        raise SystemExit(_run_many(arguments, seconds))


def _replay(seed: int, *, to_shrink: bool, as_digest: bool) -> None:
    plan = Plan.of(seed)
    if to_shrink:
        plan = shrunk(plan)
    verdict = Run(plan).verdict()
    if as_digest:
        print(hashlib.sha256("\n".join(verdict.trace).encode()).hexdigest())
        return
    print(plan.network)
    face = "AsyncRetryClient" if plan.has_coroutines else "RetryClient"
    print(f"{face}: {plan.connections} connections, {plan.at_once} attempts at once")
    print(f"fail_fast_after={plan.fail_fast_after}, retry_budget={plan.retry_budget}")
    print(*verdict.trace, *verdict.wrong, sep="\n")


def _one(seed: int) -> tuple[int, int, dict[str, int], list[str]]:
    logging.disable()
    plan = Plan.of(seed)
    verdict = Run(plan).verdict()
    return seed, len(plan.operations), verdict.counts, verdict.wrong


def _run_many(arguments: argparse.Namespace, seconds: float) -> int:
    began, runs, operations, sent, faults, findings = time.monotonic(), 0, 0, 0, 0, 0
    seeds: Iterable[int] = itertools.count(arguments.first)
    if arguments.runs is not None:
        seeds = range(arguments.first, arguments.first + arguments.runs)
    with multiprocessing.Pool(arguments.jobs) as pool:
        for seed, count, counts, wrong in _results(pool, seeds, began + seconds):
            runs, operations = runs + 1, operations + count
            sent, faults = sent + counts["sent"], faults + counts["faults"]
            if wrong:
                findings += 1
                print(f"seed {seed}: {len(wrong)} wrong", *wrong[:5], sep="\n    ", flush=True)
                if arguments.until_found:
                    break
    took = time.monotonic() - began
    print(
        f"{findings} findings in {runs} runs, {operations} operations, {sent} commands, "
        f"{faults} faults, {took:.0f} s with {arguments.jobs} jobs: "
        f"{operations / took:.0f} operations and {faults / took:.0f} faults a second"
    )
    return 1 if findings else 0


def _results(
    pool: Any, seeds: Iterable[int], end: float
) -> Iterator[tuple[int, int, dict[str, int], list[str]]]:
    left = iter(seeds)
    while time.monotonic() < end and (batch := [*itertools.islice(left, _BATCH)]):
        yield from pool.map(_one, batch, chunksize=1)


if __name__ == "__main__":
    main()
