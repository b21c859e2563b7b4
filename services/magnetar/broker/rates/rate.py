"""A rate of messages and bytes, as policies set it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages and bytes per period; 0 or less means unlimited."""

    messages: int
    size_bytes: int
    period_s: int = 1
    relative: bool = False

    @property
    def limits(self) -> bool:
        """Whether messages or bytes are limited."""
        return self.messages > 0 or self.size_bytes > 0


def dispatch_rate(value: Mapping[str, Any] | None) -> Rate:
    """Reads a dispatch rate from its REST document."""
    document = value or {}
    return Rate(
        document.get("dispatchThrottlingRateInMsg", -1),
        document.get("dispatchThrottlingRateInByte", -1),
        max(1, document.get("ratePeriodInSecond", 1)),
        bool(document.get("relativeToPublishRate", False)),
    )
