"""The journal's file format, version 1: encodes and decodes records. Pure: no IO.

A file is a 4 KiB header that ends with the file's 8-byte mark, followed by records, one per group
of entries, each aligned to 8 bytes and followed by the mark:

    head   64 bytes: CRCs, sequence, ledger, counts (`_HEAD`)
    tables lengths u32 x count if count > 1; entry ids i64 x count if FLAG_IDS
    body   the entries, concatenated
    tail   0-7 zero bytes up to alignment, then the mark

All numbers are little-endian. The head CRC covers head and tables, the body CRC the entries. If
only the body is damaged, the head therefore still identifies the lost entries. The mark contains a
salt of the bookie's incarnation and the file's number, so that a search for the next record behind
a damaged one matches neither payloads that look like records nor the former life of a recycled
file.

`seq` numbers the records of a bookie, across files and without holes; a record is only valid with
the expected number. `durable_seq` is the highest record that was synced when this one was encoded.
It proves that a bad record up to that number had been acknowledged (damage); a bad record above
every `durable_seq` may be a torn write. See `docs/formats/storage-format.md`.
"""

import struct
from array import array
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import Final

import msgspec
from google_crc32c import extend, value

VERSION: Final = 1
FILE_MAGIC: Final = b"MGNTJRNL"
FILE_HEADER_BYTES: Final = 4096
ALIGNMENT: Final = 8
MARK_BYTES: Final = 8

KIND_ADD: Final = 1
KIND_FENCE: Final = 2
KIND_DELETE: Final = 3
KIND_MARK: Final = 4
"""Only carries `durable_seq`: written without a sync when adds pause, to tell damage from torn
writes. It takes no number: its `seq` is that of the record before it."""

KIND_GAP: Final = 5
"""The numbers from `first_entry` to `seq` were refused (disk full) and never written."""

KINDS: Final = {
    KIND_ADD: "add",
    KIND_FENCE: "fence",
    KIND_DELETE: "delete",
    KIND_MARK: "mark",
    KIND_GAP: "gap",
}
FLAG_IDS: Final = 1

JOIN_ENTRY_BYTES_MAX: Final = 8192
"""Groups of smaller entries are joined first: one CRC call and one buffer instead of hundreds
(measured: 60 ns per KiB instead of 121). Larger entries are never copied."""

# head CRC, body CRC, seq, durable seq, ledger, LAC, first entry, count, body bytes, kind, flags,
# two reserved fields.
_HEAD: Final = struct.Struct("<IIQQqqqIIBBHI")
_HEAD_REST: Final = struct.Struct("<IQQqqqIIBBHI")
HEAD_BYTES: Final = _HEAD.size
_FILE_HEADER: Final = struct.Struct("<8sHHI16sQQ")
_U32: Final = struct.Struct("<I")
_NATIVE_LITTLE: Final = array("H", [1]).tobytes() == b"\x01\x00"


class Record(msgspec.Struct, gc=False):
    """A record's head and tables. `lengths` is the packed table, also of a single entry."""

    kind: int
    seq: int
    durable_seq: int
    ledger_id: int
    last_add_confirmed: int
    first_entry: int
    count: int
    body_bytes: int
    body_crc: int
    lengths: bytes
    entry_ids: Sequence[int]
    head_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole record, its tail included."""
        length = self.head_bytes + self.body_bytes
        return length + -length % ALIGNMENT + MARK_BYTES


class FileHeader(msgspec.Struct, frozen=True):
    """The header in a journal file's first page."""

    file_id: int
    first_seq: int
    incarnation: bytes
    recycled: bool = False


class BadRecord(ValueError):
    """The bytes are not a valid record head or file header."""


class IncompleteRecord(BadRecord):
    """The data ends within the head; decoding needs `needed` bytes from its start."""

    def __init__(self, needed: int) -> None:
        super().__init__("the data ends within a record")
        self.needed = needed


class FileMarks:
    """The mark of one journal file, and the eight tails that end with it."""

    __slots__ = ("mark", "tails")

    def __init__(self, incarnation: bytes, file_id: int) -> None:
        salt = value(incarnation + file_id.to_bytes(8, "little"))
        self.mark = b"MJR1" + _U32.pack(salt)
        self.tails = tuple(bytes(padding) + self.mark for padding in range(ALIGNMENT))


def encode_file_header(header: FileHeader) -> bytes:
    """Returns the file's first page, including the mark."""
    fixed = _FILE_HEADER.pack(
        FILE_MAGIC,
        VERSION,
        int(header.recycled),
        0,
        header.incarnation,
        header.file_id,
        header.first_seq,
    )
    page = (fixed + _U32.pack(value(fixed))).ljust(FILE_HEADER_BYTES - MARK_BYTES, b"\0")
    return page + FileMarks(header.incarnation, header.file_id).mark


