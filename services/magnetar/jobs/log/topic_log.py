"""The ledgers of one topic as values: where they are, where they end, what may be read of them."""

from dataclasses import dataclass

from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.jobs.log.topics import log_name
from magnetar.ledger.metadata import LedgerMetadata, LedgerState
from magnetar.managed_ledger.record import (
    LedgerItem,
    ManagedLedgerRecord,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.metadata.store import MetadataStore
from magnetar.offload.records import OffloadRecord


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """One ledger of a topic. `last_entry` is -1 if it has no readable entry yet.

    `created_ms` and `closed_ms` are in ms since 1970; `closed_ms` is 0 while the ledger may grow.
    With a `file`, `metadata` names no bookies: they may have deleted the ledger. `aborted` are the
    ids of the entries of aborted transactions, a serialized bitmap; empty for none.
    """

    metadata: LedgerMetadata
    last_entry: int
    size_bytes: int
    created_ms: int
    closed_ms: int
    file: OffloadRecord | None = None
    aborted: bytes = b""

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    def entry_bytes(self) -> float:
        """The average size of an entry."""
        return self.size_bytes / (self.last_entry + 1) if self.last_entry >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class TopicLog:
    """The ledgers of one topic or partition, oldest first.

    `trimmed_to` is the greatest position that was trimmed. `gone` are ledgers that two successive
    reads of the topic's record list, and that are neither on bookies nor in files. A log that does
    not exist was deleted, or never written. `horizon` is the first entry of an open transaction:
    nothing at or after it may be read. It is None without an open transaction.
    """

    topic: TopicName
    ledgers: tuple[LedgerSpan, ...]
    trimmed_to: Position
    gone: tuple[LedgerItem, ...] = ()
    exists: bool = True
    horizon: Position | None = None

    @property
    def end(self) -> Position:
        """The last entry that may be read, or the position up to which the log was trimmed."""
        for span in reversed(self.ledgers):
            last_entry = last_readable(span, self.horizon)
            if last_entry >= 0:
                return Position(span.ledger_id, last_entry)
        return self.trimmed_to


def last_readable(span: LedgerSpan, horizon: Position | None) -> int:
    """Returns the last entry of the ledger before the horizon; -1 if there is none."""
    if horizon is None or span.ledger_id < horizon.ledger_id:
        return span.last_entry
    if span.ledger_id > horizon.ledger_id:
        return -1
    return min(span.last_entry, horizon.entry_id - 1)


async def log_record(store: MetadataStore, topic: TopicName) -> ManagedLedgerRecord | None:
    """The record of a topic's managed ledger; None if there is none, or it is being deleted."""
    key = managed_ledger_key(log_name(topic))
    stored = await store.get(key)
    if stored is None:
        return None
    record = decode_managed_ledger(key, stored.value)
    return None if record.deleted else record


def cold_span(item: LedgerItem, file: OffloadRecord) -> LedgerSpan:
    """An offloaded ledger, described by its file."""
    last_entry = file.entries - 1
    metadata = LedgerMetadata(
        item.ledger_id,
        (),
        item.created_ms,
        state=LedgerState.CLOSED,
        last_entry=last_entry,
        length_bytes=file.length_bytes,
        closed_ms=item.closed_ms,
    )
    return LedgerSpan(
        metadata, last_entry, file.length_bytes, item.created_ms, item.closed_ms, file
    )
