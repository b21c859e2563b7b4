"""Version 1 of the stored time index of delayed messages. Pure.

Little-endian, except for moments (`moment`), which are 16 bytes big-endian. Each of the three forms
ends with the CRC-32C u32 of all preceding bytes.

The *snapshot*, payload of the cursor `magnetar.delayed`:

    magic "MDLY" | version u8 | position: ledger i64, entry i64 | runs u32 | moments u32
    | per run: ledger id i64
    | the moments that are in no run, in no order

A *page*, one of the first entries of a run's ledger, has moments in their order:

    magic "MDLP" | version u8 | moments u32 | first time u64 | ledgers u16, each i64
    | size u32 | zlib: per moment the ms since the one before (u32 each), then the index of its
      ledger (u16 each), then its entry id (u32 each)

The *head*, the last entry of a run's ledger:

    magic "MDLH" | version u8 | pages u32
    | per page: first time u64, last time u64, moments u32, ledgers u16
    |   per ledger: id i64, size u32, Roaring bitmap of entry ids

The snapshot covers every entry up to `position`; it may cover later ones as well, since adding an
entry twice changes nothing. A moment whose time has passed is dropped by the reader.
"""

import struct
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import google_crc32c
from pyroaring import BitMap

from magnetar.broker.topic.delayed.moment import MOMENT_BYTES, moment, position_of, time_of
from magnetar.core.ids import Position

VERSION: Final = 1
GAP_MS_MAX: Final = 2**32 - 1
"""The longest time between two moments of a page."""
LEDGERS_MAX: Final = 2**16 - 1
"""The most ledgers of a page."""
_SNAPSHOT: Final = b"MDLY"
_PAGE: Final = b"MDLP"
_HEAD: Final = b"MDLH"

_snapshot_head = struct.Struct("<4sBqqII")
_page_head = struct.Struct("<4sBIQH")
_head_head = struct.Struct("<4sBI")
_head_page = struct.Struct("<QQIH")
_set = struct.Struct("<qI")
_ledger = struct.Struct("<q")
_u32 = struct.Struct("<I")


class IndexInvalid(ValueError):
    """The bytes are no valid part of an index of this version; the message gives the reason."""


class Snapshot(NamedTuple):
    """A decoded snapshot."""

    position: Position
    runs: list[int]
    """The ledgers of the runs."""
    moments: list[int]


class PageInfo(NamedTuple):
    """A page, as the head of its run describes it."""

    first_ms: int
    last_ms: int
    moments: int
    positions: dict[int, BitMap]


def encode_snapshot(position: Position, runs: Sequence[int], moments: bytes) -> bytes:
    """Returns a snapshot; `moments` has 16 bytes for each."""
    head = _snapshot_head.pack(
        _SNAPSHOT, VERSION, *position, len(runs), len(moments) // MOMENT_BYTES
    )
    return _sealed(b"".join((head, *map(_ledger.pack, runs), moments)))


def decode_snapshot(data: bytes) -> Snapshot:
    """Raises IndexInvalid unless `data` is a whole, undamaged snapshot of this version."""
    body = _checked(data, _SNAPSHOT, _snapshot_head)
    _, _, ledger_id, entry_id, runs, count = _snapshot_head.unpack_from(body)
    at = _snapshot_head.size
    end = at + runs * _ledger.size + count * MOMENT_BYTES
    if end != len(body):
        raise IndexInvalid(f"malformed snapshot: {len(body)} bytes instead of {end}")
    ids = [_ledger.unpack_from(body, at + i * _ledger.size)[0] for i in range(runs)]
    at += runs * _ledger.size
    from_bytes = int.from_bytes
    moments = [from_bytes(body[i : i + MOMENT_BYTES]) for i in range(at, end, MOMENT_BYTES)]
    return Snapshot(Position(ledger_id, entry_id), ids, moments)


def fits_page(earlier: int, later: int) -> bool:
    """Whether a page can have both moments, one directly after the other."""
    return time_of(later) - time_of(earlier) <= GAP_MS_MAX


def encode_page(moments: Sequence[int]) -> bytes:
    """Returns a page of at least one and at most LEDGERS_MAX moments, which are in order."""
    times = list(map(time_of, moments))
    places = list(map(position_of, moments))
    ledgers = sorted({ledger_id for ledger_id, _ in places})
    index = {ledger_id: at for at, ledger_id in enumerate(ledgers)}
    gaps = array("I", [0, *(b - a for a, b in pairwise(times))])
    which = array("H", [index[ledger_id] for ledger_id, _ in places])
    entries = array("I", [entry_id for _, entry_id in places])
    columns = zlib.compress(_little(gaps) + _little(which) + _little(entries), 1)
    head = _page_head.pack(_PAGE, VERSION, len(moments), times[0], len(ledgers))
    return _sealed(b"".join((head, *map(_ledger.pack, ledgers), _u32.pack(len(columns)), columns)))


