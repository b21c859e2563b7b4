"""Reads a file around the pages that the disk cannot read.

A read that crosses one bad sector fails as a whole. Read page by page, only the bad pages are
missing, and every record beside them is found.
"""

from typing import Final

from magnetar.bookie.files import UNREADABLE_ERRNOS, File
from magnetar.bookie.settings import KIB, MIB

PAGE_BYTES: Final = 4 * KIB
"""The kernel reads no less through its cache."""

UNREADABLE_BYTES_MAX: Final = 4 * MIB
"""Of one file. A disk with more than some bad sectors has failed: the read then raises."""

UNREADABLE: Final = "the disk cannot read it"

FILLER: Final = b"\xff"
"""In place of bytes that cannot be read. No format here has it where a record begins, and no CRC
holds over it but by chance; `unreadable` says where it stands."""


class PatchyFile:
    """A file whose unreadable pages read as FILLER. For one reader."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.size = file.size()
        self._unreadable: set[int] = set()
        """Numbers of pages."""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file.

        Raises OSError for errors that do not concern the medium, and beyond UNREADABLE_BYTES_MAX.
        """
        try:
            return self._file.read(offset, length)
        except OSError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
        parts: list[bytes] = []
        at, end = offset, min(offset + length, self.size)
        while at < end:
            part = self._within_page(at, min(PAGE_BYTES - at % PAGE_BYTES, end - at))
            if not part:
                break
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def will_read(self, offset: int, length: int) -> None:
        """Says that the range is read next, so that the disk can begin."""
        self._file.will_read(offset, length)

    def unreadable(self, begin: int, end: int) -> bool:
        """Whether some of the bytes, which were read before, cannot be read."""
        return any(
            begin < (page + 1) * PAGE_BYTES and page * PAGE_BYTES < end for page in self._unreadable
        )

    def _within_page(self, offset: int, length: int) -> bytes:
        try:
            return self._file.read(offset, length)
        except OSError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
            self._unreadable.add(offset // PAGE_BYTES)
            if len(self._unreadable) * PAGE_BYTES > UNREADABLE_BYTES_MAX:
                raise
        return FILLER * length
