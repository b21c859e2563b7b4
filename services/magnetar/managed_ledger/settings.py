"""The settings of managed ledgers, with Pulsar's defaults; a broker sets them from its own."""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class ManagedLedgerSettings:
    """Bounds of every managed ledger of a process.

    A ledger is rolled over at the next append once it is older than `rollover_ms_max`, or older
    than `rollover_ms_min` with `rollover_entries_max` entries or `rollover_bytes_max` bytes
    (managedLedgerMaxEntriesPerLedger and its neighbours). `cache_bytes_max` and
    `cold_cache_bytes_max` (data read from offloaded ledgers) are sums over all topics;
    `pending_bytes_max` bounds the groups of one topic that wait for a writable ledger; a group that
    is larger waits alone.
    """

    rollover_entries_max: int = 50_000
    rollover_bytes_max: int = 2048 * MIB
    rollover_ms_max: int = 240 * MINUTE_MS
    rollover_ms_min: int = 10 * MINUTE_MS
    cache_bytes_max: int = 64 * MIB
    pending_bytes_max: int = 64 * MIB
    cold_cache_bytes_max: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class Retention:
    """How long consumed ledgers are kept: the earlier limit counts, -1 is no limit (E1)."""

    size_bytes: int = 0
    time_ms: int = 0
