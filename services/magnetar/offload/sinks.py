"""Where an entry file's bytes go: a file in a folder, or an upload in parts.

A sink's `close` returns once the file is whole and stays: of a folder, its file and every folder
that was made for it are on the disk, for bookies will let go of what it holds. Whoever opened the
store first has made its folder, and those above, without a trace: so all above are brought to the
disk, up to where the volume is mounted. `abandon` lets go of what there is, which is no file;
whoever put the attempt on record deletes it.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.bookie.direct_io import DirectFile, open_direct
from magnetar.bookie.os_file import OsFile
from magnetar.core.log import get_logger
from magnetar.offload.stores import FILESYSTEM, StoreSpec, folder_of, store_error

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES: Final = 8 << 20
"""A part of an upload; a file has 10,000 at most in S3, so 80 GB: far above any ledger."""
PARTS_AT_ONCE: Final = 4
WRITE_BYTES: Final = 1 << 20
"""Gathered for one write into a folder."""

log = get_logger("magnetar.offload")


def open_sink(spec: StoreSpec, files: "ObjectStore", path: str) -> "FolderSink | ObjectSink":
    """A sink for a file that is not there yet. Raises OSError, ColdStoreUnavailable."""
    if spec.driver == FILESYSTEM:
        return FolderSink(root := folder_of(spec), root / path)
    return ObjectSink(files, path)


class FolderSink:
    """A file in a folder, on the disk once it is closed.

    It goes past the page cache, where the file system lets it: what is read back to be verified
    then comes from the disk, and pages of the cache cost more than the file (`bookie.direct_io`).
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
            self._go_on_through_the_cache()
            written = self._file.write(self._gathered, self._written_bytes)
        self._written_bytes += written
        self._gathered.clear()
        self._gathered_bytes = 0

    def _go_on_through_the_cache(self) -> None:
        """Some file systems let a file be opened for direct writes, and then take none of ours:
        their blocks are larger, or they do not do it after all."""
        direct = self._file
        number = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._file = OsFile(self._path, number)
        direct.truncate(self._written_bytes)  # what it wrote of this, and padding
        direct.close()


class ObjectSink:
    """An upload in parts."""

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
        """Ends the upload, or its parts would stay in the store; the file is deleted next."""
        try:
            self._upload.close()
        except Exception as error:  # noqa: BLE001 - it failed already, and what for was told
            log.info("upload not ended", path=self._path, error=str(error))


def _folders_of(root: Path, path: Path) -> Iterator[Path]:
    """Those that may have been made for the file, innermost first.

    Above the store nobody has made anything where we may not write, or on another volume.
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
