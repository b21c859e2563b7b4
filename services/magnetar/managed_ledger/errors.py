"""Errors of managed ledgers, in addition to those of their ledgers and metadata."""

from magnetar.core.errors import MetadataError, PersistenceError, ServiceNotReady


class ManagedLedgerFenced(PersistenceError):
    """Another owner wrote: this instance must never write again. Open a new one."""


class ManagedLedgerClosed(ServiceNotReady):
    """The managed ledger was closed here (unloaded or deleted)."""


class TooManyPendingBytes(ServiceNotReady):
    """Too many bytes wait in memory for a writable ledger."""


class LedgerIdRegression(MetadataError):
    """A ledger id is not above earlier ones, so positions would go back. Nothing was written."""


class CursorCorrupt(PersistenceError):
    """A cursor's stored state is unreadable; the message names cursor, ledger and entry."""


class CursorClosed(ServiceNotReady):
    """The cursor was closed or deleted."""
