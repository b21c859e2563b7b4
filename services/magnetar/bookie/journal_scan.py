"""Reads journal files back: valid records in order, and what is bad between or behind them.

A record counts only with a valid head, a valid body and the number that is due. Where something
else stands, the scan looks for the next valid record by the file's mark and goes on there, so that
one bad record never hides the good ones behind it. What it skipped is a `Bad`; whether that was
acknowledged is decided at the end (`JournalScan.judge`), when the highest `durable_seq` that any
record proves is known:

- lost numbers at or below it: **damage**;
- bytes that the disk cannot read where a record is due: damage, as a torn write is readable;
- bad bytes with nothing valid behind them: the torn tail of a commit that nobody was told of. But
  in a file that was zeros before, a record complete to its last byte, without a gap of zeros as an
  unwritten sector leaves, cannot be torn: damage too. (In a recycled file the mark that the
  journal writes when adds pause has to prove it.)
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from google_crc32c import value

from magnetar.bookie import journal_codec_v1 as codec
from magnetar.bookie.files import File, Files
from magnetar.bookie.journal_codec_v1 import (
    BadRecord,
    FileHeader,
    FileMarks,
    IncompleteRecord,
    Record,
)
from magnetar.bookie.journal_files import file_ids, file_name
from magnetar.bookie.patchy_file import UNREADABLE, PatchyFile
from magnetar.bookie.settings import KIB, MIB

CHUNK_BYTES: Final = 2 * MIB
SECTOR_BYTES: Final = 512

SEARCH_BYTES: Final = 4 * MIB
"""How far behind bad bytes every byte is searched for the next record. Behind that, samples say
whether there is anything to search for: the unused end of a file is most of what there is to read
after a crash, and a second of opening is worth more than records behind such a hole whose own
records are all larger than the samples are apart."""

SAMPLE_BYTES: Final = 64 * KIB
SAMPLE_EVERY_BYTES: Final = 1 * MIB


class Found(msgspec.Struct, gc=False):
    """A valid record."""

    file_id: int
    offset: int
    record: Record
    body: bytes


class Bad(msgspec.Struct, gc=False):
    """Bytes `offset` to `end` of a file where records `first_seq` to `last_seq` belong.

    `record` is the head, where only the body is bad. `last_seq` is -1 at a file's tail: unknown.
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
    """The disk reports a read error. A write that was cut off reads without one."""
    harmless: bool = False
    """A file header or a mark: no record went with it."""
    damage: bool = False


class _Window:
    """The part of a file that is in memory."""

    def __init__(self, file: File) -> None:
        self._file = PatchyFile(file)
        self.size = self._file.size
        self.start = 0
        self.data = b""

    def at(self, offset: int, length: int) -> int:
        """Where in `data` the file's bytes from `offset` are, at least `length` if there."""
        begin = offset - self.start
        if begin >= 0 and begin + length <= len(self.data):
            return begin
        self.start = offset
        length = max(length, CHUNK_BYTES)
        self.data = self._file.read(offset, length)
        # The disk reads on while this part is worked on.
        self._file.will_read(offset + length, CHUNK_BYTES)
        return 0

    def samples_have(self, mark: bytes, offset: int) -> bool:
        """Whether samples of the file from `offset` on have the mark in them."""
        starts = range(offset, self.size, SAMPLE_EVERY_BYTES)
        return any(mark in self._file.read(start, SAMPLE_BYTES) for start in starts)

    def has(self, mark: bytes) -> bool:
        """Whether the mark is anywhere in the file."""
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
        """Whether some of the bytes, which were in memory before, cannot be read."""
        return self._file.unreadable(begin, end)


