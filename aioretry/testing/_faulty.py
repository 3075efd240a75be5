"""What runs behind proxies, which can do things wrong."""

from aioretry.testing._faults import Faults
from aioretry.testing._running import Running


class Faulty(Running):
    """Something that runs, with faults from its start on."""

    _faults: Faults | None = None

    @property
    def faults(self) -> Faults:
        """What can go wrong on the way to its servers, at its proxies.

        Raises:
            RuntimeError: it was not started, or has no proxies.
        """
        if self._faults is None:
            raise RuntimeError(self._why_no_faults())
        return self._faults

    def verify(self) -> None:
        """Raise an error if a fault was declared and never struck.

        Raises:
            FaultNotFiredError: a fault was declared and never struck.
        """
        if self._faults is not None:
            self._faults.verify()

    def _why_no_faults(self) -> str:
        return "it was not started: use it in a `with` or `async with` block"
