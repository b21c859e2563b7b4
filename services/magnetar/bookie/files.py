"""All file IO of the bookie, behind an interface small enough to be simulated.

`os_files.OsFiles` is the real one. A simulation supplies another that loses what was not synced,
tears writes, fills up, fails and flips bits. The rules both keep:

- what `write` returned from may be lost or torn by a power cut until `sync` (or `durable=True`);
- a created, renamed or removed name may be lost or come back until `sync_directory`;
- an `OSError` of `sync` or of a durable write means that what was written since the last good one
  may be gone for good, whatever a later `sync` says (Linux drops the dirty pages).

Files are closed when the last reference to them goes, so that a reader which holds one can finish
while a collector removes it.
"""

import errno
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

UNREADABLE_ERRNOS: Final = frozenset(
    {errno.EIO, errno.EBADMSG, errno.ENODATA, errno.EILSEQ, getattr(errno, "EUCLEAN", errno.EIO)}
)
"""Errors of a read that concern the medium, or a checksum of the file system."""


class Append(Enum):
    """How a file that is only appended to ends."""

    GROWING = "growing"
    """With its last byte."""
    PREALLOCATED = "preallocated"
    """Anywhere within bytes that mean nothing."""


class DiskUsage(NamedTuple):
    """Bytes of the file system that holds a path; `free` as an unprivileged user sees it."""

    total: int
    free: int

    @property
    def ratio(self) -> float:
        """The used share, 0 to 1."""
        return 1.0 - self.free / self.total if self.total else 1.0


class DataDirLocked(OSError):
    """Another process has the data directory."""


class File(Protocol):
    """An open file. Offsets are explicit; several threads may read at once."""

    @property
    def path(self) -> Path: ...

    def write(self, buffers: Sequence[bytes], offset: int, *, durable: bool = False) -> int:
        """Writes all buffers one behind the other at `offset`; returns the bytes written.

        With `durable`, returns only when they (and the size that they need) survive a power cut.
        """

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""

    def read_once(self, offset: int, length: int) -> bytes:
        """Like `read`, for a long range that will hardly be read again soon."""

    def will_read(self, offset: int, length: int) -> None:
        """Says that the range is read next, so that the disk can begin."""

    def sync(self) -> None:
        """Makes all that was written survive a power cut."""

    def preallocate(self, offset: int, length: int) -> None:
        """Reserves the range on disk and grows the file over it; it reads as zeros."""

    def truncate(self, length: int) -> None:
        """Cuts the file."""

    def size(self) -> int:
        """The file's length in bytes."""

    def close(self) -> None:
        """Closes at once. Idempotent."""


class Files(Protocol):
    """A file system."""

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = False,
        append: "Append | None" = None,
    ) -> File:
        """`create` makes the file and fails if it is there.

        `append` says that it is only written at its end, and may then go past the page cache.
        """

    def read_all(self, path: Path) -> bytes:
        """The whole of a small file."""

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; none if it does not exist."""

    def make_directory(self, path: Path) -> None:
        """Makes it and its parents, if need be."""

    def rename(self, source: Path, target: Path) -> None:
        """Atomic; replaces `target`."""

    def remove(self, path: Path) -> None:
        """Unlinks a file."""

    def sync_directory(self, path: Path) -> None:
        """Makes creations, renames and removals in it survive a power cut."""

    def usage(self, path: Path) -> DiskUsage:
        """How full the disk is."""

    def lock(self, path: Path) -> File:
        """Takes an exclusive lock on `path`, held until closed; raises DataDirLocked."""


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Puts `data` at `path` so that a power cut leaves the old or the new content, never a mix."""
    temporary = path.with_name(path.name + ".tmp")
    if temporary.name in files.names(path.parent):
        files.remove(temporary)
    file = files.open(temporary, create=True)
    try:
        file.write([data], 0)
        file.sync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(path.parent)
