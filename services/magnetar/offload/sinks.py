"""Where an entry file's bytes go: a file in a folder, or an upload in parts.

A sink's `close` returns once the file is whole and stays: of a folder, its file and every folder
that was made for it are on the disk, for bookies will let go of what it holds. Whoever opened the
store first has made its folder, and those above, without a trace: so all above are brought to the
disk, up to where the volume is mounted. `abandon` lets go of what there is, which is no file;
whoever put the attempt on record deletes it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.core.log import get_logger
from magnetar.offload.stores import FILESYSTEM, StoreSpec, folder_of, store_error

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES: Final = 8 << 20
"""A part of an upload; a file has 10,000 at most in S3, so 80 GB: far above any ledger."""
PARTS_AT_ONCE: Final = 4

log = get_logger("magnetar.offload")


def open_sink(spec: StoreSpec, files: "ObjectStore", path: str) -> "FolderSink | ObjectSink":
    """A sink for a file that is not there yet. Raises OSError, ColdStoreUnavailable."""
    if spec.driver == FILESYSTEM:
        return FolderSink(root := folder_of(spec), root / path)
    return ObjectSink(files, path)


class FolderSink:
    """A file in a folder, on the disk once it is closed."""

    def __init__(self, root: Path, path: Path) -> None:
        self._root = root
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb")

    def write(self, data: Any, /) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        for folder in _folders_of(self._root, self._path):
            _sync_folder(folder)

    def abandon(self) -> None:
        self._file.close()


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
