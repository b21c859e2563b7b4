"""The checkpoint: the position up to which entry logs and index contain the journal.

A small file with a CRC, replaced atomically. A flush writes it after it has synced the logs and the
index, and only then trims journal files before the mark. The file also names the newest journal
file, so that a missing one is detected, and records whether the index has a `flushed_seq`, so that
an older index is detected. One mark serves the whole bookie.
"""

import struct
import threading
from pathlib import Path
from typing import Final

import msgspec
from google_crc32c import value

from magnetar.bookie.journal.files import JournalPosition
from magnetar.disk.files import UNREADABLE_ERRNOS, Files, replace_file

VERSION: Final = 1
FILE_NAME: Final = "checkpoint"
MAGIC: Final = b"MGNTCKPT"
INDEX_NOTES: Final = 1
"""A flag. Releases before it ignore it and write zero."""

_FORMAT: Final = struct.Struct("<8sHHI16sQQQQ")
_CRC: Final = struct.Struct("<I")


class CheckpointDamaged(ValueError):
    """The file exists but is damaged or unreadable."""


class Mark(msgspec.Struct, frozen=True):
    """The content of the checkpoint."""

    position: JournalPosition
    newest_file_id: int
    index_notes: bool = False
    """Whether the index was synced with `position` or later as its `Index.flushed_seq`. A release
    before that record writes False, also over True, as its flushes do not update the record."""


def encode(incarnation: bytes, mark: Mark) -> bytes:
    """Returns the file's bytes."""
    at = mark.position
    fixed = _FORMAT.pack(
        MAGIC,
        VERSION,
        INDEX_NOTES if mark.index_notes else 0,
        0,
        incarnation,
        at.file_id,
        at.offset,
        at.seq,
        mark.newest_file_id,
    )
    return fixed + _CRC.pack(value(fixed))


def decode(data: bytes, incarnation: bytes) -> Mark:
    """Decodes the file's bytes; raises CheckpointDamaged."""
    if len(data) != _FORMAT.size + _CRC.size or data[:8] != MAGIC:
        raise CheckpointDamaged("no checkpoint")
    if _CRC.unpack_from(data, _FORMAT.size)[0] != value(data[: _FORMAT.size]):
        raise CheckpointDamaged("checkpoint fails its CRC")
    _, version, flags, _, owner, file_id, offset, seq, newest = _FORMAT.unpack_from(data)
    if version != VERSION:
        raise CheckpointDamaged(f"checkpoint of version {version}, this software reads {VERSION}")
    if owner != incarnation:
        raise CheckpointDamaged("checkpoint of another bookie or incarnation")
    return Mark(JournalPosition(file_id, offset, seq), newest, bool(flags & INDEX_NOTES))


class Checkpoint:
    """The mark on disk. Thread-safe: the flush advances it, the journal sets its newest file."""

    def __init__(self, files: Files, data_dir: Path, incarnation: bytes, mark: Mark) -> None:
        self._files = files
        self._path = data_dir / FILE_NAME
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._mark = mark

    @property
    def mark(self) -> Mark:
        """The mark on disk, or the unknown one until a flush replaces a damaged checkpoint."""
        return self._mark

    def advance(self, position: JournalPosition) -> None:
        """Moves the mark durably. The index already has the position as its `flushed_seq`."""
        with self._lock:
            self._write(Mark(position, self._mark.newest_file_id, index_notes=True))

    def journal_begun(self, file_id: int) -> None:
        """Sets the newest journal file, durably if the position is known.

        A damaged checkpoint stays until a flush replaces it, which a full disk delays. With any
        other position, the next start would skip records or report them as missing.
        """
        with self._lock:
            mark = Mark(self._mark.position, file_id, self._mark.index_notes)
            if mark.position.seq < 0:
                self._mark = mark
            else:
                self._write(mark)

    def _write(self, mark: Mark) -> None:
        replace_file(self._files, self._path, encode(self._incarnation, mark))
        self._mark = mark


def read_mark(files: Files, data_dir: Path, incarnation: bytes) -> Mark | None:
    """Returns the mark of a data directory, None if it has none; raises CheckpointDamaged."""
    if FILE_NAME not in files.names(data_dir):
        return None
    path = data_dir / FILE_NAME
    try:
        return decode(files.read_all(path), incarnation)
    except CheckpointDamaged as error:
        raise CheckpointDamaged(f"{path} at offset 0: {error}") from None
    except OSError as error:
        if error.errno not in UNREADABLE_ERRNOS:
            raise
        raise CheckpointDamaged(f"{path} cannot be read: {error.strerror}") from error
