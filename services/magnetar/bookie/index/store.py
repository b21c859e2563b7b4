"""The ordered key-value store of the index: its interface, and RocksDB.

Writes are not synced: only after `sync` do they survive a power cut. A failed write or sync of
RocksDB may reopen the store, which loses the writes since the last sync. `generation` counts the
reopenings: if it is the same before the first write and after `sync`, all writes between are
durable. `Index.change` checks that; all writes go through it.

RocksDB runs without its write-ahead log. The journal protects the same writes until the checkpoint,
and RocksDB silently cuts a damaged WAL when it opens, but reports a damaged table file. `sync`
therefore flushes the memtable (a file of a few KiB, one fsync, without the GIL).

RocksDB's `write` and iterators hold the GIL (measured: about 0.4 µs per put, 2.5 µs per seek), so
batches are small: one record per block of entries.
"""

import errno
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DbClosedError,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from magnetar.bookie.api import EntryCorrupt
from magnetar.core.log import get_logger
from magnetar.core.units import KIB, MIB

BLOCK_CACHE_BYTES: Final = 8 * MIB
WRITE_BUFFER_BYTES: Final = 4 * MIB
ARENA_BLOCK_BYTES: Final = 64 * KIB
OPEN_FILES_MAX: Final = 256
INFO_LOG_BYTES_MAX: Final = 1 * MIB
INFO_LOGS_KEPT: Final = 2

log = get_logger("magnetar.bookie.index.store")

_MEMORY_PROPERTIES: Final = (
    "rocksdb.block-cache-usage",
    "rocksdb.cur-size-all-mem-tables",
    "rocksdb.estimate-table-readers-mem",
)
_FILE_IN_TEXT: Final = re.compile(r"(/\S+\.(?:sst|log)|/\S+/MANIFEST-\d+)")
_OFFSET_IN_TEXT: Final = re.compile(r"offset (\d+)")

Pair = tuple[bytes, bytes]


class IndexDamaged(EntryCorrupt):
    """A checksum or the structure of the store is bad; the text names the file."""


class Batch:
    """Writes that are applied atomically; a value of None deletes its key."""

    __slots__ = ("ranges", "writes")

    def __init__(self) -> None:
        self.writes: dict[bytes, bytes | None] = {}
        self.ranges: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.writes[key] = value

    def delete(self, key: bytes) -> None:
        self.writes[key] = None

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Deletes the keys in [begin, end) that existed before this batch."""
        self.ranges.append((begin, end))


class IndexStore(Protocol):
    """An ordered key-value store with atomic batches and explicit syncs."""

    def get(self, key: bytes) -> bytes | None: ...

    def last_at_or_before(self, key: bytes) -> Pair | None:
        """Returns the pair with the greatest key up to `key`."""

    def scan(self, begin: bytes, end: bytes) -> Iterator[Pair]:
        """Yields the pairs in [begin, end) in order. The store may be written meanwhile."""

    def write(self, batch: Batch) -> None:
        """Applies the batch atomically."""

    @property
    def generation(self) -> int:
        """How often the store was reopened, which loses unsynced writes."""

    def sync(self) -> None:
        """Makes all writes so far durable. After a failure, the writes since the last sync may be
        lost and have to be repeated."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of its caches and buffers."""

    def close(self) -> None: ...


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(10, False)
    table.set_checksum_type(ChecksumType.crc32c())
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_arena_block_size(ARENA_BLOCK_BYTES)
    options.set_max_background_jobs(2)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_max_log_file_size(INFO_LOG_BYTES_MAX)
    options.set_keep_log_file_num(INFO_LOGS_KEPT)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    return options


