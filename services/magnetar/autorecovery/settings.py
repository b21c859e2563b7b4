"""The bounds of autorecovery: delays, rates, attempts. Every field names its unit.

The names follow BookKeeper's: lostBookieRecoveryDelay, openLedgerRereplicationGracePeriod,
auditorPeriodicBookieCheckInterval, auditorPeriodicCheckInterval.
"""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class AutorecoverySettings:
    """The bounds of one autorecovery node."""

    lost_bookie_delay_s: float = 10.0
    """A bookie that is away for less (a restart) does not count as gone."""
    open_ledger_grace_s: float = 30.0
    """The time for a living writer to replace a lost bookie itself."""
    audit_interval_s: float = 86_400.0
    """The records of all ledgers are audited at least this often."""
    check_interval_s: float = 604_800.0
    """Every copy of every ledger is read and compared this often; 0: never."""
    observe_interval_s: float = 1.0
    """How often the set of bookies is compared with the previous one; costs no request."""
    poll_interval_s: float = 30.0
    """How often a worker reads the list without an event of its watch."""
    ledgers_at_once: int = 2
    """Ledgers that one node restores concurrently."""
    attempts_max: int = 8
    """Attempts at one ledger before it is parked until the set of bookies changes."""
    backoff_first_s: float = 5.0
    backoff_max_s: float = 300.0
    copy_bytes_per_s_max: int = 64 * MIB
    """Rate of copying per node; 0: unlimited."""
    check_bytes_per_s_max: int = 32 * MIB
    """Rate of the periodic check, summed over the copies; 0: unlimited."""
    bytes_in_flight_max: int = 16 * MIB
    """Bytes of entries per node that are read and not yet stored."""
    group_bytes_max: int = MIB
    """Bytes of entries that are read and added together."""
    request_timeout_s: float = 30.0
    """Deadline of one answer of one bookie."""
    stalled_after_s: float = 120.0
    """A node without progress on due work for this long is unhealthy."""
