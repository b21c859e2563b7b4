"""The records of cursor ledgers stay as every release has written them.

`tests/golden/managed_ledger/cursor-records.txt` has one record a line: its name and its bytes.
"""

from pathlib import Path

import pytest
from pyroaring import BitMap

from magnetar.core.ids import Position
from magnetar.managed_ledger import cursor_codec_v3 as codec
from magnetar.managed_ledger.cursor_codec_v1 import RecordKind, version_of
from magnetar.managed_ledger.cursor_codec_v3 import ItemKind
from magnetar.managed_ledger.pending_acks import Part, Txn, TxnAcks

GOLDEN = Path(__file__).parents[2] / "golden" / "managed_ledger" / "cursor-records.txt"
MARK = Position(7, 2)
HOLES = {7: BitMap([5, 6, 9]), 8: BitMap([0])}
BATCHES = {(7, 12): 0b101, (8, 3): 1 << 70}
PAYLOAD = b"sequence ids"


def pending() -> dict[Txn, TxnAcks]:
    """Acks of two open transactions: of entries, of parts of batches, and a cumulative one."""
    first, second = TxnAcks(), TxnAcks()
    first.add_entries(8, BitMap([4, 5, 300]))
    first.parts[8, 6] = Part(0b0110, 4)
    second.cumulative = Position(8, 9), Part(0, 0)
    return {(0, 1): first, (3, 2**63): second}


def records() -> dict[str, bytes]:
    """One record of each version and kind."""
    (v1,) = codec.encode_snapshot(4, MARK, HOLES, BATCHES, {})
    (v2,) = codec.encode_snapshot(4, MARK, {}, {}, {}, payload=PAYLOAD)
    (v3,) = codec.encode_snapshot(4, MARK, HOLES, BATCHES, pending())
    first = pending()[0, 1]
    return {
        "snapshot_v1": v1,
        "delta_v1": codec.encode_delta(4, MARK, HOLES, BATCHES, {}),
        "snapshot_v2_payload": v2,
        "snapshot_v3": v3,
        "delta_v3": codec.encode_delta(4, MARK, HOLES, {}, {(0, 1): first, (3, 9): None}),
    }


def golden() -> dict[str, bytes]:
    lines = (line.split() for line in GOLDEN.read_text().splitlines())
    return {name: bytes.fromhex(text) for name, text in lines}


def test_this_release_writes_the_golden_records() -> None:
    assert records() == golden()


@pytest.mark.parametrize(
    ("name", "version", "kind", "batches", "payload"),
    [
        ("snapshot_v1", 1, RecordKind.SNAPSHOT, BATCHES, b""),
        ("delta_v1", 1, RecordKind.DELTA, BATCHES, b""),
        ("snapshot_v2_payload", 2, RecordKind.SNAPSHOT, {}, PAYLOAD),
        ("snapshot_v3", 3, RecordKind.SNAPSHOT, BATCHES, b""),
        ("delta_v3", 3, RecordKind.DELTA, {}, b""),
    ],
)
def test_this_release_reads_the_golden_records(
    name: str, version: int, kind: RecordKind, batches: dict[tuple[int, int], int], payload: bytes
) -> None:
    data = golden()[name]
    record = codec.decode(data)
    assert (version_of(data), record.kind) == (version, kind)
    assert (record.part, record.parts, record.base, record.mark_delete) == (0, 1, 4, MARK)
    assert record.holes == ({} if payload else HOLES)
    assert (record.batches, record.payload) == (batches, payload)


def test_the_acks_of_transactions_are_read_from_the_golden_records() -> None:
    state: dict[Txn, TxnAcks] = {}
    codec.apply_pending(state, codec.decode(golden()["snapshot_v3"]).pending)
    expected = pending()
    assert state.keys() == expected.keys()
    for txn, acks in expected.items():
        read = state[txn]
        assert (read.entries, read.parts) == (acks.entries, acks.parts)
        assert read.cumulative == acks.cumulative
    ended = {(0, 1): TxnAcks(), (3, 9): TxnAcks()}
    items = codec.decode(golden()["delta_v3"]).pending
    assert [kind for _, kind, _ in items].count(ItemKind.CLEAR) == 2
    codec.apply_pending(ended, items)
    assert ended.keys() == {(0, 1)}
    assert ended[0, 1].entries == expected[0, 1].entries
