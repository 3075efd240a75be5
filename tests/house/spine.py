"""What an update runs through, once everything is warm."""

import sys
from pathlib import Path
from types import CodeType, FrameType

from aioretry import RetryClient
from aioretry.testing import ReplicaSet

WARM = 20


class Spine:
    """The package's own functions that were called, down and up again.

    Args:
        package: The package's folder.
    """

    def __init__(self, package: Path) -> None:
        self._package = str(package)
        self.called: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, given: object) -> None:
        """Be told by the interpreter."""
        del given
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._package):
            self.called.add(code)

    def figures(self) -> dict[str, object]:
        """How many functions, and in how many files."""
        return {
            "functions on the way of an update": len(self.called),
            "files on the way of an update": len({code.co_filename for code in self.called}),
        }


async def walk(package: Path) -> Spine:
    """Update a document on a real server, and see what is called.

    Args:
        package: The package's folder.
    """
    spine = Spine(package)
    async with ReplicaSet(members=1) as servers, RetryClient(servers.uri) as client:
        for _ in range(WARM):
            await client.house.walks.update_one({"_id": 1}, {"$inc": {"n": 1}}, upsert=True)
        sys.setprofile(spine)
        try:
            await client.house.walks.update_one({"_id": 1}, {"$inc": {"n": 1}})
        finally:
            sys.setprofile(None)
    return spine
