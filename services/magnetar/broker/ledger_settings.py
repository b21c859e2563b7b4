"""The managed ledgers' settings, from a broker's."""

from magnetar.broker.settings import BrokerSettings
from magnetar.managed_ledger.settings import ManagedLedgerSettings


def managed_ledger_settings(settings: BrokerSettings) -> ManagedLedgerSettings:
    """What a broker's managed ledgers are opened with."""
    return ManagedLedgerSettings(
        rollover_entries_max=settings.ledger_entries_max,
        rollover_bytes_max=settings.ledger_size_max_mb << 20,
        rollover_ms_min=settings.ledger_rollover_min_minutes * 60_000,
        rollover_ms_max=settings.ledger_rollover_max_minutes * 60_000,
        cache_bytes_max=settings.cache_size_mb << 20,
        cold_cache_bytes_max=settings.cold_cache_size_mb << 20,
    )
