"""All file IO of the bookie, behind an interface small enough to be simulated.

`OsFiles` is the real one. A simulation supplies another that loses what was not synced, tears
writes, fills up, fails and flips bits. The rules both keep:

- what `write` returned from may be lost or torn by a power cut until `sync` (or `durable=True`);
- a created, renamed or removed name may be lost or come back until `sync_directory`;
- an `OSError` of `sync` or of a durable write means that what was written since the last good one
  may be gone for good, whatever a later `sync` says (Linux drops the dirty pages).

Files are closed when the last reference to them goes, so that a reader which holds one can finish
while a collector removes it.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

IOVECS_MAX: Final = 1024
"""Linux's IOV_MAX: buffers of one `pwritev`."""

_RWF_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


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

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> File:
        """`create` makes the file and fails if it is there."""

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


class OsFile:
    """See `File`."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()

    def write(self, buffers: Sequence[bytes], offset: int, *, durable: bool = False) -> int:
        total = 0
        if len(buffers) <= IOVECS_MAX:
            # One system call that writes and syncs: one release of the GIL instead of two.
            wanted = sum(map(len, buffers))
            flags = _RWF_DSYNC if durable else 0
            total = os.pwritev(self._fd, buffers, offset, flags)
            if total == wanted and flags == (_RWF_DSYNC if durable else 0):
                if durable and not _RWF_DSYNC:
                    self.sync()
                return total
            buffers = _rest(buffers, total)
        for start in range(0, len(buffers), IOVECS_MAX):
            chunk = buffers[start : start + IOVECS_MAX]
            while chunk:
                written = os.pwritev(self._fd, chunk, offset + total)
                if written == 0:
                    raise OSError(errno.EIO, "no bytes written", str(self.path))
                total += written
                chunk = _rest(chunk, written)
        if durable:
            self.sync()
        return total

    def read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(self._fd, length - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def preallocate(self, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, offset, length)
        except OSError as error:
            # A file system without it still works: each sync then writes the size as well.
            if error.errno not in _NOT_SUPPORTED:
                raise

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _rest(buffers: Sequence[bytes], written: int) -> Sequence[bytes]:
    """What of `buffers` is left after `written` bytes."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [buffer[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []


class OsFiles:
    """The machine's file systems."""

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> OsFile:
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(path, os.open(path, flags, 0o640))

    def read_all(self, path: Path) -> bytes:
        return path.read_bytes()

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: Path) -> DiskUsage:
        stat = os.statvfs(path)
        return DiskUsage(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)

    def lock(self, path: Path) -> OsFile:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise DataDirLocked(
                errno.EWOULDBLOCK,
                f"data directory {path.parent} is in use by process {holder}",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        return OsFile(path, fd)
