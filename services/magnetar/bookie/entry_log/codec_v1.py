"""The entry logs' file format, version 1: encodes and decodes blocks. Pure: no IO.

A log is a 64-byte file header followed by blocks, each aligned to 8 bytes. A block contains entries
of one ledger, ascending:

    head     64 bytes: magic, CRC, ledger, first and last entry, counts (`_HEAD`)
    lengths  u32 x entries
    segments (count u32, CRC-32C u32) x segments
    ranges   (first entry i64, count u32) x ranges, only if more than one
    body     the entries, concatenated
    padding  0-7 zero bytes

A segment is a group of the journal. Its CRC is computed once, when the bookie receives the entries,
and covers them from then on, also in the write cache. The head CRC covers head and tables. The
magic contains a salt of the bookie's incarnation and the log's number, so that a search in a
damaged log never takes a payload for a block. All numbers are little-endian.
See `docs/formats/storage-format.md`.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Final

import msgspec
from google_crc32c import value

VERSION: Final = 1
FILE_MAGIC: Final = b"MGNTELOG"
FILE_HEADER_BYTES: Final = 64
ALIGNMENT: Final = 8

_FILE_HEADER: Final = struct.Struct("<8sHHI16sQ")
# magic, head CRC, flags, ledger, first entry, last entry, entries, segments, ranges, body bytes,
# reserved.
_HEAD: Final = struct.Struct("<8sIIqqqIIIIQ")
_HEAD_REST: Final = struct.Struct("<IqqqIIIIQ")
HEAD_BYTES: Final = _HEAD.size
_CRC_COVERS_FROM: Final = 12
_U32: Final = struct.Struct("<I")
_RANGE_BYTES: Final = 12
_SEGMENT_BYTES: Final = 8


class BadBlock(ValueError):
    """The bytes are not a valid block."""


class Segment(msgspec.Struct, gc=False):
    """Consecutive entries with one CRC. `lengths` is their packed table."""

    count: int
    crc: int
    body_bytes: int
    lengths: bytes


class BlockHead(msgspec.Struct, gc=False):
    """A block's head and tables. `ranges` are (first entry, count), ascending."""

    ledger_id: int
    first_entry: int
    last_entry: int
    count: int
    body_bytes: int
    head_bytes: int
    lengths: Sequence[int]
    segments: Sequence[tuple[int, int]]
    ranges: Sequence[tuple[int, int]]

    @property
    def size(self) -> int:
        """Bytes of the whole block, its padding included."""
        length = self.head_bytes + self.body_bytes
        return length + -length % ALIGNMENT


class Block(msgspec.Struct, gc=False):
    """A decoded block: entries with ascending ids."""

    ledger_id: int
    first_entry: int
    last_entry: int
    ranges: Sequence[tuple[int, int]]
    entries: list[bytes]
    body_bytes: int

    def slice(self, first: int, last: int) -> tuple[Sequence[int], list[bytes]]:
        """Returns the ids and entries from `first` to `last` that the block contains."""
        if len(self.ranges) == 1:
            base = self.first_entry
            start, stop = max(first, base), min(last, self.last_entry) + 1
            if start >= stop:
                return (), []
            return range(start, stop), self.entries[start - base : stop - base]
        ids = list(chain.from_iterable(range(base, base + count) for base, count in self.ranges))
        low, high = bisect_left(ids, first), bisect_right(ids, last)
        return ids[low:high], self.entries[low:high]


def log_magic(incarnation: bytes, log_id: int) -> bytes:
    """Returns the magic of a log's blocks."""
    return b"MEB1" + _U32.pack(value(incarnation + log_id.to_bytes(8, "little")))


def encode_file_header(incarnation: bytes, log_id: int) -> bytes:
    """Returns the file header of a log."""
    fixed = _FILE_HEADER.pack(FILE_MAGIC, VERSION, 0, 0, incarnation, log_id)
    return (fixed + _U32.pack(value(fixed))).ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(data: bytes) -> tuple[bytes, int]:
    """Decodes a file header to (incarnation, log id); raises BadBlock."""
    size = _FILE_HEADER.size
    if len(data) < FILE_HEADER_BYTES or data[:8] != FILE_MAGIC:
        raise BadBlock("no entry log header")
    if _U32.unpack_from(data, size)[0] != value(data[:size]):
        raise BadBlock("entry log header fails its CRC")
    _, version, _, _, incarnation, log_id = _FILE_HEADER.unpack_from(data)
    if version != VERSION:
        raise BadBlock(f"entry log of version {version}, this software reads {VERSION}")
    if data[:FILE_HEADER_BYTES] != encode_file_header(incarnation, log_id):
        raise BadBlock("entry log header has bytes where zeros belong")
    return incarnation, log_id