class RocksIndexStore:
    """An index store in RocksDB, through rocksdict."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        self._write_options = WriteOptions()
        # rocksdict's stub has a method where the class has a property.
        self._write_options.disable_wal = True  # type: ignore[assignment, method-assign]
        self._restarting = threading.Lock()
        self._generation = 0
        self._db = self._open()

    @property
    def generation(self) -> int:
        return self._generation

    def _open(self) -> Rdict:
        access = AccessType.read_only(False) if self._read_only else AccessType.read_write()
        try:
            return Rdict(str(self._path), _options(), access_type=access)
        except Exception as error:
            raise self._failure(error) from error

    def get(self, key: bytes) -> bytes | None:
        while True:
            db = self._db
            try:
                value: bytes | None = db.get(key)
            except Exception as error:  # noqa: BLE001 - raised again
                self._retry_or_raise(db, error)
            else:
                return value

    def last_at_or_before(self, key: bytes) -> Pair | None:
        while True:
            db = self._db
            try:
                iterator = db.iter()
                iterator.seek_for_prev(key)
                if iterator.valid():
                    return iterator.key(), iterator.value()
                iterator.status()
            except Exception as error:  # noqa: BLE001 - raised again
                self._retry_or_raise(db, error)
            else:
                return None

    def scan(self, begin: bytes, end: bytes) -> Iterator[Pair]:
        while True:
            db = self._db
            try:
                options = ReadOptions()
                options.set_iterate_upper_bound(end)
                iterator = db.iter(options)
                iterator.seek(begin)
                while iterator.valid():
                    key = iterator.key()
                    yield key, iterator.value()
                    begin = key + b"\0"
                    iterator.next()
                iterator.status()
            except Exception as error:  # noqa: BLE001 - raised again
                self._retry_or_raise(db, error)
            else:
                return

    def write(self, batch: Batch) -> None:
        writes = WriteBatch(raw_mode=True)
        for begin, end in batch.ranges:
            writes.delete_range(begin, end)
        for key, value in batch.writes.items():
            if value is None:
                writes.delete(key)
            else:
                writes.put(key, value)
        try:
            self._db.write(writes, self._write_options)
        except Exception as error:
            failure = self._failure(error)
            if isinstance(failure, IndexDamaged):
                self._restart()
            raise failure from error

    def sync(self) -> None:
        try:
            self._db.flush(True)
        except Exception as error:
            failure = self._failure(error)
            if isinstance(failure, IndexDamaged):
                self._restart()
            raise failure from error

    @property
    def memory_bytes(self) -> int:
        """Bytes of the block cache, the memtables and the open tables; 0 while it is closed."""
        try:
            return sum(self._db.property_int_value(name) or 0 for name in _MEMORY_PROPERTIES)
        except Exception:  # noqa: BLE001 - `write` or `sync` reports the restart
            return 0

    def close(self) -> None:
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001 - the journal has the unsynced writes
            log.warning("index not closed cleanly", path=str(self._path), error=str(error))

    def _restart(self) -> None:
        """Reopens the database, as RocksDB refuses all writes after most failed ones.

        Not after a full disk: RocksDB recovers from that itself, and needs room to open. The
        caller holds the lock of `Index`, so that no other thread writes meanwhile.
        """
        with self._restarting:
            self._generation += 1
            try:
                self._db.close()
            except Exception as error:  # noqa: BLE001 - reopened below
                log.warning("index not closed cleanly", path=str(self._path), error=str(error))
            try:
                self._db = self._open()
            except Exception as error:  # noqa: BLE001 - the next failed write tries again
                log.error("index not reopened", path=str(self._path), error=str(error))
            else:
                log.warning("index reopened", path=str(self._path))

    def _retry_or_raise(self, db: Rdict, error: Exception) -> None:
        """Returns if a restart interrupted the read, which the caller then repeats; else raises."""
        if isinstance(error, DbClosedError) or "mutably borrowed" in str(error):
            with self._restarting:
                if self._db is not db:
                    return
        raise self._failure(error) from error

    def _failure(self, error: Exception) -> Exception:
        """Maps an error of the library to OSError (full disk) or IndexDamaged."""
        text = str(error)
        if "No space left" in text:
            return OSError(errno.ENOSPC, text, str(self._path))
        named = _FILE_IN_TEXT.search(text)
        path = named[1] if named else str(self._path)
        offset = _OFFSET_IN_TEXT.search(text)
        return IndexDamaged(f"index {self._path}: {text}", path, int(offset[1]) if offset else 0)
