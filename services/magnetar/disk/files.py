"""All file IO of storage, behind an interface that is small enough to simulate.

`os_files.OsFiles` is the real implementation. The simulation has one that loses unsynced data,
tears writes, fills up, fails and flips bits. Both follow these rules:

- a power cut may lose or tear written bytes until `sync` (or `durable=True`);
- a power cut may undo the creation, renaming or removal of a file until `sync_directory`;
- if `sync` or a durable write raises `OSError`, all bytes written since the last successful one may
  be lost, even if a later `sync` succeeds (Linux drops the dirty pages).

A file is closed when its last reference is dropped, so a reader can finish while the collector
removes the file.
"""

import errno
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

UNREADABLE_ERRNOS: Final = frozenset(
    {errno.EIO, errno.EBADMSG, errno.ENODATA, errno.EILSEQ, getattr(errno, "EUCLEAN", errno.EIO)}
)
"""Read errors of the medium, or of the file system's checksums."""


class Append(Enum):
    """The end of the data in an append-only file."""

    GROWING = "growing"
    """The data ends at the end of the file."""
    PREALLOCATED = "preallocated"
    """Before the end of the file; the bytes behind have no meaning."""


class DiskUsage(NamedTuple):
    """Bytes of the file system of a path; `free` for an unprivileged user."""

    total: int
    free: int

    @property
    def ratio(self) -> float:
        """The used share, 0 to 1."""
        return 1.0 - self.free / self.total if self.total else 1.0


class DataDirLocked(OSError):
    """Another process holds the data directory's lock."""


class File(Protocol):
    """An open file. Offsets are explicit; several threads may read at once."""

    @property
    def path(self) -> Path: ...

    def write(self, buffers: Sequence[bytes], offset: int, *, durable: bool = False) -> int:
        """Writes all buffers consecutively at `offset`; returns the bytes written.

        With `durable`, returns once they (and the file size they need) survive a power cut.
        """

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""

    def read_once(self, offset: int, length: int) -> bytes:
        """Like `read`, for a long range that is unlikely to be read again soon."""

    def will_read(self, offset: int, length: int) -> None:
        """Starts to read the range ahead."""

    def sync(self) -> None:
        """Makes all written bytes survive a power cut."""

    def preallocate(self, offset: int, length: int) -> None:
        """Reserves the range on disk and extends the file over it; it reads as zeros."""

    def truncate(self, length: int) -> None:
        """Cuts the file to `length` bytes."""

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
        """Opens a file; with `create`, creates it and fails if it exists.

        `append` promises that it is only written at its end; writes may then bypass the page cache.
        """

    def read_all(self, path: Path) -> bytes:
        """Returns the content of a small file."""

    def names(self, directory: Path) -> list[str]:
        """Returns the sorted names in a directory; empty if it does not exist."""

    def make_directory(self, path: Path) -> None:
        """Creates the directory and its missing parents."""

    def rename(self, source: Path, target: Path) -> None:
        """Renames atomically; replaces `target`."""

    def remove(self, path: Path) -> None:
        """Unlinks a file."""

    def sync_directory(self, path: Path) -> None:
        """Makes creations, renames and removals in the directory survive a power cut."""

    def usage(self, path: Path) -> DiskUsage:
        """Returns the usage of the disk that holds `path`."""

    def lock(self, path: Path) -> File:
        """Takes an exclusive lock on `path`, held until closed; raises DataDirLocked."""


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """Replaces the file atomically: a power cut leaves the old or the new content."""
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
