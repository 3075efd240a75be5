"""What is kept for each client, and until when."""

import gc
import weakref

from aioretry.idempotent._per_client import PerClient


class Client:
    """All are equal, and none can be hashed."""

    def __eq__(self, other):
        return isinstance(other, Client)

    __hash__ = None


def test_each_has_its_own():
    """Made once, whoever it is equal to."""
    kept, (one, other) = PerClient(lambda _: []), (Client(), Client())
    kept.of(one).append(1)
    assert ([1], []) == (kept.of(one), kept.of(other))
    assert [[1], []] == kept.all()


def test_a_client_that_is_gone():
    """Nothing is kept for it."""
    kept, client = PerClient(lambda _: []), Client()
    kept.of(client)
    del client
    assert [] == kept.all()


def test_a_recipe_that_is_gone():
    """Its client does not keep what it had."""
    kept, client = PerClient(lambda _: set()), Client()
    was = weakref.ref(kept.of(client))
    del kept
    gc.collect()
    assert was() is None
