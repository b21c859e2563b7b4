"""The stored form of deduplication's ids."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.topic.deduplication.codec_v1 import SnapshotInvalid, decode, encode
from magnetar.broker.topic.deduplication.sequences import NONE, ProducerSequence
from magnetar.core.ids import Position

IDS = st.integers(min_value=NONE, max_value=2**64 - 1)
TIMES = st.integers(min_value=0, max_value=2**62)
POSITIONS = st.builds(Position, st.integers(-1, 2**62), st.integers(-1, 2**62))
GOLDEN = Path(__file__).parents[3] / "golden" / "broker" / "deduplication-snapshots.txt"
POSITION = Position(7, 8)
SNAPSHOTS = {
    "v1_empty": {"attached": ProducerSequence(NONE, 10)},
    "v1": {
        "standalone-0-1": ProducerSequence(9, 1_790_000_000_000),
        "\u00e9\udcff": ProducerSequence(2**64 - 1, 1),
        "attached": ProducerSequence(NONE, 10),
    },
}
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


def test_the_golden_snapshot_is_written_and_read() -> None:
    """Every release writes and reads the bytes of `deduplication-snapshots.txt`."""
    golden = dict(line.split() for line in GOLDEN.read_text().splitlines())
    assert {name: encode(POSITION, ids).hex() for name, ids in SNAPSHOTS.items()} == golden
    for name, ids in SNAPSHOTS.items():
        snapshot = decode(bytes.fromhex(golden[name]))
        assert snapshot.position == POSITION
        stored = {producer: ids for producer, ids in ids.items() if ids.persisted != NONE}
        assert list(snapshot.producers) == list(stored)
        for producer, sequence in stored.items():
            read = snapshot.producers[producer]
            assert (read.persisted, read.used_ms) == (sequence.persisted, sequence.used_ms)
