"""Planted mistakes: each is a patch of the product in a bookie's own process, for the rig to find.

`python -m tests.disk.bugs NAME bookie ...` runs `magnetar bookie ...` with the mistake in it.
A rig that has found nothing proves nothing: `python -m tests.disk --prove` plants one after the
other and fails if one stays unseen.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from magnetar.bookie.entry_log import codec_v1 as entry_log_codec_v1
from magnetar.bookie.entry_log.logs import LogWriter
from magnetar.bookie.index.index import Index
from magnetar.bookie.index.store import RocksIndexStore
from magnetar.bookie.journal import files as journal_files
from magnetar.bookie.journal.scan import JournalScan
from magnetar.bookie.local import LocalBookie
from magnetar.disk.direct_file import DirectFile
from magnetar.disk.os_file import OsFile
from magnetar.disk.os_files import OsFiles


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake, and the days on which it shows."""

    name: str
    days: tuple[str, ...]
    plant: Callable[[], None]


SEEDS_MAX: Final = 4
"""Within which the rig has to find each."""


def _patch(owner: object, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: the mistake does not fit the code"
    setattr(owner, name, value)


def _receipt_before_fsync() -> None:
    def write(writer: Any, buffers: Sequence[bytes], seq: int, *, durable: bool) -> None:
        writer._offset += writer._file.write(buffers, writer._offset, durable=False)
        writer.seq = seq

    _patch(journal_files.JournalWriter, "write", write)


def _names_never_synced() -> None:
    def sync_directory(files: OsFiles, path: Path) -> None:
        del files, path

    _patch(OsFiles, "sync_directory", sync_directory)


def _entry_logs_never_synced() -> None:
    _patch(LogWriter, "sync", LogWriter._write)


def _index_never_synced() -> None:
    def sync(store: RocksIndexStore) -> None:
        del store

    _patch(RocksIndexStore, "sync", sync)


def _bytes_served_unchecked() -> None:
    def value(data: bytes) -> int:
        del data
        return Anything()

    class Anything(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    _patch(entry_log_codec_v1, "value", value)


def _short_write_is_whole() -> None:
    def put(file: DirectFile, length: int, flags: int) -> None:
        os.pwritev(file._direct_fd, [file._view[:length]], file._at, flags)

    def write(file: OsFile, buffers: Sequence[bytes], offset: int, *, durable: bool = False) -> int:
        os.pwritev(file._fd, buffers[:1024], offset)
        if durable:
            file.sync()
        return sum(map(len, buffers))

    _patch(DirectFile, "_put", put)
    _patch(OsFile, "write", write)


def _failed_sync_is_tried_again() -> None:
    whole = journal_files.JournalWriter.write

    def write(writer: Any, buffers: Sequence[bytes], seq: int, *, durable: bool) -> None:
        try:
            whole(writer, buffers, seq, durable=durable)
        except OSError:
            writer._offset += sum(map(len, buffers))
            writer.seq = seq
            writer._file.sync()

    _patch(journal_files.JournalWriter, "write", write)


def _old_index_is_believed() -> None:
    def lost_since(index: Index, mark: object) -> str:
        del index, mark
        return ""

    _patch(Index, "lost_since", lost_since)


def _unreadable_is_torn() -> None:
    classify = JournalScan.classify

    def lenient(scan: JournalScan) -> list[Any]:
        for bad in scan.bad:
            bad.unreadable = False
        return classify(scan)

    _patch(JournalScan, "classify", lenient)


def _hang_is_healthy() -> None:
    def stall(bookie: LocalBookie) -> str:
        del bookie
        return ""

    _patch(LocalBookie, "_stall", stall)


BUGS: Final = {
    bug.name: bug
    for bug in (
        Bug("receipt before fsync", ("cut",), _receipt_before_fsync),
        Bug("names never synced", ("cut",), _names_never_synced),
        Bug("entry logs never synced", ("flush",), _entry_logs_never_synced),
        Bug("index never synced", ("flush",), _index_never_synced),
        Bug("bytes served unchecked", ("lying reads",), _bytes_served_unchecked),
        Bug("short write is whole", ("short writes",), _short_write_is_whole),
        Bug("failed sync is tried again", ("failed sync",), _failed_sync_is_tried_again),
        Bug("old index is believed", ("old index",), _old_index_is_believed),
        Bug("unreadable is torn", ("unreadable",), _unreadable_is_torn),
        Bug("hang is healthy", ("hang",), _hang_is_healthy),
    )
}


def main() -> int:
    """Plants the mistake of the first argument and runs the command of the others."""
    from magnetar.cli.main import main as magnetar

    BUGS[sys.argv[1]].plant()
    sys.argv[1:] = sys.argv[2:]
    return magnetar(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
