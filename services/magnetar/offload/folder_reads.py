"""Reads files of a folder, bypassing the page cache if the file system allows it.

A cold file is read once, in order, with long reads, and the reader caches the decoded entries.
Filling, copying and dropping pages of the kernel's cache would cost several times the CPU of the
read itself (`disk.direct_read`). A file read back for verification also comes from the disk.
"""

import errno
import os
from pathlib import Path
from typing import Final

from magnetar.disk.direct_read import ALIGNMENT, LENGTH_MAX, read_direct

PIECE_BYTES: Final = LENGTH_MAX - ALIGNMENT
"""Read by one system call, at any alignment."""


def read_range(path: Path, start: int, end: int) -> bytes:
    """The bytes of a file from `start` to `end`, or to its end. Blocks. Raises OSError."""
    try:
        return _read(path, os.O_DIRECT, start, end)
    except AttributeError:
        return _read(path, 0, start, end)  # not Linux
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return _read(path, 0, start, end)  # tmpfs, some network file systems


def _read(path: Path, flags: int, start: int, end: int) -> bytes:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        pieces: list[bytes] = []
        while start < end:
            length = min(end - start, PIECE_BYTES)
            piece = read_direct(number, start, length)
            pieces.append(piece)
            start += len(piece)
            if len(piece) < length:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    finally:
        os.close(number)
