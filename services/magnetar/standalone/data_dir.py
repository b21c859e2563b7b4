"""The standalone's data directory: its identity, its lock, and the addresses of the server.

- `magnetar.json` identifies the directory as Magnetar's. A directory that has other files and not
  this one is neither written nor wiped.
- `lock` is held with flock while a process uses the directory; the kernel releases it when the
  process ends.
- `standalone.json` exists while a server is ready. A clean stop deletes it.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Final

IDENTITY_FILE: Final = "magnetar.json"
LOCK_FILE: Final = "lock"
READY_FILE: Final = "standalone.json"
FORMAT_VERSION: Final = 1


class DataDirError(Exception):
    """The directory cannot be used. The text names it and gives the reason."""


class DataDir:
    """A data directory, locked by this process."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: Path, *, wipe: bool = False) -> "DataDir":
        """Creates or verifies the directory and locks it; with `wipe`, also empties it."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            _check_identity(path)
            lock_fd = _lock(path)
        except OSError as error:
            raise DataDirError(f"data directory {path}: {error.strerror}") from error
        opened = cls(path, lock_fd)
        try:
            if wipe:
                opened._wipe()
            opened._write(
                IDENTITY_FILE,
                {"kind": "magnetar", "format": FORMAT_VERSION, "created_ms": _now_ms()},
                replace=False,
            )
            opened.not_ready()
        except OSError as error:
            opened.close()
            raise DataDirError(f"data directory {path}: {error.strerror}") from error
        return opened

    def ready(self, service_url: str, http_url: str, version: str) -> None:
        """Publishes the server's addresses for other processes, in READY_FILE."""
        self._write(
            READY_FILE,
            {
                "pid": os.getpid(),
                "service_url": service_url,
                "http_url": http_url,
                "version": version,
            },
        )

    def not_ready(self) -> None:
        """Deletes READY_FILE, also if a killed process left it."""
        (self.path / READY_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._lock_fd)

    def _wipe(self) -> None:
        """Deletes all but the lock; the identity last, so that a wipe can be repeated."""
        import shutil  # loads archive libraries, which only --wipe should pay for

        kept = (LOCK_FILE, IDENTITY_FILE)
        for entry in [entry for entry in self.path.iterdir() if entry.name not in kept]:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        (self.path / IDENTITY_FILE).unlink(missing_ok=True)

    def _write(self, name: str, content: dict[str, object], *, replace: bool = True) -> None:
        """Writes a small file atomically: readers see all of it or none."""
        target = self.path / name
        if not replace and target.exists():
            return
        draft = target.with_name(f"{name}.{os.getpid()}.new")
        with draft.open("w") as file:
            file.write(json.dumps(content) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.rename(target)


def _check_identity(path: Path) -> None:
    """Raises DataDirError if the directory is not empty and not Magnetar's."""
    identity = path / IDENTITY_FILE
    if identity.exists():
        try:
            content = json.loads(identity.read_text())
        except ValueError:
            content = None
        if not isinstance(content, dict) or content.get("kind") != "magnetar":
            raise DataDirError(f"data directory {path}: {IDENTITY_FILE} is not Magnetar's")
        if content.get("format") != FORMAT_VERSION:
            raise DataDirError(
                f"data directory {path}: has format {content.get('format')}, "
                f"this version reads {FORMAT_VERSION}"
            )
    elif leftovers := [entry.name for entry in path.iterdir() if not _is_draft(entry.name)]:
        raise DataDirError(
            f"data directory {path}: is not Magnetar's (it has {sorted(leftovers)[0]!r} "
            f"and no {IDENTITY_FILE}); nothing was changed"
        )


def _is_draft(name: str) -> bool:
    """Whether a process that was killed while it created or wiped the directory left the file."""
    return name == LOCK_FILE or (name.startswith(IDENTITY_FILE) and name.endswith(".new"))


def _lock(path: Path) -> int:
    lock_fd = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip()
        os.close(lock_fd)
        by = f" (process {holder})" if holder else ""
        raise DataDirError(f"data directory {path} is in use by another Magnetar{by}") from None
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    return lock_fd


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
