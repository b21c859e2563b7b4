"""What can go wrong with a managed ledger, besides what its ledgers and metadata raise."""

from magnetar.core.errors import MetadataError, PersistenceError, ServiceNotReady


class ManagedLedgerFenced(PersistenceError):
    """Another owner wrote since: this instance must never write again. Open it anew."""


class ManagedLedgerClosed(ServiceNotReady):
    """The managed ledger was closed here (unloaded or deleted)."""


class TooManyPendingBytes(ServiceNotReady):
    """More is waiting for a writable ledger than may be held in memory."""


class LedgerIdRegression(MetadataError):
    """A ledger id is not above those before it: positions would go back. Nothing was written."""


class CursorCorrupt(PersistenceError):
    """A cursor's stored state cannot be read; the message names cursor, ledger and entry."""


class CursorClosed(ServiceNotReady):
    """The cursor was closed or deleted."""
