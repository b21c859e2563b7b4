"""The progress of a run of the demo, for its display and its summary."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Progress:
    """Counters and times of a run."""

    total: int
    sent: int = 0
    acked: int = 0
    consumers: int = 0
    consumers_joined: int = 0
    consumers_left: int = 0
    consumers_killed: int = 0
    server_kills: int = 0
    server_up: bool = True
    restart_s: list[float] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    started: float = 0.0
    """When the first message was sent; the next two count from it."""
    receipted_all_s: float = 0.0
    seen_all_s: float = 0.0
