"""Entry logs: append-only files of blocks, written by the flush and by the collector.

Each writer has its own log. It begins a new one when it is created, when its log is full, and after
any error. The index never refers to the blocks of a failed attempt; the collector removes them
later. A writer gathers about 1 MiB of blocks per write, and `sync` makes them durable before the
index refers to them. A log's number is not reused while its file exists.

Reads are of whole blocks, adjacent ones together, and check every CRC. A reader references the open
file, so that it can finish reading a log that is removed meanwhile. A later reader gets
`FileNotFoundError` and looks the entry up again.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from magnetar.bookie.api import EntryCorrupt
from magnetar.bookie.entry_log import codec_v1 as codec
from magnetar.bookie.entry_log.codec_v1 import BadBlock, Block, Segment
from magnetar.bookie.index.index import View
from magnetar.bookie.settings import BookieSettings
from magnetar.core.units import MIB
from magnetar.disk.files import Append, File, Files

SUFFIX: Final = ".log"
WRITE_BYTES: Final = 1 * MIB
JOIN_ENTRY_BYTES_MAX: Final = 8192


class BlockLocation(NamedTuple):
    """The location of a block."""

    log_id: int
    offset: int
    length: int


def file_name(log_id: int) -> str:
    """Returns the name of a log's file."""
    return f"{log_id:010d}{SUFFIX}"


def log_ids(files: Files, directory: Path) -> list[int]:
    """Returns the numbers of the logs in a directory, ascending."""
    return sorted(
        int(stem)
        for name in files.names(directory)
        if name.endswith(SUFFIX) and (stem := name.removesuffix(SUFFIX)).isdigit()
    )


class EntryLogs:
    """The logs of a bookie, with a bounded cache of open files. Thread-safe."""

    def __init__(
        self, files: Files, directory: Path, incarnation: bytes, settings: BookieSettings
    ) -> None:
        self._files = files
        self._directory = directory
        self.incarnation = incarnation
        self.settings = settings
        self._lock = threading.Lock()
        self._open: OrderedDict[int, File] = OrderedDict()
        self._next_id = max(log_ids(files, directory), default=0) + 1
        self._written: set[int] = set()

    def path(self, log_id: int) -> Path:
        """Returns the path of a log's file."""
        return self._directory / file_name(log_id)

    def ids(self) -> list[int]:
        """Returns the numbers of all logs, ascending."""
        return log_ids(self._files, self._directory)

    def sealed_ids(self) -> list[int]:
        """Returns the logs that have no writer and whose blocks the index has."""
        with self._lock:
            written = set(self._written)
        return [log_id for log_id in self.ids() if log_id not in written]

    def create(self) -> tuple[int, File]:
        """Creates a log with its header and a durable name."""
        with self._lock:
            log_id = self._next_id
            self._next_id += 1
            self._written.add(log_id)
        try:
            file = self._files.open(self.path(log_id), create=True, append=Append.GROWING)
            file.write([codec.encode_file_header(self.incarnation, log_id)], 0)
            self._files.sync_directory(self._directory)
        except OSError:
            self.discard(log_id)
            raise
        return log_id, file

    def seal(self, log_id: int) -> None:
        """Records that no writer uses the log and the index has its blocks."""
        with self._lock:
            self._written.discard(log_id)

    def discard(self, log_id: int) -> None:
        """Removes a log that the index never referred to."""
        with contextlib.suppress(OSError):
            self._files.remove(self.path(log_id))
        self.seal(log_id)

    def file(self, log_id: int) -> File:
        """Returns the log, open for reading; raises FileNotFoundError."""
        with self._lock:
            file = self._open.get(log_id)
            if file is not None:
                self._open.move_to_end(log_id)
                return file
            file = self._files.open(self.path(log_id), read_only=True)
            self._open[log_id] = file
            while len(self._open) > self.settings.entry_logs_open_max:
                # Its last reader closes it by dropping the reference.
                self._open.popitem(last=False)
            return file

    def read(self, view: View) -> Block:
        """Reads a view's block; raises EntryCorrupt with file and offset, or FileNotFoundError."""
        file = self.file(view.log_id)
        try:
            data = file.read(view.offset, view.length)
        except OSError as error:
            raise _corrupt(view, file, str(error)) from error
        return self._decode(view, file, data, 0)

    def read_run(self, views: Sequence[View]) -> list[Block]:
        """Reads the blocks of views that are adjacent in a log, with one read.

        Stops before the first bad block; if that is the very first, raises as `read` does.
        """
        first, last = views[0], views[-1]
        file = self.file(first.log_id)
        length = last.offset + last.length - first.offset
        try:
            data = file.read_once(first.offset, length)
        except OSError as error:
            raise _corrupt(first, file, str(error)) from error
        blocks: list[Block] = []
        for view in views:
            try:
                blocks.append(self._decode(view, file, data, view.offset - first.offset))
            except EntryCorrupt:
                if not blocks:
                    raise
                break
        return blocks

    def _decode(self, view: View, file: File, data: bytes, at: int) -> Block:
        try:
            if len(data) - at < view.length:
                raise BadBlock(f"the file ends {view.length + at - len(data)} bytes short")
            block = codec.decode_block(data, codec.log_magic(self.incarnation, view.log_id), at)
            if block.ledger_id != view.ledger_id or not (
                block.first_entry <= view.first <= view.last <= block.last_entry
            ):
                raise BadBlock(
                    f"it holds ledger {block.ledger_id} entries {block.first_entry} to "
                    f"{block.last_entry}"
                )
        except BadBlock as error:
            raise _corrupt(view, file, str(error)) from error
        return block

    def read_raw(self, view: View) -> bytes:
        """Reads a block's bytes without checks."""
        return self.file(view.log_id).read(view.offset, view.length)

    def remove(self, log_id: int) -> int:
        """Deletes a log that the index no longer refers to; returns its size."""
        path = self.path(log_id)
        with self._lock:
            file = self._open.get(log_id)
        if file is None:
            file = self._files.open(path, read_only=True)
        size = file.size()
        self._files.remove(path)
        # After the removal: else a reader could reopen the file and keep its bytes on the disk.
        with self._lock:
            self._open.pop(log_id, None)
        return size

    def close(self) -> None:
        """Drops the open files."""
        with self._lock:
            self._open.clear()


