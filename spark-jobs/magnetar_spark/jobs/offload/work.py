"""What travels to executors and back: ledgers to write, and what became of them."""

from dataclasses import dataclass
from enum import StrEnum

from magnetar.offload.stores import StoreSpec


@dataclass(frozen=True, slots=True)
class LedgerTask:
    """One closed ledger that is to become a file."""

    name: str
    """Of the managed ledger."""
    topic: str
    partition: int
    ledger_id: int
    size_bytes: int
    created_ms: int
    closed_ms: int
    store: StoreSpec


class Result(StrEnum):
    """What became of a ledger."""

    OFFLOADED = "offloaded"
    ALREADY = "already"
    """Another job was first: its file is live."""
    GONE = "gone"
    """The ledger was trimmed, or its topic deleted, before its file was live."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`length_bytes` is of the entries, `file_bytes` of the file, and `cpu_s` what it took."""

    name: str
    ledger_id: int
    result: Result
    entries: int = 0
    length_bytes: int = 0
    file_bytes: int = 0
    cpu_s: float = 0.0
    error: str = ""
