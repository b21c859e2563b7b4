"""Reads of files in a folder, past the page cache where the file system lets us.

A cold file is read once and in order, by long reads, and who reads it caches what it decoded: pages
of the kernel's cache would be taken, filled, copied and dropped again, for several times the CPU of
the read itself (`bookie.direct_read`). What is read back to be verified comes from the disk.
"""

import errno
import os
from pathlib import Path
from typing import Final

from magnetar.bookie.direct_read import ALIGNMENT, LENGTH_MAX, read_direct

PIECE_BYTES: Final = LENGTH_MAX - ALIGNMENT
"""Of one system call, wherever in a block it begins."""


def read_range(path: Path, start: int, end: int) -> bytes:
    """The file's bytes from `start` to `end`, or to where it ends. Blocks. Raises OSError."""
    try:
        return _read(path, os.O_DIRECT, start, end)
    except AttributeError:
        return _read(path, 0, start, end)  # another system than Linux
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
