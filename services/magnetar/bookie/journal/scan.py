"""Reads journal files: yields valid records in order, and classifies the bad ranges between them.

A record is valid only with a valid head, a valid body and the expected number. At anything else,
the scan searches for the next valid record by the file's mark and continues there, so that a bad
record never hides the good ones behind it. Skipped bytes become a `BadRange`. At the end, when the
highest `durable_seq` of all records is known, `JournalScan.classify` decides whether they had been
acknowledged:

- Lost numbers up to that `durable_seq` are **damage**.
- Bytes that the disk cannot read where a record is due are damage, as a torn write is readable.
- Bad bytes with nothing valid behind them are **torn**: the tail of an unacknowledged commit. The
  exception is a file that was zeros before: a record that is complete to its last byte, without
  the zeros of an unwritten sector, cannot be torn and is damage. (In a recycled file, only the
  mark that the journal writes when adds pause proves that.)
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from google_crc32c import value

from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.codec_v1 import (
    BadRecord,
    FileHeader,
    FileMarks,
    IncompleteRecord,
    Record,
)
from magnetar.bookie.journal.files import file_ids, file_name
from magnetar.core.units import KIB, MIB
from magnetar.disk.files import File, Files
from magnetar.disk.patchy_file import UNREADABLE, PatchyFile

CHUNK_BYTES: Final = 2 * MIB
SECTOR_BYTES: Final = 512

SEARCH_BYTES: Final = 4 * MIB
"""How far behind bad bytes every byte is searched for the next record. Behind that, samples decide
whether to search on. After a crash, most of the bytes are the unused end of a file, and a second of
start-up is worth more than records behind so large a hole that are all larger than the distance
between samples."""

SAMPLE_BYTES: Final = 64 * KIB
SAMPLE_EVERY_BYTES: Final = 1 * MIB


class ScannedRecord(msgspec.Struct, gc=False):
    """A valid record and its place."""

    file_id: int
    offset: int
    record: Record
    body: bytes


class BadRange(msgspec.Struct, gc=False):
    """Bad bytes from `offset` to `end` of a file, where records `first_seq` to `last_seq` belong.

    `record` is the head if only the body is bad. `last_seq` is -1 (unknown) at the tail of a file.
    """

    path: Path
    file_id: int
    offset: int
    end: int
    first_seq: int
    last_seq: int
    reason: str
    record: Record | None
    looks_complete: bool = False
    unreadable: bool = False
    """The disk reports a read error, which it does not for a torn write."""
    harmless: bool = False
    """A file header or a mark: no record is lost."""
    damage: bool = False


class _Invalid(msgspec.Struct):
    """Why there is no valid record at an offset, with its head if that is valid."""

    reason: str
    head: Record | None = None


class _Window:
    """The part of a file that is in memory."""

    def __init__(self, file: File) -> None:
        self._file = PatchyFile(file)
        self.size = self._file.size
        self.start = 0
        self.data = b""

    def at(self, offset: int, length: int) -> int:
        """Loads `length` bytes of the file from `offset` on; returns their index in `data`."""
        begin = offset - self.start
        if begin >= 0 and begin + length <= len(self.data):
            return begin
        self.start = offset
        length = max(length, CHUNK_BYTES)
        self.data = self._file.read(offset, length)
        # The disk reads ahead while the scan works on this part.
        self._file.will_read(offset + length, CHUNK_BYTES)
        return 0

    def samples_have(self, mark: bytes, offset: int) -> bool:
        """Whether samples of the file from `offset` on contain the mark."""
        starts = range(offset, self.size, SAMPLE_EVERY_BYTES)
        return any(mark in self._file.read(start, SAMPLE_BYTES) for start in starts)

    def has(self, mark: bytes) -> bool:
        """Whether the file contains the mark."""
        at = 0
        while at < self.size:
            begin = self.at(at, min(CHUNK_BYTES, self.size - at))
            if self.data.find(mark, begin) >= 0:
                return True
            end = self.start + len(self.data)
            if end >= self.size or end <= at:
                return False
            at = end - len(mark) + 1
        return False

    def unreadable(self, begin: int, end: int) -> bool:
        """Whether the disk failed to read some of these bytes, which were loaded before."""
        return self._file.unreadable(begin, end)


class _JournalFile(msgspec.Struct):
    """The file that is being scanned."""

    path: Path
    file_id: int
    window: _Window
    marks: FileMarks


class JournalScan:
    """One pass over the journal files of a directory, from a position on."""

    def __init__(self, files: Files, directory: Path, incarnation: bytes) -> None:
        self._files = files
        self._directory = directory
        self._incarnation = incarnation
        self.bad: list[BadRange] = []
        self.durable_seq = -1
        """The highest record that a valid record or header proves to have been synced."""
        self.last_seq = -1
        self.first_seq: int | None = None
        """The first record by the first file's header, if the scan began without a number."""
        self.ends: dict[int, int] = {}
        """Per file, the end of its last valid record."""

    def records(self, first_file_id: int, offset: int, seq: int) -> Iterator[ScannedRecord]:
        """Yields the valid records after `seq`, which ends at `offset` of file `first_file_id`.

        If `seq` is -1 (unknown), the first file's header gives the first number.
        """
        self.last_seq = seq
        for file_id in file_ids(self._files, self._directory):
            if file_id < first_file_id:
                continue
            start = offset if file_id == first_file_id else codec.FILE_HEADER_BYTES
            yield from self.file_records(file_id, start)

    def file_records(self, file_id: int, start: int) -> Iterator[ScannedRecord]:
        """Yields the valid records of one file after `last_seq`."""
        path = self._directory / file_name(file_id)
        opened = self._files.open(path, read_only=True)
        try:
            file = _JournalFile(
                path, file_id, _Window(opened), FileMarks(self._incarnation, file_id)
            )
            self.ends[file_id] = start
            header = self._check_header(file)
            if header is not None and header.file_id != file_id:
                if not file.window.has(file.marks.mark):
                    self._begin(header)
                    return
                # The disk lost the write of the header but kept the records: the page still has
                # the header of the file's former life.
                reason = f"the header is that of file {header.file_id}"
                self._add_bad(file, 0, codec.FILE_HEADER_BYTES, reason).harmless = True
                header = None
            was_zeros = header is not None and not header.recycled
            yield from self._scan(file, start, was_zeros=was_zeros)
        finally:
            opened.close()

    def classify(self) -> list[BadRange]:
        """Returns all bad ranges, each marked as damage or torn."""
        newest = max(self.ends, default=-1)
        for bad in self.bad:
            if bad.harmless:
                # A header torn while the newest file was begun: no record can be behind it.
                in_use = self.ends[bad.file_id] > codec.FILE_HEADER_BYTES
                bad.damage = in_use or bad.file_id != newest
            elif -1 < bad.last_seq < bad.first_seq:
                # No number is missing, so it was a mark. Marks are written without a sync, so it
                # may be torn although the records behind it are synced.
                bad.damage = False
            else:
                proven = bad.first_seq <= self.durable_seq or bad.unreadable
                bad.damage = proven or (bad.last_seq < 0 and bad.looks_complete)
        return self.bad

    def _check_header(self, file: _JournalFile) -> FileHeader | None:
        """Returns the file's header, None if it is bad. A recycled file that was not begun yet
        still has its former number."""
        window = file.window
        begin = window.at(0, codec.FILE_HEADER_BYTES)
        page = window.data[begin : begin + codec.FILE_HEADER_BYTES]
        try:
            header = codec.decode_file_header(page)
            if header.incarnation != self._incarnation:
                raise BadRecord("journal file of another bookie or incarnation")
        except BadRecord as error:
            if page.strip(b"\0"):
                reason = UNREADABLE if window.unreadable(0, len(page)) else str(error)
                self._add_bad(file, 0, len(page), reason).harmless = True
            return None
        if header.file_id != file.file_id:
            return header
        self._begin(header)
        # The journal begins a file only when all records before it are synced.
        self.durable_seq = max(self.durable_seq, header.first_seq - 1)
        if header.first_seq > self.last_seq + 1:
            bad = self._add_bad(file, 0, 0, "the records before this file are missing")
            self.last_seq = bad.last_seq = header.first_seq - 1
        return header

    def _begin(self, header: FileHeader) -> None:
        """Takes the first record's number from the first header if the scan began without one."""
        if self.last_seq < 0:
            self.first_seq = header.first_seq
            self.last_seq = header.first_seq - 1

    def _scan(self, file: _JournalFile, start: int, *, was_zeros: bool) -> Iterator[ScannedRecord]:
        window = file.window
        offset = start
        while offset < window.size:
            result = self._record_at(file, offset)
            if isinstance(result, ScannedRecord):
                self._check_mark(file, result)
                offset += result.record.size
                self._accept(result.record, file.file_id, offset)
                yield result
                continue
            next_offset = self._resync(file, offset)
            if next_offset is None:
                self._tail(file, offset, result, was_zeros=was_zeros)
                return
            bad = self._add_bad(file, offset, next_offset, result.reason, result.head)
            if window.unreadable(offset, next_offset):
                bad.unreadable, bad.reason = True, UNREADABLE
            at = window.at(next_offset, codec.HEAD_BYTES)
            record = codec.decode_head(window.data, at)
            first = record.first_entry if record.kind == codec.KIND_GAP else record.seq
            last = record.seq if record.kind == codec.KIND_MARK else first - 1
            self.last_seq = bad.last_seq = last
            offset = next_offset

    def _accept(self, record: Record, file_id: int, end: int) -> None:
        self.last_seq = record.seq
        self.durable_seq = max(self.durable_seq, record.durable_seq)
        self.ends[file_id] = end

    def _record_at(
        self, file: _JournalFile, offset: int, *, any_seq: bool = False
    ) -> ScannedRecord | _Invalid:
        """Reads the record at `offset`; with `any_seq`, its number may be above the expected."""
        window = file.window
        try:
            record = self._head_at(window, offset)
        except BadRecord as error:
            return _Invalid(str(error))
        due = self.last_seq + (0 if record.kind == codec.KIND_MARK else 1)
        first = record.first_entry if record.kind == codec.KIND_GAP else record.seq
        if first < due or (first > due and not any_seq):
            return _Invalid(f"record {first} where {due} is due")
        length = record.head_bytes + record.body_bytes
        if offset + length > window.size:
            return _Invalid("the file ends within the record", record)
        at = window.at(offset, length)
        body = window.data[at + record.head_bytes : at + length]
        if value(body) != record.body_crc:
            return _Invalid("record body fails its CRC", record)
        return ScannedRecord(file.file_id, offset, record, body)

    def _check_mark(self, file: _JournalFile, scanned: ScannedRecord) -> None:
        """Reports a flipped bit in the padding or mark of a record, which counts as valid."""
        length = scanned.record.head_bytes + scanned.record.body_bytes
        offset = scanned.offset + length
        expected = file.marks.tails[-length % codec.ALIGNMENT]
        at = file.window.at(offset, len(expected))
        tail = file.window.data[at : at + len(expected)]
        # A tail that is cut short was torn.
        if not expected.startswith(tail.rstrip(b"\0")):
            end = offset + len(tail)
            bad = self._add_bad(file, offset, end, "padding or mark is bad", scanned.record)
            bad.harmless = True

    def _head_at(self, window: _Window, offset: int) -> Record:
        at = window.at(offset, codec.HEAD_BYTES)
        try:
            return codec.decode_head(window.data, at)
        except IncompleteRecord as error:
            if offset + error.needed > window.size:
                raise BadRecord("the file ends within a record's head") from None
            at = window.at(offset, error.needed)
            return codec.decode_head(window.data, at)

    def _resync(self, file: _JournalFile, offset: int) -> int | None:
        """Returns the offset of the next valid record from `offset` on, None if there is none."""
        if isinstance(self._record_at(file, offset, any_seq=True), ScannedRecord):
            return offset
        window, mark = file.window, file.marks.mark
        position = offset - offset % codec.ALIGNMENT
        sampled = False
        while position < window.size:
            at = window.at(position, len(mark))
            hit = window.data.find(mark, at)
            if hit < 0:
                position = max(window.start + len(window.data) - len(mark) + 1, position + 1)
                if window.start + len(window.data) >= window.size:
                    return None
                if not sampled and position - offset >= SEARCH_BYTES:
                    # So long a stretch is the unused tail, or very large damage.
                    sampled = True
                    if not window.samples_have(mark, position):
                        return None
                continue
            candidate = window.start + hit + len(mark)
            position = candidate
            if candidate % codec.ALIGNMENT:
                continue
            if isinstance(self._record_at(file, candidate, any_seq=True), ScannedRecord):
                return candidate
        return None

    def _tail(self, file: _JournalFile, offset: int, invalid: _Invalid, *, was_zeros: bool) -> None:
        """Reports bad bytes behind the last valid record, if not zeros or a former life."""
        if self._unreadable_tail(file, offset, invalid):
            return
        record = invalid.head
        if record is None and not was_zeros:
            return
        window, mark = file.window, file.marks.mark
        end = offset + (record.size if record is not None else CHUNK_BYTES)
        end = min(end, window.size)
        at = window.at(offset, end - offset)
        data = window.data[at : at + end - offset]
        if record is None:
            # Its length is unknown, but a whole record ends with the mark.
            data = data[: data.rfind(mark) + codec.MARK_BYTES]
            data = data if len(data) > codec.HEAD_BYTES else window.data[at : at + codec.HEAD_BYTES]
            end = offset + len(data)
        if not data.strip(b"\0"):
            return
        bad = self._add_bad(file, offset, end, invalid.reason, record)
        complete = data.endswith(mark) and not _has_unwritten(data, offset)
        bad.looks_complete = was_zeros and complete

    def _unreadable_tail(self, file: _JournalFile, offset: int, invalid: _Invalid) -> bool:
        """Reports unreadable records behind the last valid one; returns whether there are any.

        A bad page may contain the end of a record whose head is good, and the heads of others.
        """
        window = file.window
        reported = False
        result: ScannedRecord | _Invalid = invalid
        while isinstance(result, _Invalid) and offset < window.size:
            record = result.head
            if record is None:
                at = window.at(offset, codec.HEAD_BYTES)
                claimed = codec.head_bytes_claimed(window.data[at : at + codec.HEAD_BYTES])
            else:
                claimed = record.size
            end = min(offset + claimed, window.size)
            if not window.unreadable(offset, end):
                break
            bad = self._add_bad(file, offset, end, UNREADABLE, record)
            bad.unreadable = reported = True
            if record is None:
                break
            self.last_seq = bad.last_seq = record.seq
            offset = end
            result = self._record_at(file, offset)
        return reported

    def _add_bad(
        self,
        file: _JournalFile,
        offset: int,
        end: int,
        reason: str,
        record: Record | None = None,
    ) -> BadRange:
        bad = BadRange(
            path=file.path,
            file_id=file.file_id,
            offset=offset,
            end=end,
            first_seq=self.last_seq + 1,
            last_seq=-1,
            reason=reason,
            record=record,
        )
        self.bad.append(bad)
        return bad


def _has_unwritten(data: bytes, offset: int) -> bool:
    """Whether `data` has zeros for its part of some sector, as a torn write leaves them."""
    cuts = [0, *range(-offset % SECTOR_BYTES, len(data), SECTOR_BYTES), len(data)]
    pieces = (data[start:stop] for start, stop in pairwise(cuts) if start < stop)
    return not all(piece.strip(b"\0") for piece in pieces)
