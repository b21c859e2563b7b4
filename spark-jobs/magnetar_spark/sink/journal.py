"""The records of a sink's journal: committed batches, and the transactions of batches.

The journal is a topic of the sink. A record of kind TASK or LEAD names a transaction before it is
used. The record of kind DONE is a message of the leading transaction, so it is visible if and only
if the batch is. The record of kind ABORTED stops tasks that outlive their batch.
`docs/understand/transactions.md` has the argument. JSON; a reader skips fields that it does not
know. Pure.
"""

from enum import StrEnum
from typing import Final

import msgspec

from magnetar.core.errors import PersistenceError
from magnetar.core.ids import Position

VERSION: Final = 1
TOPIC_PREFIX: Final = "__spark-sink-"
SUBSCRIPTION: Final = "spark-sink"
NOTHING_COMMITTED: Final = -1
NO_TXN: Final = (0, 0)
"""In records of kind ABORTED, which concern all transactions of their execution."""


class Kind(StrEnum):
    """What a record says."""

    TASK = "task"
    """A task writes in this transaction."""
    LEAD = "lead"
    """The driver commits the batch with this transaction."""
    DONE = "done"
    """The batch is committed."""
    ABORTED = "aborted"
    """The execution has failed: a task that is recorded later must not write."""


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record. Positions are `(ledger, entry)`."""

    version: int = VERSION
    kind: Kind
    execution: str
    """One run of one batch: a driver that repeats a batch has another execution."""
    batch: int
    txn: tuple[int, int]
    committed: int
    """The last batch that its writer knew to be committed; NOTHING_COMMITTED if none is."""
    since: tuple[int, int] | None
    """Transactions of earlier records have ended. None: from the beginning."""


class Base(msgspec.Struct, frozen=True):
    """What is known of earlier batches, before a new one begins."""

    committed: int = NOTHING_COMMITTED
    since: Position | None = None


def journal_topic(namespace: str, sink_id: str) -> str:
    """Returns the name of a sink's journal."""
    return f"persistent://{namespace}/{TOPIC_PREFIX}{sink_id}"


def encode_record(record: JournalRecord) -> bytes:
    """Returns the value of a message."""
    return msgspec.json.encode(record)


def decode_record(value: bytes) -> JournalRecord:
    """Parses the value of a message. Raises PersistenceError."""
    try:
        record = msgspec.json.decode(value, type=JournalRecord)
    except msgspec.MsgspecError as error:
        raise PersistenceError(
            f"the sink's journal has a message of another kind: {error}"
        ) from error
    if record.version != VERSION:
        raise PersistenceError(
            f"the sink's journal has records of version {record.version}: use the release that "
            "wrote it, or a newer one"
        )
    return record


def base_of(record: JournalRecord) -> Base:
    """Returns what the last readable record of the journal says of earlier batches."""
    since = None if record.since is None else Position(*record.since)
    return Base(record.committed, since)
