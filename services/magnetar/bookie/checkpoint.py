"""The checkpoint: up to where the journal is contained in the entry logs and the index.

A file of 64 bytes with a CRC, replaced atomically. It is written after the logs and the index are
synced; only then may journal files before the mark go. It also names the newest journal file, so
that one that vanished is noticed, and says whether the index notes what it contains, so that an
index from before is noticed. One mark serves the whole bookie.
"""

import struct
import threading
from pathlib import Path
from typing import Final

import msgspec
from google_crc32c import value

from magnetar.bookie.files import UNREADABLE_ERRNOS, Files, replace_file
from magnetar.bookie.journal_files import JournalPosition

VERSION: Final = 1
FILE_NAME: Final = "checkpoint"
MAGIC: Final = b"MGNTCKPT"
INDEX_NOTES: Final = 1
"""A flag: releases before it read it and write zero."""

_FORMAT: Final = struct.Struct("<8sHHI16sQQQQ")
_CRC: Final = struct.Struct("<I")


class CheckpointDamaged(ValueError):
    """The file is there and does not hold."""


class Mark(msgspec.Struct, frozen=True):
    """What the file says."""

    position: JournalPosition
    newest_file_id: int
    index_notes: bool = False
    """Whether the index was synced with a note of `position` or later (`Index.flushed_seq`). A
    release without notes writes False, also over a mark that had True: its flushes leave the note
    of the index behind."""


def encode(incarnation: bytes, mark: Mark) -> bytes:
    """The file's content."""
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
    """Raises CheckpointDamaged."""
    if len(data) != _FORMAT.size + _CRC.size or data[:8] != MAGIC:
        raise CheckpointDamaged("no checkpoint")
    if _CRC.unpack_from(data, _FORMAT.size)[0] != value(data[: _FORMAT.size]):
        raise CheckpointDamaged("checkpoint fails its CRC")
    _, version, flags, _, found, file_id, offset, seq, newest = _FORMAT.unpack_from(data)
    if version != VERSION:
        raise CheckpointDamaged(f"checkpoint of version {version}, this software reads {VERSION}")
    if found != incarnation:
        raise CheckpointDamaged("checkpoint of another bookie or incarnation")
    return Mark(JournalPosition(file_id, offset, seq), newest, bool(flags & INDEX_NOTES))


class Checkpoint:
    """The mark on disk. Thread-safe: the flush moves it, the journal names its newest file."""

    def __init__(self, files: Files, data_dir: Path, incarnation: bytes, mark: Mark) -> None:
        self._files = files
        self._path = data_dir / FILE_NAME
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._mark = mark

    @property
    def mark(self) -> Mark:
        """What is on the disk."""
        return self._mark

    def advance(self, position: JournalPosition) -> None:
        """Moves the mark, durably. The index has noted the position before."""
        with self._lock:
            self._write(Mark(position, self._mark.newest_file_id, index_notes=True))

    def journal_begun(self, file_id: int) -> None:
        """Names the newest journal file, durably if the position is known.

        A damaged checkpoint stays until a flush moves it, which a full disk puts off: any other
        position would have the next start skip or miss records.
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
    """The mark in a data directory, None if there is none; raises CheckpointDamaged."""
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
