"""How ledgers are spread over bookies, and the timeouts of the ledger protocol.

Ensemble size, write quorum and ack quorum are BookKeeper's (managedLedgerDefaultEnsembleSize and
its neighbours): a ledger is on `ensemble_size` bookies, each entry on `write_quorum` of them, and
the entry is confirmed once `ack_quorum` have it on disk. A standalone uses `SINGLE`.
"""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
QUORUM_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Quorums:
    """The spread of one ledger, if it differs from the settings."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """Raises ValueError unless ensemble_size >= write_quorum >= ack_quorum >= 1."""

    ensemble_size: int = 2
    write_quorum: int = 2
    ack_quorum: int = 2
    stripe_entries: int = 256
    """Consecutive entries on the same bookies, if an ensemble has more bookies than an entry has
    copies.

    A group of adds is one frame per bookie as long as it lies in one stripe; the entries in flight
    (16 MiB of batches of 64 KiB) still use the whole ensemble.
    """
    add_timeout_s: float = 3.0
    """A bookie that has not answered an add by then is replaced."""
    read_timeout_s: float = 30.0
    """Deadline of one read, with all the copies that it tries."""
    speculative_read_delay_s: float = 0.25
    """A read that is not answered by then is also sent to the next copy; inf: only if it fails."""
    recovery_request_timeout_s: float = 3.0
    recovery_timeout_s: float = 60.0
    metadata_timeout_s: float = 20.0
    """How long a ledger record's write of unknown outcome is retried and looked up."""
    late_bytes_max: int = 64 * MIB
    """Bytes of confirmed entries that a process keeps for bookies that have not answered yet."""
    avoid_s: float = 30.0
    """A writer does not choose a bookie that failed it again before this time."""
    regrow_interval_s: float = 5.0
    """How often degraded open ledgers check for another bookie."""
    explicit_lac_interval_s: float = 1.0
    """The interval of scans for idle writers (`explicit_lac`).

    A writer that confirmed nothing between two scans sends its bookies its last-add-confirmed,
    which readers of an open ledger rely on.
    """
    changes_at_once_max: int = 32
    """Concurrent ensemble changes of idle ledgers."""
    count_entries: int = 20_000
    """Entries between two counts of a striped ledger's length on its record, for recovery."""

    @property
    def more_answers_s(self) -> float:
        """How long a question to several bookies waits for further answers after the first."""
        return min(self.speculative_read_delay_s, self.recovery_request_timeout_s)

    @property
    def quorums(self) -> Quorums:
        return Quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)

    def __post_init__(self) -> None:
        if not QUORUM_MAX >= self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise ValueError(
                f"ensemble_size {self.ensemble_size}, write_quorum {self.write_quorum} and "
                f"ack_quorum {self.ack_quorum}: each must be at least the next, from "
                f"{QUORUM_MAX} to 1"
            )
        for name in ("stripe_entries", "late_bytes_max", "changes_at_once_max", "count_entries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in (
            "add_timeout_s",
            "read_timeout_s",
            "speculative_read_delay_s",
            "recovery_request_timeout_s",
            "recovery_timeout_s",
            "metadata_timeout_s",
            "avoid_s",
            "regrow_interval_s",
            "explicit_lac_interval_s",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


SINGLE: Final = LedgerSettings(ensemble_size=1, write_quorum=1, ack_quorum=1)
"""The settings for one bookie in the same process."""
