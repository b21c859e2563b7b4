"""The records of a sink's journal stay as every release has written them.

`tests/golden/spark/sink-journal.txt` has one record a line.
"""

from pathlib import Path

import pytest

from magnetar.core.errors import PersistenceError
from magnetar.core.ids import Position
from magnetar_spark.sink.journal import (
    NO_TXN,
    Base,
    JournalRecord,
    Kind,
    base_of,
    decode_record,
    encode_record,
    journal_topic,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "spark" / "sink-journal.txt"
RECORDS = [
    JournalRecord(kind=Kind.TASK, execution="e1", batch=0, txn=(3, 7), committed=-1, since=None),
    JournalRecord(kind=Kind.LEAD, execution="e1", batch=0, txn=(3, 8), committed=-1, since=None),
    JournalRecord(kind=Kind.DONE, execution="e1", batch=0, txn=(3, 8), committed=0, since=(5, 1)),
    JournalRecord(
        kind=Kind.TASK, execution="e2", batch=1, txn=(0, 2**63), committed=0, since=(5, 1)
    ),
    JournalRecord(
        kind=Kind.ABORTED, execution="e2", batch=1, txn=NO_TXN, committed=0, since=(5, 1)
    ),
]


def test_this_release_writes_and_reads_the_golden_records() -> None:
    lines = GOLDEN.read_bytes().splitlines()
    assert [encode_record(record) for record in RECORDS] == lines
    assert [decode_record(line) for line in lines] == RECORDS


def test_the_last_record_has_what_was_known_when_it_was_written() -> None:
    assert base_of(RECORDS[1]) == Base()
    assert base_of(RECORDS[3]) == Base(0, Position(5, 1))
    assert journal_topic("a/b", "q") == "persistent://a/b/__spark-sink-q"


def test_other_messages_are_refused_and_unknown_fields_are_not() -> None:
    line = encode_record(RECORDS[0])
    assert decode_record(line.replace(b"{", b'{"later":1,', 1)) == RECORDS[0]
    for value, text in (
        (line.replace(b'"version":1', b'"version":2'), "version 2"),
        (b"plain", "another kind"),
        (line.replace(b"task", b"other"), "another kind"),
    ):
        with pytest.raises(PersistenceError, match=text):
            decode_record(value)
