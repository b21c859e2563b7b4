"""A file of the operating system, read and written through the page cache."""

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from magnetar.disk.direct_read import LENGTH_MAX, read_direct

IOVECS_MAX: Final = 1024
"""Linux's IOV_MAX: the buffers that one `pwritev` takes."""

_RWF_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
_NOT_OPEN: Final = -1
_NOT_OFFERED: Final = -2
_opening = threading.Lock()
_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class OsFile:
    """A `File` of the operating system, with explicit offsets."""

    __slots__ = ("_direct_reads_fd", "_fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._direct_reads_fd = _NOT_OPEN

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
        try:
            return self._read(offset, length)
        except OSError as error:
            error.filename = str(self.path)
            raise

    def _read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(self._fd, length - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_once(self, offset: int, length: int) -> bytes:
        if self._direct_reads_fd == _NOT_OPEN:
            self._open_for_direct_reads()
        if self._direct_reads_fd == _NOT_OFFERED or length > LENGTH_MAX:
            return self.read(offset, length)
        try:
            return read_direct(self._direct_reads_fd, offset, length)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return self.read(offset, length)  # the device has larger blocks

    def _open_for_direct_reads(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except (AttributeError, OSError):
            fd = _NOT_OFFERED  # not supported, or the file was removed
        with _opening:
            if self._direct_reads_fd == _NOT_OPEN:
                self._direct_reads_fd = fd
                return
        if fd >= 0:
            os.close(fd)

    def will_read(self, offset: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_WILLNEED)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def preallocate(self, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, offset, length)
        except OSError as error:
            # Without it, each sync also writes the file size.
            if error.errno not in _NOT_SUPPORTED:
                raise

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        for fd in (self._fd, self._direct_reads_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = -1
        self._direct_reads_fd = _NOT_OPEN


def _rest(buffers: Sequence[bytes], written: int) -> Sequence[bytes]:
    """Returns the buffers behind the first `written` bytes."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [buffer[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []
