"""What the next primary meets after an outage, by a model: connections, writes, time to calm."""

import argparse
import sys
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from tests.benchmarks.storms.model import Behaviour, Server, storm

OURS = Behaviour("aioretry", retries=2, pause=0.2)
BEHAVIOURS = [
    OURS,
    replace(OURS, name="... jitter 1 s", jitter=1.0),
    replace(OURS, name="... jitter 10 s", jitter=10.0),
    replace(OURS, name="... 1 opened at once", opened_at_once=1),
    replace(OURS, name="... 10 opened at once", opened_at_once=10),
    replace(OURS, name="... maxPoolSize 2", most_at_once=2),
    replace(OURS, name="... coalesced()", travel_together=True),
    Behaviour("AsyncMongoClient", pause=0.0),
    Behaviour("Motor, 20 threads", most_at_once=20, pause=0.0),
]


def main() -> None:
    """Print a table for each number of clients."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.storms", description=__doc__)
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[10, 100, 1000, 10_000, 100_000], help="how many"
    )
    parser.add_argument("--writes", type=int, default=10, help="that wait in each client")
    parser.add_argument("--cores", type=int, default=8, help="of the primary")
    parser.add_argument("--opening", type=float, default=1.0, help="ms of a core, a connection")
    parser.add_argument("--writing", type=float, default=0.3, help="ms of a core, a write")
    given = parser.parse_args()
    server = Server(given.cores, given.opening / 1000, given.writing / 1000)
    console = Console(width=None if sys.stdout.isatty() else 130)
    for clients in given.clients:
        table = Table(title=f"{clients:,} clients with {given.writes} writes each")
        table.add_column("")
        for name in (
            "connections",
            "asked for a second",
            "writes a second",
            "queue, s",
            "calm after, s",
            "failed",
        ):
            table.add_column(name, justify="right")
        for how in BEHAVIOURS:
            seen = storm(clients, given.writes, server, how)
            table.add_row(
                how.name,
                f"{seen.opened:,}",
                f"{seen.most_asked:,.0f}",
                f"{seen.most_writes:,.0f}",
                f"{seen.longest_queue:.2f}",
                f"{seen.calm_after:.2f}",
                f"{seen.failed:,}",
            )
        console.print(table)


if __name__ == "__main__":
    main()
