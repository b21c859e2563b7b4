"""Makes the bookie read-only while its disk is nearly full.

The bookie is read-only from `disk_usage_high` on, or with less than `disk_free_bytes_min` free: the
rest is for flushing acknowledged entries, for the index, and for the collector's copies. It is
writable again below `disk_usage_low` with twice the minimum free, so that it does not flap.

Other processes may still fill the disk to the last byte. The bookie then deletes a reserve file, so
that deletes can still reach the index and the collector has room to work. A write that fails on a
full disk also makes the bookie read-only, until the next check finds room.
"""

import contextlib
from pathlib import Path
from typing import Final

from magnetar.bookie.api import BookieReadOnly
from magnetar.bookie.settings import BookieSettings
from magnetar.core.log import get_logger
from magnetar.disk.files import DiskUsage, Files

log = get_logger("magnetar.bookie.upkeep.disk_guard")

RESERVE_NAME: Final = "reserve"


class DiskGuard:
    """Refuses adds on a full disk. For the event loop's thread; `measure` for any thread."""

    def __init__(self, files: Files, data_dir: Path, settings: BookieSettings) -> None:
        self._files = files
        self._data_dir = data_dir
        self._settings = settings
        self.usage = self.measure()
        self.refusal: BookieReadOnly | None = None
        """The error that refuses adds; None while the disk has room."""
        self.update(self.usage)
        if self.refusal is None:
            self._take_reserve()

    def measure(self) -> DiskUsage:
        """Returns the current usage of the file system."""
        return self._files.usage(self._data_dir)

    def update(self, usage: DiskUsage) -> None:
        """Applies a measured usage: switches to read-only or writable if it crosses a limit."""
        self.usage = usage
        settings = self._settings
        free_min = settings.disk_free_bytes_min
        if self.refusal is None:
            if usage.ratio >= settings.disk_usage_high or usage.free < free_min:
                self.mark_full(f"{usage.ratio:.1%} used, {usage.free >> 20} MiB free")
        elif usage.ratio < settings.disk_usage_low and usage.free >= 2 * free_min:
            log.info(
                "disk has room, bookie is writable again", path=str(self._data_dir), free=usage.free
            )
            self.refusal = None
            self._take_reserve()

    def mark_full(self, reason: str) -> None:
        """Refuses adds until a check finds room."""
        if self.refusal is None:
            log.error("disk full, bookie is read-only", path=str(self._data_dir), reason=reason)
        self.refusal = BookieReadOnly(f"the disk of {self._data_dir} is full: {reason}")

    def delete_reserve(self) -> None:
        """Deletes the reserve file, which makes room for deletes and the collector."""
        delete_reserve_file(self._files, self._data_dir)

    def _take_reserve(self) -> None:
        size = self._settings.disk_reserve_bytes
        path = self._data_dir / RESERVE_NAME
        if self.usage.free < 4 * size or not size:
            return
        if RESERVE_NAME in self._files.names(self._data_dir):
            return
        try:
            file = self._files.open(path, create=True)
            file.preallocate(0, size)
            file.close()
        except OSError as error:
            log.warning("disk reserve not allocated", path=str(path), error=str(error))
            delete_reserve_file(self._files, self._data_dir)


def delete_reserve_file(files: Files, data_dir: Path) -> None:
    """Deletes the reserve file if it exists."""
    if RESERVE_NAME in files.names(data_dir):
        with contextlib.suppress(OSError):
            files.remove(data_dir / RESERVE_NAME)