def decode_page(data: bytes) -> list[int]:
    """Returns the moments; raises IndexInvalid as `decode_snapshot` does."""
    body = _checked(data, _PAGE, _page_head)
    _, _, count, first_ms, ledgers = _page_head.unpack_from(body)
    at = _page_head.size
    try:
        ids = [_ledger.unpack_from(body, at + i * _ledger.size)[0] for i in range(ledgers)]
        at += ledgers * _ledger.size
        (size,) = _u32.unpack_from(body, at)
        at += _u32.size
        if at + size != len(body):
            raise IndexInvalid(f"malformed page: {len(body)} bytes instead of {at + size}")
        columns = zlib.decompress(body[at:])
        if len(columns) != count * 10:
            raise IndexInvalid(f"malformed page: {len(columns)} bytes for {count} moments")
        gaps, which, entries = array("I"), array("H"), array("I")
        for column, start, end in (
            (gaps, 0, 4 * count), (which, 4 * count, 6 * count), (entries, 6 * count, 10 * count)
        ):  # fmt: skip
            column.frombytes(columns[start:end])
            _to_native(column)
        times = accumulate(gaps, initial=first_ms)
        next(times)
        return [
            moment(time_ms, ids[ledger], entry_id)
            for time_ms, ledger, entry_id in zip(times, which, entries, strict=True)
        ]
    except (struct.error, zlib.error, IndexError) as error:
        raise IndexInvalid(f"malformed page: {error}") from error


def describe(moments: Sequence[int]) -> PageInfo:
    """Returns what the head says of a page."""
    entries: dict[int, list[int]] = {}
    for ledger_id, entry_id in map(position_of, moments):
        entries.setdefault(ledger_id, []).append(entry_id)
    positions = {ledger_id: BitMap(ids) for ledger_id, ids in sorted(entries.items())}
    return PageInfo(time_of(moments[0]), time_of(moments[-1]), len(moments), positions)


def encode_head(pages: Sequence[PageInfo]) -> bytes:
    """Returns the head of a run."""
    parts = [_head_head.pack(_HEAD, VERSION, len(pages))]
    for page in pages:
        parts.append(
            _head_page.pack(page.first_ms, page.last_ms, page.moments, len(page.positions))
        )
        for ledger_id, entries in page.positions.items():
            stored = entries.serialize()
            parts += (_set.pack(ledger_id, len(stored)), stored)
    return _sealed(b"".join(parts))


def decode_head(data: bytes) -> list[PageInfo]:
    """Returns the pages; raises IndexInvalid as `decode_snapshot` does."""
    body = _checked(data, _HEAD, _head_head)
    _, _, count = _head_head.unpack_from(body)
    at = _head_head.size
    pages: list[PageInfo] = []
    try:
        for _ in range(count):
            first_ms, last_ms, moments, ledgers = _head_page.unpack_from(body, at)
            at += _head_page.size
            positions: dict[int, BitMap] = {}
            for _ in range(ledgers):
                ledger_id, size = _set.unpack_from(body, at)
                at += _set.size
                positions[ledger_id] = BitMap.deserialize(body[at : at + size])
                at += size
            pages.append(PageInfo(first_ms, last_ms, moments, positions))
    except (struct.error, ValueError) as error:
        raise IndexInvalid(f"malformed head: {error}") from error
    if at != len(body):
        raise IndexInvalid(f"malformed head: {len(body) - at} bytes left")
    return pages


def _sealed(body: bytes) -> bytes:
    return body + _u32.pack(google_crc32c.value(body))


def _checked(data: bytes, magic: bytes, head: struct.Struct) -> bytes:
    """Returns the bytes before the CRC; raises IndexInvalid."""
    if len(data) < head.size + _u32.size:
        raise IndexInvalid(f"{len(data)} bytes are too few")
    if data[:4] != magic:
        raise IndexInvalid(f"it begins with {data[:4].hex()} instead of {magic.hex()}")
    body = data[: -_u32.size]
    (crc,) = _u32.unpack_from(data, len(body))
    actual = google_crc32c.value(body)
    if crc != actual:
        raise IndexInvalid(f"CRC-32C is {actual:08x}, stored is {crc:08x}")
    if data[4] != VERSION:
        raise IndexInvalid(f"version {data[4]} is not {VERSION}")
    return body


def _little(column: "array[int]") -> bytes:
    _to_native(column)
    return column.tobytes()


def _to_native(column: "array[int]") -> None:
    """Swaps the bytes of a column on a big-endian machine."""
    if struct.pack("=H", 1) != b"\x01\x00":
        column.byteswap()
