"""Destinations of an entry file's bytes: a file in a folder, or a multipart upload.

`close` returns once the file is whole and durable, since bookies will delete what it holds. In a
folder that includes the file and every folder above it, up to the mount point: an earlier opening
of the store may have created any of them without syncing. `abandon` releases resources without
completing the file; the caller that recorded the attempt deletes what was written.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.core.log import get_logger
from magnetar.disk.direct_file import DirectFile, open_direct
from magnetar.disk.os_file import OsFile
from magnetar.offload.stores import FILESYSTEM, StoreSpec, folder_of, store_error

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES: Final = 8 << 20
"""Size of a part of an upload. S3 allows 10,000 parts, so 80 GB: far above any ledger."""
PARTS_AT_ONCE: Final = 4
WRITE_BYTES: Final = 1 << 20
"""Collected for one write into a folder."""

log = get_logger("magnetar.offload")


def open_sink(spec: StoreSpec, files: "ObjectStore", path: str) -> "FolderSink | ObjectSink":
    """Opens a sink for a new file. Raises OSError, ColdStoreUnavailable."""
    if spec.driver == FILESYSTEM:
        return FolderSink(root := folder_of(spec), root / path)
    return ObjectSink(files, path)


class FolderSink:
    """A file in a folder, synced when it is closed.

    Writes bypass the page cache if the file system allows it: then the verification reads from the
    disk, and the cache's pages would cost more than the file itself (`disk.direct_file`).
    """

    def __init__(self, root: Path, path: Path) -> None:
        self._root = root
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._file = open_direct(path, number, trim=True)
        self._gathered: list[bytes] = []
        self._gathered_bytes = self._written_bytes = 0

    def write(self, data: bytes, /) -> None:
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= WRITE_BYTES:
            self._put()

    def close(self) -> None:
        self._put()
        self._file.sync()
        self._file.close()
        for folder in _folders_of(self._root, self._path):
            _sync_folder(folder)

    def abandon(self) -> None:
        self._file.close()

    def _put(self) -> None:
        try:
            written = self._file.write(self._gathered, self._written_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL or not isinstance(self._file, DirectFile):
                raise
            self._switch_to_page_cache()
            written = self._file.write(self._gathered, self._written_bytes)
        self._written_bytes += written
        self._gathered.clear()
        self._gathered_bytes = 0

    def _switch_to_page_cache(self) -> None:
        """Reopens the file for ordinary writes.

        Some file systems accept O_DIRECT on open and then refuse our writes: their blocks are
        larger, or they do not support it after all.
        """
        direct = self._file
        number = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._file = OsFile(self._path, number)
        direct.truncate(self._written_bytes)  # a partial write, and padding
        direct.close()


class ObjectSink:
    """A multipart upload."""

    def __init__(self, files: "ObjectStore", path: str) -> None:
        import obstore

        self._path = path
        self._upload = obstore.open_writer(
            files, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )

    def write(self, data: Any, /) -> None:
        try:
            self._upload.write(data)
        except Exception as error:
            raise store_error(error, self._path) from error

    def close(self) -> None:
        try:
            self._upload.close()
        except Exception as error:
            raise store_error(error, self._path) from error

    def abandon(self) -> None:
        """Ends the upload, so that the store keeps no parts. The caller deletes the file next."""
        try:
            self._upload.close()
        except Exception as error:  # noqa: BLE001 - the caller reports why the file failed
            log.info("an upload was not ended", path=self._path, error=str(error))


def _folders_of(root: Path, path: Path) -> Iterator[Path]:
    """The folders that may have been created for the file, innermost first.

    Above the store, folders that we may not write, or on another volume, existed before.
    """
    path, root = path.absolute(), root.absolute()
    yield from path.parents[: len(path.relative_to(root).parts)]
    volume = root.stat().st_dev
    for folder in root.parents:
        if folder.stat().st_dev != volume:
            return
        if os.access(folder, os.R_OK | os.W_OK):
            yield folder


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
