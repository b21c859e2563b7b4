"""Cursor records: round trips, and no harmed byte is ever believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from magnetar.core.ids import Position
from magnetar.managed_ledger.cursor_codec_v1 import (
    PART_BYTES,
    WINDOW_IDS,
    CodecError,
    RecordKind,
    decode,
    encode_delta,
    encode_snapshot,
)

GOLDEN = (
    "4d435552010100000000010000000400000000000000070000000000000002000000000000000100000007000000"
    "00000000160000003a30000001000000000002001000000005000600090001000000070000000000000007000000"
    "0100000005"
)

ids = st.integers(0, 2**32 - 1)
ledgers = st.integers(0, 2**62)
holes = st.dictionaries(
    ledgers, st.sets(ids | st.integers(0, 300), min_size=1, max_size=50).map(BitMap), max_size=4
)
batches = st.dictionaries(st.tuples(ledgers, ids), st.integers(1, 2**200), max_size=6)
positions = st.builds(Position, st.integers(-1, 2**62), st.integers(-1, 2**62))


@given(st.integers(0, 2**40), positions, holes, batches)
def test_deltas_come_back(
    base: int,
    mark: Position,
    sets: dict[int, BitMap],
    remains: dict[tuple[int, int], int],
) -> None:
    record = decode(encode_delta(base, mark, sets, remains))
    assert (record.kind, record.part, record.parts) == (RecordKind.DELTA, 0, 1)
    assert (record.base, record.mark_delete) == (base, mark)
    assert (record.holes, record.batches) == (sets, remains)


def test_a_big_state_is_cut_into_parts_of_bounded_size() -> None:
    sets = {1: BitMap(range(0, 20 * WINDOW_IDS, 3)), 2: BitMap(range(1, 50, 2))}
    remains = {(2, entry_id): 1 << 500 for entry_id in range(0, 10_000, 2)}
    parts = encode_snapshot(17, Position(0, 5), sets, remains)
    assert len(parts) > 3
    assert max(map(len, parts)) < PART_BYTES + 1000
    seen_sets: dict[int, BitMap] = {}
    seen_remains: dict[tuple[int, int], int] = {}
    for number, part in enumerate(parts):
        record = decode(part)
        assert (record.kind, record.part, record.parts) == (
            RecordKind.SNAPSHOT, number, len(parts)
        )  # fmt: skip
        assert (record.base, record.mark_delete) == (17, Position(0, 5))
        for ledger_id, bitmap in record.holes.items():
            seen_sets[ledger_id] = seen_sets.get(ledger_id, BitMap()) | bitmap
        seen_remains |= record.batches
    assert seen_sets == sets
    assert seen_remains == remains


def sample() -> bytes:
    (record,) = encode_snapshot(4, Position(7, 2), {7: BitMap([5, 6, 9])}, {(7, 7): 0b101})
    return record


def test_the_format_stays_what_it_is() -> None:
    assert sample()[:-4].hex() == GOLDEN
    assert decode(sample()).batches == {(7, 7): 0b101}


def test_every_cut_and_every_flip_is_found() -> None:
    record = sample()
    for size in range(len(record)):
        with pytest.raises(CodecError):
            decode(record[:size])
    for at in range(len(record)):
        for bit in range(8):
            harmed = bytearray(record)
            harmed[at] ^= 1 << bit
            with pytest.raises(CodecError):
                decode(bytes(harmed))
    with pytest.raises(CodecError):
        decode(record + b"\0")
