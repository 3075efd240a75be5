"""What is started and closed: in a block, or by hand."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from anyio import CancelScope, to_thread


class Running(ABC):
    """Something that runs in a `with` or an `async with` block.

    A block that ends without an exception ends with a look at what happened in it.
    """

    @abstractmethod
    def start(self) -> None:
        """Start it; blocks."""

    @abstractmethod
    def close(self) -> None:
        """End it; blocks; fine to repeat."""

    @abstractmethod
    def verify(self) -> None:
        """Raise an error if what was declared did not happen."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        verify_after(exc, self.verify)

    async def __aenter__(self) -> Self:
        try:
            await to_thread.run_sync(self.start)
        except Exception:
            raise  # of the start itself, which has cleaned up, or ran already
        except BaseException:
            with CancelScope(shield=True):
                await to_thread.run_sync(self.close)
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with CancelScope(shield=True):
            await to_thread.run_sync(self.close)
        verify_after(exc, self.verify)


def verify_after(exc: BaseException | None, verify: Callable[[], None]) -> None:
    """Look at what happened in a block.

    Args:
        exc: what the block ended with; what is found is noted on it then, as it may be why.
        verify: raises what is found.
    """
    if exc is None:
        verify()
        return
    try:
        verify()
    except Exception as found:  # noqa: BLE001  # the block's own error is the one to raise
        cause = "" if found.__cause__ is None else f": {found.__cause__!r}"
        exc.add_note(f"besides: {type(found).__name__}: {found}{cause}")
