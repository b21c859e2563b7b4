"""The operating system's file systems, as `files.Files`."""

import errno
import fcntl
import os
from pathlib import Path

from magnetar.disk.direct_file import open_direct
from magnetar.disk.files import Append, DataDirLocked, DiskUsage
from magnetar.disk.os_file import OsFile


class OsFiles:
    """The file systems of the operating system."""

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = False,
        append: Append | None = None,
    ) -> OsFile:
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        fd = os.open(path, flags, 0o640)
        if append is None:
            return OsFile(path, fd)
        return open_direct(path, fd, trim=append is Append.GROWING)

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
