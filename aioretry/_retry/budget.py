"""What a client may spend on retries (client-backpressure, "Token Bucket"). Pure."""

_RETURN_RATE = 0.1


class RetryBudget:
    """Tokens, of which each retry costs one; what succeeds earns a tenth, and a retry's own back.

    Args:
        capacity: How many there are at most, and in the beginning.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = self._tokens = float(capacity)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._tokens:.1f} of {self._capacity:.0f}>"

    def take(self) -> bool:
        """Pay for a retry; return False if there is nothing left for it."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def earn(self, *, by_retry: bool) -> None:
        """Take note of an attempt that has succeeded."""
        earned = _RETURN_RATE + by_retry
        self._tokens = min(self._capacity, self._tokens + earned)
