"""The cursor's records at their bounds: parts, windows, and malformed records."""

import struct
from itertools import pairwise

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from magnetar.core.ids import Position
from magnetar.managed_ledger.cursor_codec_v1 import (
    MAGIC,
    CodecError,
    RecordKind,
    decode,
    encode_delta,
    encode_snapshot,
)

MARK = Position(3, 7)
bitmaps = st.sets(st.integers(0, 200), min_size=1, max_size=20).map(BitMap)
states = st.tuples(
    st.dictionaries(st.integers(0, 9), bitmaps, max_size=4),
    st.dictionaries(
        st.tuples(st.integers(0, 9), st.integers(0, 99)), st.integers(1, 1 << 70), max_size=6
    ),
)


@settings(max_examples=60, deadline=None)
@given(states, st.sampled_from([64, 128, 300, 1 << 19]), st.sampled_from([8, 64, 1 << 21]))
def test_parts_and_windows_come_back_whole_and_stay_in_their_bounds(
    state: tuple[dict[int, BitMap], dict[tuple[int, int], int]], part_bytes: int, window: int
) -> None:
    holes, batches = state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("magnetar.managed_ledger.cursor_codec_v1.PART_BYTES", part_bytes)
        patch.setattr("magnetar.managed_ledger.cursor_codec_v1.WINDOW_IDS", window)
        parts = encode_snapshot(5, MARK, holes, batches)
    found_holes: dict[int, BitMap] = {}
    found_batches: dict[tuple[int, int], int] = {}
    sizes = []
    for number, part in enumerate(parts):
        record = decode(part)
        assert (record.kind, record.part, record.parts) == (
            RecordKind.SNAPSHOT,
            number,
            len(parts),
        )
        assert (record.base, record.mark_delete) == (5, MARK)
        for ledger_id, bitmap in record.holes.items():
            assert bitmap
            found_holes[ledger_id] = found_holes.get(ledger_id, BitMap()) | bitmap
        assert not found_batches.keys() & record.batches.keys()
        found_batches |= record.batches
        sizes.append((len(part), sets_in(part) + len(record.batches)))
    assert (found_holes, found_batches) == (holes, batches)
    empty = len(encode_delta(5, MARK, {}, {}))
    for size, items in sizes:
        assert size - empty <= part_bytes or items == 1
    for one, following in pairwise(sizes):
        assert one[0] + following[0] - 2 * empty > part_bytes  # no part more than needed


def sets_in(part: bytes) -> int:
    count: int = struct.unpack_from("<I", part, struct.calcsize("<4sBBIIqqq"))[0]
    return count


@pytest.mark.parametrize(
    ("ids", "windows"),
    [
        ([0], 1),
        ([0, 7], 1),
        ([7, 8], 2),
        ([8, 15], 1),
        ([0, 7, 8, 25], 3),
        ([17], 1),
        ([3, 300], 2),
    ],
)
def test_a_bitmap_is_cut_where_its_windows_end(
    ids: list[int], windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.cursor_codec_v1.WINDOW_IDS", 8)
    delta = encode_delta(0, MARK, {4: BitMap(ids)}, {})
    assert sets_in(delta) == windows
    assert decode(delta).holes == {4: BitMap(ids)}


@given(states)
def test_a_delta_is_one_record(
    state: tuple[dict[int, BitMap], dict[tuple[int, int], int]],
) -> None:
    holes, batches = state
    record = decode(encode_delta(9, MARK, holes, batches))
    assert (record.kind, record.part, record.parts, record.base) == (RecordKind.DELTA, 0, 1, 9)
    assert (record.mark_delete, record.holes, record.batches) == (MARK, holes, batches)


def sealed(body: bytes) -> bytes:
    return body + struct.pack("<I", google_crc32c.value(body))


def head(
    *, magic: bytes = MAGIC, version: int = 1, kind: int = 2, part: int = 0, parts: int = 1
) -> bytes:
    return struct.pack("<4sBBIIqqq", magic, version, kind, part, parts, 9, 3, 7)


NOTHING = struct.pack("<I", 0)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "too few"),
        (sealed(head() + NOTHING), "too few"),
        (sealed(head(magic=b"MCUS") + NOTHING * 2), "not a cursor record"),
        (sealed(head() + NOTHING * 2)[:-1] + b"\xff", "CRC-32C"),
        (sealed(head(version=3) + NOTHING * 2), "version 3 is none of 1, 2"),
        (sealed(head(version=2) + NOTHING * 2), "malformed"),
        (sealed(head(kind=3) + NOTHING * 2), "malformed"),
        (sealed(head(kind=0) + NOTHING * 2), "malformed"),
        (sealed(head(part=1) + NOTHING * 2), "part 1 of 1"),
        (sealed(head(part=2, parts=1) + NOTHING * 2), "part 2 of 1"),
        (sealed(head(parts=0) + NOTHING * 2), "part 0 of 0"),
        (sealed(head() + NOTHING * 3), "malformed"),
        (sealed(head() + struct.pack("<I", 1) + NOTHING), "malformed"),
        (sealed(head() + struct.pack("<IqI", 1, 5, 1000) + NOTHING), "beyond the record"),
        (sealed(head() + NOTHING + struct.pack("<IqIIB", 1, 5, 6, 2, 7)), "beyond the record"),
        (sealed(head() + NOTHING + struct.pack("<IqIIB", 1, 5, 6, 1, 7) + b"?"), "malformed"),
    ],
)
def test_what_is_no_record_is_named(record: bytes, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        decode(record)


def test_the_last_part_and_the_smallest_record_are_records() -> None:
    assert decode(sealed(head() + NOTHING * 2)).holes == {}
    assert decode(sealed(head(kind=1, part=2, parts=3) + NOTHING * 2)).part == 2
    one = decode(sealed(head() + NOTHING + struct.pack("<IqIIB", 1, 5, 6, 1, 7)))
    assert one.batches == {(5, 6): 7}
    with pytest.raises(CodecError):
        decode(b"x" * 7)
