"""The records of transactions in the metadata store: their keys, their codec, and their reader.

    /transactions/{coordinator}             a Head
    /transactions/{coordinator}/{number}    a TransactionRecord

Only the coordinator writes them (`writer`). Topics and subscriptions of all brokers read them.
"""

import asyncio
from typing import Final

import msgspec

from magnetar.core.errors import MetadataError
from magnetar.metadata.records import RecordType, encode
from magnetar.metadata.store import ImmediateReads, MetadataStore, MetadataUnavailable
from magnetar.transactions.model import TransactionRecord, TxnId

PREFIX: Final = "/transactions/"
READ_TIMEOUT_S: Final = 3.0


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a coordinator. It changes with every group of writes."""

    epoch: int
    """Rises with each broker that takes over."""
    broker: str
    """The process that serves the coordinator: the broker's id and the number of its start."""
    group: int = 0
    """The number of groups written in this epoch; makes every value of the head distinct."""
    next_number: int = 0
    """The number of the next transaction. A group with a new transaction raises it."""


decode_head: Final = RecordType(Head, "head of a transaction coordinator").decode
decode_record: Final = RecordType(TransactionRecord, "transaction").decode
encode_record: Final = encode


def head_key(coordinator: int) -> str:
    """Returns the key of a coordinator's head."""
    return f"{PREFIX}{coordinator}"


def records_prefix(coordinator: int) -> str:
    """Returns the prefix of the keys of a coordinator's transactions."""
    return f"{PREFIX}{coordinator}/"


def record_key(txn: TxnId) -> str:
    """Returns the key of a transaction."""
    return f"{PREFIX}{txn.most}/{txn.least}"


def number_of(key: str) -> int:
    """Returns the number in a transaction's key; raises MetadataError."""
    number = key.rpartition("/")[2]
    if not (number.isascii() and number.isdecimal()):
        raise MetadataError(f"{key} is not the key of a transaction")
    return int(number)


class StoredRecords:
    """The `TransactionRecords` of a broker: each question reads the metadata store."""

    def __init__(self, store: MetadataStore, *, enabled: bool) -> None:
        self._store = store
        self._immediate = store if isinstance(store, ImmediateReads) else None
        self.enabled = enabled

    @property
    def immediate(self) -> bool:
        """See `TransactionRecords.immediate`."""
        return self._immediate is not None

    def record_at_once(self, txn: TxnId) -> TransactionRecord | None:
        """See `TransactionRecords.record_at_once`."""
        assert self._immediate is not None  # noqa: S101 - `immediate` says so
        key = record_key(txn)
        stored = self._immediate.get_at_once(key)
        return None if stored is None else decode_record(key, stored.value)

    async def record(self, txn: TxnId) -> TransactionRecord | None:
        """See `TransactionRecords.record`; raises MetadataUnavailable after READ_TIMEOUT_S."""
        key = record_key(txn)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                stored = await self._store.get(key)
        except TimeoutError as error:
            raise MetadataUnavailable(f"{key} could not be read in time") from error
        return None if stored is None else decode_record(key, stored.value)