def decode_file_header(page: bytes) -> FileHeader:
    """Decodes the first page; raises BadRecord if it is damaged or of another version."""
    size = _FILE_HEADER.size
    if len(page) < FILE_HEADER_BYTES or page[:8] != FILE_MAGIC:
        raise BadRecord("no journal file header")
    if _U32.unpack_from(page, size)[0] != value(page[:size]):
        raise BadRecord("journal file header fails its CRC")
    _, version, recycled, _, incarnation, file_id, first_seq = _FILE_HEADER.unpack_from(page)
    if version != VERSION:
        raise BadRecord(f"journal file of version {version}, this software reads {VERSION}")
    header = FileHeader(file_id, first_seq, incarnation, bool(recycled))
    if page[:FILE_HEADER_BYTES] != encode_file_header(header):
        raise BadRecord("journal file header has bytes where zeros or the mark belong")
    return header


def pack_lengths(entries: Sequence[bytes]) -> bytes:
    """Returns the lengths table: u32 per entry."""
    if len(entries) == 1:
        return _U32.pack(len(entries[0]))
    if _NATIVE_LITTLE:
        return array("I", map(len, entries)).tobytes()
    return struct.pack(f"<{len(entries)}I", *map(len, entries))


def unpack_lengths(lengths: bytes) -> Sequence[int]:
    """Decodes the table of `pack_lengths`."""
    return struct.unpack(f"<{len(lengths) // 4}I", lengths)


def entries_crc(entries: Sequence[bytes]) -> int:
    """Returns the CRC-32C over the concatenated entries."""
    return int(reduce(extend, entries, 0))


def body_of(entries: Sequence[bytes]) -> tuple[Sequence[bytes], int, int]:
    """Returns (buffers to write, bytes, CRC) of the entries."""
    if len(entries) == 1:
        return entries, len(entries[0]), value(entries[0])
    size = sum(map(len, entries))
    if size > JOIN_ENTRY_BYTES_MAX * len(entries):
        return entries, size, entries_crc(entries)
    body = b"".join(entries)
    return (body,), size, value(body)


def encode_head(
    kind: int,
    seq: int,
    durable_seq: int,
    ledger_id: int,
    last_add_confirmed: int,
    *,
    entry_ids: Sequence[int] = (),
    lengths: bytes = b"",
    body_bytes: int = 0,
    body_crc: int = 0,
    first_entry: int = -1,
) -> bytes:
    """Returns head and tables of a record. `first_entry` is for kinds without entries."""
    count = len(entry_ids)
    if count:
        first_entry = entry_ids[0]
    tables = lengths if count > 1 else b""
    flags = 0
    if count > 1 and entry_ids[-1] - entry_ids[0] != count - 1:
        flags = FLAG_IDS
        tables += struct.pack(f"<{count}q", *entry_ids)
    rest = _HEAD_REST.pack(
        body_crc,
        seq,
        durable_seq,
        ledger_id,
        last_add_confirmed,
        first_entry,
        count,
        body_bytes,
        kind,
        flags,
        0,
        0,
    )
    if tables:
        rest += tables
    return _U32.pack(value(rest)) + rest


def decode_head(data: bytes, offset: int) -> Record:
    """Decodes the head at `offset`; raises BadRecord, or IncompleteRecord if `data` ends in it."""
    available = len(data) - offset
    if available < HEAD_BYTES:
        raise IncompleteRecord(HEAD_BYTES)
    crc, body_crc, seq, durable_seq, ledger_id, lac, first_entry, count, body_bytes, *rest = (
        _HEAD.unpack_from(data, offset)
    )
    kind, flags, reserved, reserved2 = rest
    if kind not in KINDS or flags & ~FLAG_IDS or reserved or reserved2:
        raise BadRecord(f"no record head: kind {kind}, flags {flags}")
    lengths_bytes = 4 * count if count > 1 else 0
    ids_bytes = 8 * count if flags & FLAG_IDS else 0
    head_bytes = HEAD_BYTES + lengths_bytes + ids_bytes
    if available < head_bytes:
        raise IncompleteRecord(head_bytes)
    if value(data[offset + 4 : offset + head_bytes]) != crc:
        raise BadRecord("record head fails its CRC")
    tables_at = offset + HEAD_BYTES
    lengths = data[tables_at : tables_at + lengths_bytes]
    if count == 1:
        lengths = _U32.pack(body_bytes)
    entry_ids: Sequence[int] = range(first_entry, first_entry + count)
    if ids_bytes:
        entry_ids = struct.unpack_from(f"<{count}q", data, tables_at + lengths_bytes)
    return Record(
        kind,
        seq,
        durable_seq,
        ledger_id,
        lac,
        first_entry,
        count,
        body_bytes,
        body_crc,
        lengths,
        entry_ids,
        head_bytes,
    )


def head_bytes_claimed(head: bytes) -> int:
    """Returns the size of head and tables by the counts in the fixed part, before any CRC check."""
    if len(head) < HEAD_BYTES:
        return HEAD_BYTES
    count: int
    *_, count, _, kind, flags, reserved, reserved2 = _HEAD.unpack(head)
    if kind not in KINDS or flags & ~FLAG_IDS or reserved or reserved2 or count < 2:
        return HEAD_BYTES
    return HEAD_BYTES + count * (12 if flags & FLAG_IDS else 4)


def split_body(body: bytes, lengths: bytes) -> list[bytes]:
    """Splits a body into its entries."""
    bounds = accumulate(unpack_lengths(lengths), initial=0)
    return [body[start:stop] for start, stop in pairwise(bounds)]
