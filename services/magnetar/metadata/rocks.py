"""The files of the embedded metadata store: a RocksDB and its record format. No event loop.

Key spaces by first byte: `k` + key → record; `l` + key → empty, for keys under a lease; `m` + name
→ the store's own numbers. A record is version (u8), CRC-32C (u32) of database key, version,
revision and value, revision (u64), value; big-endian. RocksDB has checksums of its blocks and logs,
but only this CRC detects a record under a wrong key or of another revision.

Buffers are small, because metadata is: an idle store costs about 2 MiB.
"""

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import google_crc32c
from rocksdict import (
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
)

from magnetar.core.errors import MetadataError
from magnetar.metadata.log_scan import check_logs
from magnetar.metadata.operations import Change
from magnetar.metadata.store import Record

FORMAT_VERSION: Final = 1
WRITE_BUFFER_BYTES: Final = 2 << 20
WRITE_BUFFERS_MAX: Final = 4
ARENA_BLOCK_BYTES: Final = 64 << 10
BLOCK_CACHE_BYTES: Final = 2 << 20
OPEN_FILES_MAX: Final = 64
MANIFEST_BYTES_MAX: Final = 1 << 20
LOG_FILE_BYTES_MAX: Final = 1 << 20
LOG_FILES_KEPT: Final = 2

_HEADER: Final = struct.Struct(">BIQ")
_CHECKED: Final = struct.Struct(">BQ")
_REVISION_KEY: Final = b"mrevision"
_AFTER_SLASH: Final = "0"
"""The character after `/`: the end of a folder's key range."""


class CorruptRecord(MetadataError):
    """A record on disk fails its checksum or cannot be read. The store never returns it."""

    def __init__(self, key: str, path: Path, what: str) -> None:
        super().__init__(f"metadata record {key} in {path} is corrupt: {what}")
        self.key, self.path = key, path


class StoreLocked(MetadataError):
    """Another process has the store open."""


def encode_record(key: bytes, revision: int, value: bytes) -> bytes:
    """Returns the stored form of a record under a database key."""
    crc = google_crc32c.value(key + _CHECKED.pack(FORMAT_VERSION, revision) + value)
    return _HEADER.pack(FORMAT_VERSION, crc, revision) + value


def decode_record(key: bytes, data: bytes, path: Path) -> tuple[int, bytes]:
    """Returns revision and value; raises CorruptRecord."""
    name = key[1:].decode(errors="replace")
    if len(data) < _HEADER.size:
        raise CorruptRecord(name, path, f"{len(data)} bytes are no record")
    version, crc, revision = _HEADER.unpack_from(data)
    value = data[_HEADER.size :]
    if google_crc32c.value(key + _CHECKED.pack(version, revision) + value) != crc:
        raise CorruptRecord(name, path, "checksum mismatch")
    if version != FORMAT_VERSION:
        raise CorruptRecord(name, path, f"format {version} is not known here")
    return revision, value