class JournalScan:
    """One pass over the journal files of a directory, from a position on."""

    def __init__(self, files: Files, directory: Path, incarnation: bytes) -> None:
        self._files = files
        self._directory = directory
        self._incarnation = incarnation
        self.bad: list[Bad] = []
        self.durable_seq = -1
        self.last_seq = -1
        self.first_seq: int | None = None
        """The record that the first file begins with, if its header was needed to know it."""
        self.ends: dict[int, int] = {}
        """Per file, where its last valid record ends."""

    def records(self, first_file_id: int, offset: int, seq: int) -> Iterator[Found]:
        """Valid records from the one after `seq` at `offset` of file `first_file_id` on.

        A `seq` of -1 means unknown: then it is what the first file's header says.
        """
        self.last_seq = seq
        for file_id in file_ids(self._files, self._directory):
            if file_id < first_file_id:
                continue
            start = offset if file_id == first_file_id else codec.FILE_HEADER_BYTES
            yield from self.file_records(file_id, start)

    def file_records(self, file_id: int, start: int) -> Iterator[Found]:
        """Valid records of one file, after `last_seq`."""
        path = self._directory / file_name(file_id)
        file = self._files.open(path, read_only=True)
        try:
            window = _Window(file)
            self.ends[file_id] = start
            header = self._check_header(path, file_id, window)
            if header is not None and header.file_id != file_id:
                if not window.has(FileMarks(self._incarnation, file_id).mark):
                    self._begin(header)
                    return
                # The disk lost the header and kept the records: the page holds its former life.
                reason = f"the header is that of file {header.file_id}"
                self._add_bad(path, file_id, 0, codec.FILE_HEADER_BYTES, reason)
                self.bad[-1].harmless = True
                header = None
            was_zeros = header is not None and not header.recycled
            yield from self._scan(path, file_id, window, start, was_zeros)
        finally:
            file.close()

    def judge(self) -> list[Bad]:
        """All that is bad, each marked as damage or torn."""
        newest = max(self.ends, default=-1)
        for bad in self.bad:
            if bad.harmless:
                # A header torn while the newest file was begun: no record can be behind it.
                in_use = self.ends[bad.file_id] > codec.FILE_HEADER_BYTES
                bad.damage = in_use or bad.file_id != newest
            elif -1 < bad.last_seq < bad.first_seq:
                # No number is missing, so it was a mark: written unsynced, it may be torn although
                # the records behind it are synced.
                bad.damage = False
            else:
                proven = bad.first_seq <= self.durable_seq or bad.unreadable
                bad.damage = proven or (bad.last_seq < 0 and bad.looks_complete)
        return self.bad

    def _check_header(self, path: Path, file_id: int, window: _Window) -> FileHeader | None:
        """The file's header, None where it is bad. A file that was recycled and not begun yet
        still has its former number."""
        begin = window.at(0, codec.FILE_HEADER_BYTES)
        page = window.data[begin : begin + codec.FILE_HEADER_BYTES]
        try:
            header = codec.decode_file_header(page)
            if header.incarnation != self._incarnation:
                raise BadRecord("journal file of another bookie or incarnation")
        except BadRecord as error:
            if page.strip(b"\0"):
                reason = UNREADABLE if window.unreadable(0, len(page)) else str(error)
                self._add_bad(path, file_id, 0, len(page), reason)
                self.bad[-1].harmless = True
            return None
        if header.file_id != file_id:
            return header
        self._begin(header)
        # The writer begins a file when all before it is synced.
        self.durable_seq = max(self.durable_seq, header.first_seq - 1)
        if header.first_seq > self.last_seq + 1:
            self._add_bad(path, file_id, 0, 0, "the records before this file are missing")
            self.last_seq = self.bad[-1].last_seq = header.first_seq - 1
        return header

    def _begin(self, header: FileHeader) -> None:
        """Takes the first record's number from the first header, where nothing else says it."""
        if self.last_seq < 0:
            self.first_seq = header.first_seq
            self.last_seq = header.first_seq - 1

    def _scan(
        self, path: Path, file_id: int, window: _Window, start: int, was_zeros: bool
    ) -> Iterator[Found]:
        marks = FileMarks(self._incarnation, file_id)
        offset = start
        while offset < window.size:
            found = self._record_at(file_id, window, offset)
            if isinstance(found, Found):
                self._check_mark(path, file_id, window, found, marks)
                offset += found.record.size
                self._accept(file_id, found, offset)
                yield found
                continue
            next_offset = self._resync(file_id, window, offset, marks)
            if next_offset is None:
                self._tail(path, file_id, window, offset, found, marks, was_zeros)
                return
            self._add_bad(path, file_id, offset, next_offset, *found)
            if window.unreadable(offset, next_offset):
                self.bad[-1].unreadable, self.bad[-1].reason = True, UNREADABLE
            at = window.at(next_offset, codec.HEAD_BYTES)
            record = codec.decode_head(window.data, at)
            first = record.first_entry if record.kind == codec.KIND_GAP else record.seq
            last = record.seq if record.kind == codec.KIND_MARK else first - 1
            self.bad[-1].last_seq = last
            self.last_seq = last
            offset = next_offset

    def _accept(self, file_id: int, found: Found, end: int) -> None:
        record = found.record
        self.last_seq = record.seq
        self.durable_seq = max(self.durable_seq, record.durable_seq)
        self.ends[file_id] = end

    def _record_at(
        self, file_id: int, window: _Window, offset: int, *, any_seq: bool = False
    ) -> "Found | tuple[str, Record | None]":
        """The record at `offset`, or why there is none and its head if that is good."""
        try:
            record = self._head_at(window, offset)
        except BadRecord as error:
            return str(error), None
        due = self.last_seq + (0 if record.kind == codec.KIND_MARK else 1)
        first = record.first_entry if record.kind == codec.KIND_GAP else record.seq
        if first < due or (first > due and not any_seq):
            return f"record {first} where {due} is due", None
        length = record.head_bytes + record.body_bytes
        if offset + length > window.size:
            return "the file ends within the record", record
        at = window.at(offset, length)
        body = window.data[at + record.head_bytes : at + length]
        if value(body) != record.body_crc:
            return "record body fails its CRC", record
        return Found(file_id, offset, record, body)

    def _check_mark(
        self, path: Path, file_id: int, window: _Window, found: Found, marks: FileMarks
    ) -> None:
        """A good record whose padding or mark is bad counts; a flipped bit there is reported."""
        length = found.record.head_bytes + found.record.body_bytes
        offset = found.offset + length
        wanted = marks.tails[-length % codec.ALIGNMENT]
        at = window.at(offset, len(wanted))
        tail = window.data[at : at + len(wanted)]
        # Cut short, it was torn.
        if not wanted.startswith(tail.rstrip(b"\0")):
            end = offset + len(tail)
            self._add_bad(path, file_id, offset, end, "padding or mark is bad", found.record)
            self.bad[-1].harmless = True

    def _head_at(self, window: _Window, offset: int) -> Record:
        at = window.at(offset, codec.HEAD_BYTES)
        try:
            return codec.decode_head(window.data, at)
        except IncompleteRecord as error:
            if offset + error.wanted > window.size:
                raise BadRecord("the file ends within a record's head") from None
            at = window.at(offset, error.wanted)
            return codec.decode_head(window.data, at)

    def _resync(self, file_id: int, window: _Window, offset: int, marks: FileMarks) -> int | None:
        """Where the next valid record begins, at `offset` or behind it."""
        if isinstance(self._record_at(file_id, window, offset, any_seq=True), Found):
            return offset
        mark_bytes = codec.MARK_BYTES
        position = offset - offset % codec.ALIGNMENT
        sampled = False
        while position < window.size:
            at = window.at(position, mark_bytes)
            hit = window.data.find(marks.mark, at)
            if hit < 0:
                position = max(window.start + len(window.data) - mark_bytes + 1, position + 1)
                if window.start + len(window.data) >= window.size:
                    return None
                if not sampled and position - offset >= SEARCH_BYTES:
                    # So long a stretch is a tail, or damage beyond measure.
                    sampled = True
                    if not window.samples_have(marks.mark, position):
                        return None
                continue
            candidate = window.start + hit + mark_bytes
            position = candidate
            if candidate <= offset or candidate % codec.ALIGNMENT:
                continue
            found = self._record_at(file_id, window, candidate, any_seq=True)
            if isinstance(found, Found):
                return candidate
        return None

    def _tail(
        self,
        path: Path,
        file_id: int,
        window: _Window,
        offset: int,
        found: "tuple[str, Record | None]",
        marks: FileMarks,
        was_zeros: bool,
    ) -> None:
        """What is behind a file's last valid record: zeros, an old life, or something bad."""
        reason, record = found
        if self._unreadable_tail(path, file_id, window, offset, found):
            return
        if record is None and not was_zeros:
            return
        end = offset + (record.size if record is not None else CHUNK_BYTES)
        end = min(end, window.size)
        at = window.at(offset, end - offset)
        data = window.data[at : at + end - offset]
        if record is None:
            # How long it was is not known, but a whole record ends with the mark.
            data = data[: data.rfind(marks.mark) + codec.MARK_BYTES]
            data = data if len(data) > codec.HEAD_BYTES else window.data[at : at + codec.HEAD_BYTES]
            end = offset + len(data)
        if not data.strip(b"\0"):
            return
        self._add_bad(path, file_id, offset, end, reason, record)
        complete = data.endswith(marks.mark) and not _has_unwritten(data, offset)
        self.bad[-1].looks_complete = was_zeros and complete

    def _unreadable_tail(
        self,
        path: Path,
        file_id: int,
        window: _Window,
        offset: int,
        found: "Found | tuple[str, Record | None]",
    ) -> bool:
        """Notes the records behind the last valid one that the disk cannot read; whether it did.

        One bad page may hold the end of a record whose head is good, and the heads of others.
        """
        noted = False
        while not isinstance(found, Found) and offset < window.size:
            _, record = found
            if record is None:
                at = window.at(offset, codec.HEAD_BYTES)
                claimed = codec.head_bytes_claimed(window.data[at : at + codec.HEAD_BYTES])
            else:
                claimed = record.size
            end = min(offset + claimed, window.size)
            if not window.unreadable(offset, end):
                break
            self._add_bad(path, file_id, offset, end, UNREADABLE, record)
            self.bad[-1].unreadable = noted = True
            if record is None:
                break
            self.last_seq = self.bad[-1].last_seq = record.seq
            offset = end
            found = self._record_at(file_id, window, offset)
        return noted

    def _add_bad(
        self,
        path: Path,
        file_id: int,
        offset: int,
        end: int,
        reason: str,
        record: Record | None = None,
    ) -> None:
        self.bad.append(Bad(path, file_id, offset, end, self.last_seq + 1, -1, reason, record))


def _has_unwritten(data: bytes, offset: int) -> bool:
    """Whether the part of some sector in `data` is zeros, as a torn write leaves it."""
    cuts = [0, *range(-offset % SECTOR_BYTES, len(data), SECTOR_BYTES), len(data)]
    pieces = (data[start:stop] for start, stop in pairwise(cuts) if start < stop)
    return not all(piece.strip(b"\0") for piece in pieces)
