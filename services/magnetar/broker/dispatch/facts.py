"""What a dispatcher knows about entries that it has not delivered, for diagnosis.

Values only, taken at one moment; `broker.explain` judges them.
"""

from dataclasses import dataclass

from magnetar.broker.dispatch.reader import ReadFailure
from magnetar.core.ids import Position


@dataclass(frozen=True, slots=True)
class HashFacts:
    """A key hash of a Key_Shared subscription whose messages wait."""

    sticky_hash: int
    head: Position | None
    """The first message that waits; None if none does."""
    waiting: int
    owner: str | None
    """The consumer that the hash belongs to now."""
    holder: str | None = None
    """The former owner, while the hash drains."""
    held_entries: int = 0
    since_ms: int = 0
    """When it began to drain."""
    blocked_attempts: int = 0


@dataclass(slots=True)
class DispatchFacts:
    """The state of a dispatcher. A dispatcher of one active consumer has no unacked counts."""

    active: str | None = None
    """The active consumer of a Failover or Exclusive subscription."""
    switching: bool = False
    """Whether the active consumer gets entries only after a delay."""
    buffered: int = 0
    reading: bool = False
    turn_due: bool = False
    """Whether it has used up its turn and continues in the loop's next one."""
    waiting: int = 0
    """Entries that were read or returned, and wait for delivery."""
    parked: int = 0
    """Those of them that are chunks and wait for the consumer of the first chunk."""
    unacked: int = 0
    blocked: bool = False
    hashes: tuple[HashFacts, ...] = ()
    look_ahead_max: int = 0
    failure: ReadFailure | None = None
