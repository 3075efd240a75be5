"""What the package's plan is like: ``python -m tests.house``."""

import asyncio
from pathlib import Path

import aioretry
from tests.house.figures import House
from tests.house.spine import walk


def main() -> None:
    """Print a figure a line."""
    package = Path(aioretry.__file__).parent
    figures = House(package).figures() | asyncio.run(walk(package)).figures()
    for name, figure in figures.items():
        print(f"{figure:>8}  {name}")


if __name__ == "__main__":
    main()