def encode_head(
    magic: bytes, ledger_id: int, segments: Sequence[Segment], ranges: Sequence[tuple[int, int]]
) -> bytes:
    """Returns head and tables of a block."""
    first_entry = ranges[0][0]
    last_entry = ranges[-1][0] + ranges[-1][1] - 1
    tables = [segment.lengths for segment in segments]
    flat: list[int] = []
    count = body_bytes = 0
    for segment in segments:
        count += segment.count
        body_bytes += segment.body_bytes
        flat += (segment.count, segment.crc)
    tables.append(struct.pack(f"<{len(flat)}I", *flat))
    if len(ranges) > 1:
        tables.append(struct.pack("<" + "qI" * len(ranges), *chain.from_iterable(ranges)))
    rest = b"".join(
        (
            _HEAD_REST.pack(
                0,
                ledger_id,
                first_entry,
                last_entry,
                count,
                len(segments),
                len(ranges),
                body_bytes,
                0,
            ),
            *tables,
        )
    )
    return magic + _U32.pack(value(rest)) + rest


def head_length(data: bytes, offset: int, magic: bytes) -> int:
    """Returns the size of head and tables by the fixed part, before any CRC check."""
    if len(data) - offset < HEAD_BYTES or data[offset : offset + 8] != magic:
        raise BadBlock("no block magic")
    *_, count, segments, ranges, _, _ = _HEAD.unpack_from(data, offset)
    ranges_bytes = _RANGE_BYTES * int(ranges) if ranges > 1 else 0
    return HEAD_BYTES + 4 * int(count) + _SEGMENT_BYTES * int(segments) + ranges_bytes


def decode_head(data: bytes, offset: int, magic: bytes) -> BlockHead:
    """Decodes the head at `offset`; raises BadBlock."""
    head_bytes = head_length(data, offset, magic)
    end = offset + head_bytes
    if end > len(data):
        raise BadBlock("the block's tables do not fit")
    _, crc, flags, ledger_id, first, last, count, n_segments, n_ranges, body_bytes, reserved = (
        _HEAD.unpack_from(data, offset)
    )
    if value(data[offset + _CRC_COVERS_FROM : end]) != crc:
        raise BadBlock("block head fails its CRC")
    if flags or reserved or not count:
        raise BadBlock(f"block with unknown flags {flags} or no entries")
    at = offset + HEAD_BYTES
    lengths = struct.unpack_from(f"<{count}I", data, at)
    at += 4 * count
    flat = struct.unpack_from(f"<{2 * n_segments}I", data, at)
    at += _SEGMENT_BYTES * n_segments
    ranges: Sequence[tuple[int, int]] = ((first, count),)
    if n_ranges > 1:
        ranges = list(struct.iter_unpack("<qI", data[at:end]))
    return BlockHead(
        ledger_id,
        first,
        last,
        count,
        body_bytes,
        head_bytes,
        lengths,
        list(zip(flat[::2], flat[1::2], strict=True)),
        ranges,
    )


def decode_block(data: bytes, magic: bytes, offset: int = 0) -> Block:
    """Decodes the block at `offset` and checks every CRC; raises BadBlock."""
    head = decode_head(data, offset, magic)
    body_at = offset + head.head_bytes
    end = body_at + head.body_bytes
    if offset + head.size > len(data):
        raise BadBlock("the block's body does not fit")
    if data[end : offset + head.size].strip(b"\0"):
        raise BadBlock("block padding is not zero")
    bounds = list(accumulate(head.lengths, initial=body_at))
    if bounds[-1] != end:
        raise BadBlock("the block's lengths do not add up")
    entries = [data[start:stop] for start, stop in pairwise(bounds)]
    index = 0
    for count, crc in head.segments:
        segment = entries[index] if count == 1 else data[bounds[index] : bounds[index + count]]
        if value(segment) != crc:
            first_bad = index
            raise BadBlock(f"entries {first_bad} to {first_bad + count - 1} of it fail their CRC")
        index += count
    return Block(
        head.ledger_id,
        head.first_entry,
        head.last_entry,
        head.ranges,
        entries,
        head.body_bytes,
    )