def _corrupt(view: View, file: File, reason: str) -> EntryCorrupt:
    return EntryCorrupt(
        f"ledger {view.ledger_id} entries {view.first} to {view.last}: block in {file.path} at "
        f"offset {view.offset}: {reason}",
        str(file.path),
        view.offset,
    )


def adjacent(views: Sequence[View], bytes_max: int) -> Sequence[View]:
    """Returns the leading views whose blocks are adjacent, up to `bytes_max`."""
    count, end = 1, views[0].offset + views[0].length
    for view in views[1:]:
        behind = view.log_id == views[0].log_id and view.offset == end
        if not behind or end + view.length - views[0].offset > bytes_max:
            break
        end += view.length
        count += 1
    return views[:count]


class LogWriter:
    """Appends blocks to a log of its own. For one thread."""

    def __init__(self, logs: EntryLogs) -> None:
        self._logs = logs
        self._file: File | None = None
        self._log_id = -1
        self._magic = b""
        self._offset = 0
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._unsynced: list[File] = []
        self._begun: list[int] = []
        """Logs begun since `committed`: the index refers to none of their blocks."""
        self._finished: list[int] = []
        """Logs finished since `committed`: the index may lack some of their blocks."""
        self.bytes_written = 0

    def append(
        self,
        ledger_id: int,
        segments: Sequence[Segment],
        ranges: Sequence[tuple[int, int]],
        entries: Sequence[bytes],
    ) -> BlockLocation:
        """Appends a block, which is durable after `sync`."""
        self._begin_if_full()
        head = codec.encode_head(self._magic, ledger_id, segments, ranges)
        body_bytes = sum(segment.body_bytes for segment in segments)
        length = len(head) + body_bytes
        padding = -length % codec.ALIGNMENT
        self._unwritten.append(head)
        if body_bytes <= JOIN_ENTRY_BYTES_MAX * len(entries):
            self._unwritten.append(b"".join(entries))
        else:
            self._unwritten += entries
        if padding:
            self._unwritten.append(bytes(padding))
        return self._locate(length + padding)

    def append_encoded(self, block: bytes) -> BlockLocation:
        """Appends a block of another log."""
        self._begin_if_full()
        # Only the magic of a block depends on the log.
        self._unwritten += (self._magic, block[len(self._magic) :])
        return self._locate(len(block))

    def _locate(self, length: int) -> BlockLocation:
        location = BlockLocation(self._log_id, self._offset, length)
        self._offset += length
        self._unwritten_bytes += length
        if self._unwritten_bytes >= WRITE_BYTES:
            self._write()
        return location

    def sync(self) -> None:
        """Writes and syncs all blocks appended so far."""
        self._write()
        for file in self._unsynced:
            file.sync()
        self._unsynced = [self._file] if self._file is not None else []

    def committed(self) -> None:
        """Records that the index durably has all synced blocks; the collector may use the logs."""
        for log_id in self._finished:
            self._logs.seal(log_id)
        self._finished = []
        self._begun = []

    def abandon(self, *, discard: bool = False) -> None:
        """Ends the current log after an error or at the end; the next block begins a new one.

        With `discard`, logs begun since `committed` are removed, so that failed attempts do not
        fill a full disk.
        """
        if self._file is not None:
            self._finished.append(self._log_id)
        self._file = None
        if discard:
            for log_id in self._begun:
                self._logs.discard(log_id)
        self.committed()
        self._unwritten = []
        self._unwritten_bytes = 0
        self._unsynced = []

    def _begin_if_full(self) -> None:
        if self._file is not None and self._offset < self._logs.settings.entry_log_bytes:
            return
        self._write()
        if self._file is not None:
            self._finished.append(self._log_id)
            self._file = None
        self._log_id, self._file = self._logs.create()
        self._magic = codec.log_magic(self._logs.incarnation, self._log_id)
        self._offset = codec.FILE_HEADER_BYTES
        self._begun.append(self._log_id)
        self._unsynced.append(self._file)

    def _write(self) -> None:
        if self._unwritten and self._file is not None:
            start = self._offset - self._unwritten_bytes
            self.bytes_written += self._file.write(self._unwritten, start)
        self._unwritten = []
        self._unwritten_bytes = 0
