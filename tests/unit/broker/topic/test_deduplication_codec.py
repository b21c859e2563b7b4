"""The stored form of deduplication's ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.topic.deduplication.codec_v1 import SnapshotInvalid, decode, encode
from magnetar.broker.topic.deduplication.sequences import NONE, ProducerSequence
from magnetar.core.ids import Position

IDS = st.integers(min_value=NONE, max_value=2**64 - 1)
TIMES = st.integers(min_value=0, max_value=2**62)
POSITIONS = st.builds(Position, st.integers(-1, 2**62), st.integers(-1, 2**62))
PRODUCERS = st.dictionaries(st.text(max_size=40), st.tuples(IDS, TIMES), max_size=20)


@given(POSITIONS, PRODUCERS)
def test_a_snapshot_is_read_back_in_the_order_of_use(
    position: Position, producers: dict[str, tuple[int, int]]
) -> None:
    sequences = {name: ProducerSequence(*numbers) for name, numbers in producers.items()}
    snapshot = decode(encode(position, sequences))
    assert snapshot.position == position
    found = [
        (name, sequence.persisted, sequence.pushed, sequence.used_ms)
        for name, sequence in snapshot.producers.items()
    ]
    assert found == [
        (name, last, last, used_ms) for name, (last, used_ms) in producers.items() if last != NONE
    ]


@given(PRODUCERS, st.data())
def test_no_damage_is_believed(producers: dict[str, tuple[int, int]], data: st.DataObject) -> None:
    sequences = {name: ProducerSequence(*numbers) for name, numbers in producers.items()}
    encoded = encode(Position(3, 4), sequences)
    at = data.draw(st.integers(0, len(encoded) - 1))
    flipped = bytearray(encoded)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(SnapshotInvalid):
        decode(bytes(flipped))
    with pytest.raises(SnapshotInvalid):
        decode(encoded[:at])


def test_a_snapshot_of_version_1_has_these_bytes() -> None:
    encoded = encode(Position(7, 8), {"ab": ProducerSequence(9, 10)})
    assert encoded.hex() == (
        "4d4455500107000000000000000800000000000000010000000200000061620900000000000000"
        "0a00000000000000" + encoded[-4:].hex()
    )
