"""Verifies the checksums of RocksDB's log files (write-ahead log, MANIFEST) before it opens them.

RocksDB treats a record that extends past the end of its log as a torn write and drops it, so one
flipped bit in a length could silently drop acknowledged writes. This scan distinguishes the two:
the bytes of a torn record match no checksum at any length, while a whole record with a damaged
length matches at its true length. Format: RocksDB's wiki, "Write Ahead Log File Format": blocks of
32 KiB with records of crc32c (masked, of type and payload), length, type and payload; the unused
tail of a block is zero. The scan knows the four record types that our options produce.
"""

from pathlib import Path
from typing import Final

import google_crc32c

from magnetar.core.errors import MetadataError

BLOCK_BYTES: Final = 32_768
HEADER_BYTES: Final = 7
LOG_BYTES_MAX: Final = 1 << 30
"""Logs roll at a few MiB; the scan refuses to load a larger one."""

_FULL, _LAST = 1, 4
"""Types 1 to 4: a whole record, or its first, a middle or its last piece."""
_MASK_DELTA: Final = 0xA282EAD8


class CorruptLog(MetadataError):
    """A log of the metadata store is damaged at `path` and `offset`."""

    def __init__(self, path: Path, offset: int, what: str) -> None:
        super().__init__(f"metadata log {path} is corrupt at offset {offset}: {what}")
        self.path, self.offset = path, offset


def check_logs(directory: Path) -> None:
    """Raises CorruptLog for the first damaged record of any log in `directory`."""
    for path in sorted(directory.glob("*.log")) + sorted(directory.glob("MANIFEST-*")):
        if path.stat().st_size > LOG_BYTES_MAX:
            raise CorruptLog(path, LOG_BYTES_MAX, f"longer than {LOG_BYTES_MAX} bytes")
        check_log(path, path.read_bytes())


def check_log(path: Path, data: bytes) -> int:
    """Returns the end of the whole records (a torn write may follow); raises CorruptLog."""
    offset, size = 0, len(data)
    while offset < size:
        block_end = offset - offset % BLOCK_BYTES + BLOCK_BYTES
        left = block_end - offset
        if left < HEADER_BYTES:
            if any(data[offset:block_end]):
                raise CorruptLog(path, offset, "a block's padding is not zero")
            offset = block_end
            continue
        if size - offset < HEADER_BYTES:
            return offset
        length = int.from_bytes(data[offset + 4 : offset + 6], "little")
        kind = data[offset + 6]
        if kind == 0 and length == 0:
            if any(data[offset:block_end]):
                raise CorruptLog(path, offset, "a record without a type")
            offset = block_end
            continue
        if not _FULL <= kind <= _LAST:
            raise CorruptLog(path, offset, f"a record of unknown type {kind}")
        end = offset + HEADER_BYTES + length
        if end > block_end:
            raise CorruptLog(path, offset, f"a record of {length} bytes crosses its block")
        if end > size:
            if _fits_shorter(data, offset):
                raise CorruptLog(path, offset, f"a length of {length} is not the record's")
            return offset
        if _masked(google_crc32c.value(data[offset + 6 : end])) != _stored(data, offset):
            raise CorruptLog(path, offset, "checksum mismatch")
        offset = end
    return min(offset, size)


def _stored(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")


def _masked(crc: int) -> int:
    """Returns the stored form of a checksum: RocksDB rotates it and adds a constant."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _fits_shorter(data: bytes, offset: int) -> bool:
    """Whether the checksum matches a shorter record at the same offset."""
    wanted = _stored(data, offset)
    crc = google_crc32c.value(data[offset + 6 : offset + 7])
    for at in range(offset + HEADER_BYTES, len(data) + 1):
        if _masked(crc) == wanted:
            return True
        crc = google_crc32c.extend(crc, data[at : at + 1])
    return False
