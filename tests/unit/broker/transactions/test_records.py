"""The records of transactions in the metadata store stay as every release has written them.

`tests/golden/broker/transaction-records.txt` has one record a line: its key and its value.
"""

from pathlib import Path

import msgspec

from magnetar.transactions.model import (
    SubscriptionInTxn,
    TransactionRecord,
    TxnId,
    TxnState,
)
from magnetar.transactions.records import (
    Head,
    decode_head,
    decode_record,
    encode_record,
    head_key,
    number_of,
    record_key,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "broker" / "transaction-records.txt"
OPENED_MS = 1_790_000_000_000


def records() -> dict[str, Head | TransactionRecord]:
    """A head, and a transaction in every state."""
    head = Head(epoch=3, broker="b1:6650#17", group=42, next_number=5)
    whole = TransactionRecord(
        state=TxnState.COMMITTED,
        opened_ms=OPENED_MS,
        deadline_ms=OPENED_MS + 60_000,
        owner="shop",
        topics=("persistent://t/n/a", "persistent://t/n/b-partition-0"),
        subscriptions=(SubscriptionInTxn("persistent://t/n/c", "s/é"),),
        ended_ms=OPENED_MS + 1_234,
    )
    stored: dict[str, Head | TransactionRecord] = {head_key(2): head}
    for number, state in enumerate(TxnState):
        stored[record_key(TxnId(2, number))] = TransactionRecord(
            state=state, opened_ms=OPENED_MS, deadline_ms=OPENED_MS + 60_000
        )
    stored[record_key(TxnId(2, 2**63))] = whole
    stored[record_key(TxnId(2, 2**63 + 1))] = TransactionRecord(
        state=TxnState.COMMITTING,
        opened_ms=OPENED_MS,
        deadline_ms=OPENED_MS + 60_000,
        joined=(0, 2**63),
    )
    return stored


def golden() -> dict[str, bytes]:
    pairs = (line.partition(" ") for line in GOLDEN.read_text().splitlines())
    return {key: value.encode() for key, _, value in pairs}


def test_this_release_writes_the_golden_records() -> None:
    assert {key: encode_record(record) for key, record in records().items()} == golden()


def test_this_release_reads_the_golden_records() -> None:
    for key, value in golden().items():
        if key == head_key(2):
            assert decode_head(key, value) == records()[key]
        else:
            assert decode_record(key, value) == records()[key]
            assert record_key(TxnId(2, number_of(key))) == key


def test_fields_of_a_newer_release_are_skipped() -> None:
    """A broker of this release may still serve while others are upgraded."""
    for key, value in golden().items():
        document = msgspec.json.decode(value) | {"of_a_newer_release": [1]}
        decode = decode_head if key == head_key(2) else decode_record
        assert decode(key, encode_record(document)) == records()[key]
