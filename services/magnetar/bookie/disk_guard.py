"""Decides when the bookie stops taking adds for want of disk, and when it takes them again.

Read-only at `disk_usage_high` or when less than `disk_free_bytes_min` is free: what is left is for
the flush of what was acknowledged, for the index, and for the collector to copy into. Writable
again below `disk_usage_low` with twice the minimum free, so that it does not flap. Others may fill
the disk to the last byte all the same: then a reserve file is given up, so that deletes can still
reach the index and the collector has room to work. A write that
met a full disk counts like a full reading until the next check says otherwise.
"""

import contextlib
from pathlib import Path
from typing import Final

from magnetar.bookie.api import BookieReadOnly
from magnetar.bookie.files import DiskUsage, Files
from magnetar.bookie.settings import BookieSettings
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.disk")

RESERVE_NAME: Final = "reserve"


class DiskGuard:
    """See the module. For the event loop's thread; `measure` for any."""

    def __init__(self, files: Files, data_dir: Path, settings: BookieSettings) -> None:
        self._files = files
        self._data_dir = data_dir
        self._settings = settings
        self.usage = self.measure()
        self.refusal: BookieReadOnly | None = None
        """What adds are answered with, None while there is room."""
        self.judge(self.usage)
        if self.refusal is None:
            self._take_reserve()

    def measure(self) -> DiskUsage:
        """Asks the file system."""
        return self._files.usage(self._data_dir)

    def judge(self, usage: DiskUsage) -> None:
        """Changes over, if need be."""
        self.usage = usage
        settings = self._settings
        free_min = settings.disk_free_bytes_min
        if self.refusal is None:
            if usage.ratio >= settings.disk_usage_high or usage.free < free_min:
                self.full(f"{usage.ratio:.1%} used, {usage.free >> 20} MiB free")
        elif usage.ratio < settings.disk_usage_low and usage.free >= 2 * free_min:
            log.info("disk has room, writable again", path=str(self._data_dir), free=usage.free)
            self.refusal = None
            self._take_reserve()

    def full(self, reason: str) -> None:
        """No more adds until there is room."""
        if self.refusal is None:
            log.error("disk full, read-only", path=str(self._data_dir), reason=reason)
        self.refusal = BookieReadOnly(f"the disk of {self._data_dir} is full: {reason}")

    def give_reserve(self) -> None:
        """Gives the reserve up, for deletes and the collector."""
        release_reserve(self._files, self._data_dir)

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
            log.warning("no room for the disk reserve", path=str(path), error=str(error))
            release_reserve(self._files, self._data_dir)


def release_reserve(files: Files, data_dir: Path) -> None:
    """Gives the reserve up."""
    if RESERVE_NAME in files.names(data_dir):
        with contextlib.suppress(OSError):
            files.remove(data_dir / RESERVE_NAME)
