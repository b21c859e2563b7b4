"""The index: the location of each entry in the entry logs, and the state of each ledger.

It has one record per block, not per entry. A *view* maps the entries [first, last] of a ledger to a
block: usually the whole block, or a part of it if a later block contains some of its entries again
(replay, re-replication). Views of one ledger are disjoint, so one reverse seek finds the only
candidate. Keys are big-endian, so that they sort numerically:

    "b" ledger first   → log u32, offset u64, length u32, last i64
    "l" ledger         → last add confirmed, last entry, length, deleted at (ms), flags
    "u" log ledger     → bytes of the ledger in the log (an estimate, for the collector)
    "d" ledger first   → damage found when the journal was replayed: last, offset, file
    "m" name           → format and incarnation; the limbo bound; the last flushed record

The flush and the collector write from separate threads: both within `change`, which holds the lock
from reading views to writing them.
"""

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from magnetar.bookie.api import ID_END
from magnetar.bookie.index.store import Batch, IndexDamaged, IndexStore
from magnetar.bookie.journal.checkpoint import Mark

VERSION: Final = 1

_BLOCK_KEY: Final = struct.Struct(">cqq")
_LEDGER_KEY: Final = struct.Struct(">cq")
_BLOCK: Final = struct.Struct("<IQIq")
_LEDGER: Final = struct.Struct("<qqqqB")
_DAMAGE: Final = struct.Struct("<qQ")
_USAGE: Final = struct.Struct("<q")
_LIMBO_KEY: Final = b"mlimbo"
_IDENTITY_KEY: Final = b"midentity"
_FLUSHED_KEY: Final = b"mflushed"

FLAG_FENCED: Final = 1
FLAG_DELETED: Final = 2
FLAG_EMPTIED: Final = 4
"""Its entries were dropped because other bookies hold them; only its fence is kept."""


class View(msgspec.Struct, gc=False, frozen=True):
    """The block that contains the entries `first` to `last` of a ledger, as far as they exist."""

    ledger_id: int
    first: int
    last: int
    log_id: int
    offset: int
    length: int


class LedgerRecord(msgspec.Struct, gc=False, frozen=True):
    """The state of a ledger as the index stores it."""

    last_add_confirmed: int
    last_entry: int
    length_bytes: int
    deleted_ms: int
    flags: int


class Damage(msgspec.Struct, gc=False, frozen=True):
    """Acknowledged entries whose journal record is damaged."""

    ledger_id: int
    first: int
    last: int
    file: str
    offset: int


def block_key(ledger_id: int, first: int) -> bytes:
    """Returns the key of a view."""
    return _BLOCK_KEY.pack(b"b", ledger_id, first)


def decode_view(key: bytes, value: bytes) -> View:
    """Decodes a view; raises struct.error or ValueError if its record is malformed."""
    _, ledger_id, first = _BLOCK_KEY.unpack(key)
    log_id, offset, length, last = _BLOCK.unpack(value)
    return View(ledger_id, first, last, log_id, offset, length)


def put_view(batch: Batch, view: View) -> None:
    """Puts a view."""
    value = _BLOCK.pack(view.log_id, view.offset, view.length, view.last)
    batch.put(block_key(view.ledger_id, view.first), value)


