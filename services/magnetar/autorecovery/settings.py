"""What bounds autorecovery: delays, rates, attempts. Every field names its unit.

BookKeeper's names where it has one: lostBookieRecoveryDelay, openLedgerRereplicationGracePeriod,
auditorPeriodicBookieCheckInterval, auditorPeriodicCheckInterval.
"""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class AutorecoverySettings:
    """See the module's text."""

    lost_bookie_delay_s: float = 10.0
    """A bookie that is away for less (a restart) has lost nothing."""
    open_ledger_grace_s: float = 30.0
    """How long a living writer has to replace a lost bookie itself."""
    audit_interval_s: float = 86_400.0
    """Every record of every ledger is looked at this often, whatever happened."""
    check_interval_s: float = 604_800.0
    """Every copy of every ledger is read and compared this often; 0: never."""
    look_interval_s: float = 1.0
    """How often the set of bookies is compared with what was seen before; costs no request."""
    poll_interval_s: float = 30.0
    """How often a worker reads the list where no watch told it anything."""
    ledgers_at_once: int = 2
    """Ledgers that one node restores at the same time."""
    attempts_max: int = 8
    """Attempts at one ledger before it is parked until the set of bookies changes."""
    backoff_first_s: float = 5.0
    backoff_max_s: float = 300.0
    copy_bytes_per_s_max: int = 64 * MIB
    """Of one node; 0: as fast as it goes."""
    check_bytes_per_s_max: int = 32 * MIB
    """Of the periodic check, summed over the copies; 0: as fast as it goes."""
    bytes_in_flight_max: int = 16 * MIB
    """Of entries read and not yet stored, of one node."""
    group_bytes_max: int = MIB
    """Of entries that are read and added together."""
    request_timeout_s: float = 30.0
    """For one answer of one bookie."""
    stalled_after_s: float = 120.0
    """Work that was due for so long without any progress makes the node unhealthy."""

    def backoff_s(self, attempts: int) -> float:
        """The pause after that many failed attempts (1 or more), before jitter."""
        return float(min(self.backoff_max_s, self.backoff_first_s * 2 ** min(attempts - 1, 20)))
