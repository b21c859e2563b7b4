"""How many ids deduplication keeps, for how long, and how often it stores them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeduplicationLimits:
    """The broker's settings of deduplication, the same for all topics."""

    producers_max: int
    """The ids of this many producer names are kept per topic, plus those of attached producers."""
    inactivity_s: float
    """The ids of a producer that is not attached are forgotten after this time."""
    snapshot_entries: int
    """A snapshot is taken after this many entries."""
