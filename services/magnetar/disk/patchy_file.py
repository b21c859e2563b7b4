"""Reads of a damaged file, without the pages that the disk cannot read.

A read that crosses a bad sector fails as a whole. `PatchyFile` retries it page by page, so that
only the bad pages are missing and the records beside them are found.
"""

from typing import Final

from magnetar.core.units import KIB, MIB
from magnetar.disk.files import UNREADABLE_ERRNOS, File

PAGE_BYTES: Final = 4 * KIB
"""The kernel's unit of cached reads."""

UNREADABLE_BYTES_MAX: Final = 4 * MIB
"""Bound per file. Beyond it the disk counts as failed, and reads raise."""

UNREADABLE: Final = "the disk cannot read it"

FILLER: Final = b"\xff"
"""Replaces unreadable bytes. No record of our formats begins with it, and no CRC matches it except
by chance; `unreadable` says which bytes it replaces."""


class PatchyFile:
    """A file whose unreadable pages are read as FILLER. For one reader."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.size = file.size()
        self._unreadable: set[int] = set()
        """Page numbers."""

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
        """Starts to read the range ahead."""
        self._file.will_read(offset, length)

    def unreadable(self, begin: int, end: int) -> bool:
        """Whether a page of the range, which must have been read before, is unreadable."""
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
