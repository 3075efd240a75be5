"""What is started and closed: in a block, or by hand."""

from abc import ABC, abstractmethod
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
        if exc is None:
            self.verify()

    async def __aenter__(self) -> Self:
        try:
            await to_thread.run_sync(self.start)
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
        if exc is None:
            self.verify()
