"""The batches of a cursor after the first: only the server that has it can give them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pymongo.errors import ConnectionFailure

from aioretry import deadlines
from aioretry._drivers.port import DOUBT_AFTER, Address

_UNLIMITED = nullcontext()
_DIED = (
    "the cursor has ended with its server, between two batches: read again, from the last document "
    "on if they are sorted"
)


def time_to_find(address: Address | None) -> AbstractContextManager[object]:
    """Return a block that limits how long a server is looked for that can't be another one.

    Args:
        address: The server; None if any will do.
    """
    return _UNLIMITED if address is None else deadlines.limited(DOUBT_AFTER)


@contextmanager
def _told_of_its_end() -> Iterator[None]:
    try:
        yield
    except ConnectionFailure as exc:
        exc.add_note(_DIED)
        raise


def next_batch(address: Address | None) -> AbstractContextManager[object]:
    """Return a block that says what has become of a cursor if its server is lost.

    Args:
        address: The server that has the cursor; None if there is no cursor yet.
    """
    return _UNLIMITED if address is None else _told_of_its_end()