class RocksFiles:
    """The open database. Any thread may read, one thread writes."""

    def __init__(self, path: Path) -> None:
        """Opens or creates; raises StoreLocked, CorruptLog, CorruptRecord or MetadataError."""
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        check_logs(path)
        try:
            self._db = Rdict(str(path), _options())
        except Exception as error:
            if "LOCK" in str(error):
                raise StoreLocked(f"metadata store {path} is open in another process") from error
            raise MetadataError(f"metadata store {path} cannot be opened: {error}") from error
        try:
            self.revision = self._first_revision()
        except BaseException:
            self._db.close()
            raise

    def _first_revision(self) -> int:
        """Deletes the keys of a former process's leases; returns the persisted revision."""
        with self._reading("revision"):
            stored = self._db.get(_REVISION_KEY)
        if stored is None:
            if next(self._keys(b""), None) is not None:
                raise CorruptRecord("revision", self.path, "it is missing")
            return 0
        revision, _ = decode_record(_REVISION_KEY, stored, self.path)
        if leased := [key[1:].decode() for key in self._keys(b"l")]:
            revision += 1
            self.write([Change(key, None, None, was_leased=True) for key in leased], revision)
        return revision

    def get(self, key: str) -> Record | None:
        """Returns the record of a key. Raises CorruptRecord."""
        raw = b"k" + key.encode()
        try:  # not `_reading`: a context manager costs as much as the read
            data = self._db.get(raw)
        except Exception as error:
            raise CorruptRecord(key, self.path, str(error)) from error
        if data is None:
            return None
        revision, value = decode_record(raw, data, self.path)
        return Record(key, value, revision)

    def records(self, prefix: str) -> Iterator[Record]:
        """Yields the records below `prefix` in order, from a snapshot of this call."""
        rows = self._rows(b"k" + prefix.encode())
        return (self._record(rows) for _ in self._walk(rows, b"k" + prefix.encode(), prefix))

    def _record(self, rows: RdictIter) -> Record:
        raw: bytes = rows.key()
        revision, value = decode_record(raw, rows.value(), self.path)
        return Record(raw[1:].decode(), value, revision)

    def _rows(self, start: bytes) -> RdictIter:
        rows = self._db.iter()
        rows.seek(start)
        return rows

    def _walk(self, rows: RdictIter, start: bytes, name: str) -> Iterator[None]:
        """Steps `rows` over the keys that begin with `start`."""
        with self._reading(name):
            while rows.valid() and rows.key().startswith(start):
                yield
                rows.next()
            rows.status()

    def _keys(self, start: bytes) -> Iterator[bytes]:
        rows = self._rows(start)
        return (rows.key() for _ in self._walk(rows, start, start.decode()))

    def children(self, prefix: str, hidden: frozenset[str]) -> Iterator[str]:
        """Next segments below `prefix` of the keys not in `hidden`; one may come twice.

        It seeks past each folder, so that the cost is that of the children, not of all below.
        """
        start = b"k" + prefix.encode()
        rows = self._rows(start)
        skip = len(prefix)
        with self._reading(prefix):
            while rows.valid() and rows.key().startswith(start):
                key: str = rows.key()[1:].decode()
                segment, folder, _ = key[skip:].partition("/")
                if key in hidden:
                    rows.next()
                    continue
                yield segment
                if folder:
                    rows.seek(b"k" + (prefix + segment + _AFTER_SLASH).encode())
                else:
                    rows.next()
            rows.status()

    def write(self, changes: Iterable[Change], revision: int) -> None:
        """Makes `changes` and the newest revision durable, all or nothing."""
        batch = WriteBatch(raw_mode=True)
        for change in changes:
            name = change.key.encode()
            if change.after is None:
                batch.delete(b"k" + name)
            else:
                key = b"k" + name
                batch.put(key, encode_record(key, change.after.revision, change.after.value))
            if change.lease_id is not None:
                batch.put(b"l" + name, b"")
            elif change.was_leased:
                batch.delete(b"l" + name)
        if not len(batch):
            return
        batch.put(_REVISION_KEY, encode_record(_REVISION_KEY, revision, b""))
        self._db.write(batch)
        self._db.flush_wal(True)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Converts RocksDB's exceptions to CorruptRecord: it reports damage as plain Exception."""
        try:
            yield
        except (MetadataError, GeneratorExit):
            raise
        except Exception as error:
            raise CorruptRecord(name, self.path, str(error)) from error

    def close(self) -> None:
        self._db.close()


def _options() -> Options:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    blocks.set_checksum_type(ChecksumType.crc32c())
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    options.set_arena_block_size(ARENA_BLOCK_BYTES)
    options.set_max_background_jobs(1)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_max_manifest_file_size(MANIFEST_BYTES_MAX)
    options.set_max_log_file_size(LOG_FILE_BYTES_MAX)
    options.set_keep_log_file_num(LOG_FILES_KEPT)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_paranoid_checks(True)
    # A torn tail was never acknowledged; any other damage must prevent the open.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    return options