class Index:
    """Typed access to the index store; `change` guards its writes."""

    def __init__(self, store: IndexStore) -> None:
        self.store = store
        self._lock = threading.Lock()

    @contextmanager
    def change(self, *, sync: bool = True) -> Iterator[IndexStore]:
        """Yields the store to one writer at a time; with `sync`, its writes are durable on exit.

        Raises IndexDamaged if the store was reopened meanwhile: writes may be lost although each
        of them and the sync succeeded, and the writer has to repeat them all.
        """
        with self._lock:
            generation = self.store.generation
            yield self.store
            if sync:
                self.store.sync()
            if self.store.generation != generation:
                raise IndexDamaged("the index was reopened while it was written", "", 0)

    def find(self, ledger_id: int, entry_id: int) -> View | None:
        """Returns the view whose range contains the entry."""
        pair = self.store.last_at_or_before(block_key(ledger_id, entry_id))
        if pair is None or pair[0][:9] != _LEDGER_KEY.pack(b"b", ledger_id):
            return None
        view = decode_view(*pair)
        return view if view.last >= entry_id else None

    def find_from(self, ledger_id: int, entry_id: int, last: int) -> View | None:
        """Returns the view whose range contains the entry, or the next that begins by `last`."""
        view = self.find(ledger_id, entry_id)
        if view is not None:
            return view
        begin, end = block_key(ledger_id, entry_id), block_key(ledger_id, last) + b"\0"
        for pair in self.store.scan(begin, end):
            return decode_view(*pair)
        return None

    def views(self, ledger_id: int, first: int = 0, last: int = ID_END) -> Iterator[View]:
        """Yields the views that overlap the range, ascending."""
        view = self.find(ledger_id, first)
        if view is not None and view.first < first:
            yield view
        begin, end = block_key(ledger_id, first), block_key(ledger_id, last) + b"\0"
        for pair in self.store.scan(begin, end):
            yield decode_view(*pair)

    def all_views(self) -> Iterator[View]:
        """Yields all views, by ledger and entry."""
        for pair in self.store.scan(b"b", b"c"):
            yield decode_view(*pair)

    def cover(self, batch: Batch, new: View) -> list[View]:
        """Puts `new` and cuts the views that overlap it; returns the replaced ones."""
        replaced: list[View] = []
        for old in list(self.views(new.ledger_id, new.first, new.last)):
            batch.delete(block_key(old.ledger_id, old.first))
            if old.first >= new.first and old.last <= new.last:
                replaced.append(old)
            if old.first < new.first:
                put_view(batch, msgspec.structs.replace(old, last=new.first - 1))
            if old.last > new.last:
                put_view(batch, msgspec.structs.replace(old, first=new.last + 1))
        put_view(batch, new)
        return replaced

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        """Returns the ledger's record, None if it has none."""
        value = self.store.get(_LEDGER_KEY.pack(b"l", ledger_id))
        return LedgerRecord(*_LEDGER.unpack(value)) if value is not None else None

    def ledgers(self) -> Iterator[tuple[int, LedgerRecord]]:
        """Yields all ledgers, ascending; deleted ledgers as long as their tombstone is kept."""
        for key, value in self.store.scan(b"l", b"m"):
            yield _LEDGER_KEY.unpack(key)[1], LedgerRecord(*_LEDGER.unpack(value))

    def usage(self, log_id: int) -> Iterator[tuple[int, int]]:
        """Yields (ledger, bytes) of a log: estimates for the collector."""
        begin = _LEDGER_KEY.pack(b"u", log_id)
        for key, value in self.store.scan(begin, _LEDGER_KEY.pack(b"u", log_id + 1)):
            yield int.from_bytes(key[9:], "big"), _USAGE.unpack(value)[0]

    def add_usage(self, batch: Batch, log_id: int, ledger_id: int, change: int) -> None:
        """Changes the estimate of a ledger's bytes in a log."""
        key = _LEDGER_KEY.pack(b"u", log_id) + ledger_id.to_bytes(8, "big")
        value = batch.writes.get(key) or self.store.get(key)
        before = _USAGE.unpack(value)[0] if value is not None else 0
        batch.put(key, _USAGE.pack(max(before + change, 0)))

    def damages(self) -> Iterator[Damage]:
        """Yields all recorded damage."""
        for key, value in self.store.scan(b"d", b"e"):
            _, ledger_id, first = _BLOCK_KEY.unpack(key)
            last, offset = _DAMAGE.unpack_from(value)
            file = value[_DAMAGE.size :].decode("utf-8", "replace")
            yield Damage(ledger_id, first, last, file, offset)

    @property
    def limbo_through(self) -> int:
        """Absent entries of ledgers up to this id may have been lost; -1 if none were."""
        value = self.store.get(_LIMBO_KEY)
        return _USAGE.unpack(value)[0] if value is not None else -1

    @property
    def identity(self) -> bytes | None:
        """The format version and incarnation of the bookie that the index belongs to."""
        return self.store.get(_IDENTITY_KEY)

    @property
    def flushed_seq(self) -> int | None:
        """The last journal record that the index contains; None before the first flush.

        Each flush records it in the batch with its views. See `lost_since`.
        """
        value = self.store.get(_FLUSHED_KEY)
        return _USAGE.unpack(value)[0] if value is not None else None

    def lost_since(self, mark: Mark) -> str:
        """Returns why the index is older than the checkpoint `mark`; empty if it is not.

        A flush syncs `flushed_seq` before it moves the checkpoint. A lower `flushed_seq` therefore
        means an older index: the disk lost synced writes, or an older copy was restored.
        """
        if not mark.index_notes:
            return ""
        flushed = self.flushed_seq
        if flushed is not None and flushed >= mark.position.seq:
            return ""
        end = "before all records" if flushed is None else f"at journal record {flushed}"
        return f"it ends {end}, and the checkpoint is at {mark.position.seq}"


def put_ledger(batch: Batch, ledger_id: int, record: LedgerRecord) -> None:
    """Puts a ledger's record."""
    value = _LEDGER.pack(
        record.last_add_confirmed,
        record.last_entry,
        record.length_bytes,
        record.deleted_ms,
        record.flags,
    )
    batch.put(_LEDGER_KEY.pack(b"l", ledger_id), value)


def drop_ledger(batch: Batch, ledger_id: int) -> None:
    """Deletes a ledger's record."""
    batch.delete(_LEDGER_KEY.pack(b"l", ledger_id))


def drop_entries(batch: Batch, ledger_id: int) -> None:
    """Deletes a ledger's views and damage."""
    for prefix in (b"b", b"d"):
        batch.delete_range(
            _LEDGER_KEY.pack(prefix, ledger_id), _LEDGER_KEY.pack(prefix, ledger_id + 1)
        )


def drop_usage(batch: Batch, log_id: int) -> None:
    """Deletes a log's estimates."""
    batch.delete_range(_LEDGER_KEY.pack(b"u", log_id), _LEDGER_KEY.pack(b"u", log_id + 1))


def put_damage(batch: Batch, damage: Damage) -> None:
    """Puts a damage record."""
    value = _DAMAGE.pack(damage.last, damage.offset) + damage.file.encode()
    batch.put(_BLOCK_KEY.pack(b"d", damage.ledger_id, damage.first), value)


def put_limbo(batch: Batch, through: int) -> None:
    """Puts the limbo bound."""
    batch.put(_LIMBO_KEY, _USAGE.pack(through))


def put_identity(batch: Batch, incarnation: bytes) -> None:
    """Puts the identity that ties the index to its bookie."""
    batch.put(_IDENTITY_KEY, bytes([VERSION]) + incarnation)


def put_flushed(batch: Batch, seq: int) -> None:
    """Puts the last journal record that the index contains with this batch."""
    batch.put(_FLUSHED_KEY, _USAGE.pack(seq))
