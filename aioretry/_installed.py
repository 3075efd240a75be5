"""Whether this is the package that is imported: another distribution has the same import name.

Where both were installed, the `__init__` of either may be in the place of the other's.
"""

import sys
from typing import Final

_NAMES_OF_THE_OTHER: Final = frozenset(
    {"BeforeRetry", "RetryInfo", "RetryPolicy", "RetryPolicyStrategy", "retry"}
)
_BOTH: Final = "two distributions have the import name aioretry, and can't be installed together"
REPAIR: Final = "pip uninstall -y aioretry aioretry-mongo && pip install aioretry-mongo"


def require_ours() -> None:
    """Refuse to work below an `__init__` of another distribution, or below none.

    Raises:
        ImportError: Ours was written over, or removed with the other one.
    """
    if not hasattr(sys.modules["aioretry"], "__distribution__"):
        raise ImportError(
            f"aioretry/__init__.py is not that of aioretry-mongo; {_BOTH}; to repair it: {REPAIR}",
            name="aioretry",
        )


def missing(name: str) -> Exception:
    """Return the error for a name that the package does not have."""
    text = f"module 'aioretry' has no attribute {name!r}"
    if name not in _NAMES_OF_THE_OTHER:
        return AttributeError(text, name=name, obj=sys.modules["aioretry"])
    text = (
        f"{text}: the distribution aioretry has, and this is aioretry-mongo; {_BOTH}; to have the "
        "other one: pip uninstall -y aioretry aioretry-mongo && pip install aioretry"
    )
    return ImportError(text, name="aioretry")


def has_other() -> bool:
    """Tell whether the other distribution is installed as well."""
    from importlib import metadata  # noqa: PLC0415 - slow, and hardly ever needed

    return any(metadata.distributions(name="aioretry"))
