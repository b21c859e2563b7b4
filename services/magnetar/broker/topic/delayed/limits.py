"""The limits of delayed delivery, by the broker's settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DelayLimits:
    """Limits of the time index of one topic."""

    strict: bool = False
    """Whether no message is delivered before its time; otherwise at most a tick earlier."""
    memory_moments: int = 50_000
    """Moments in memory after which they are stored as a run."""
