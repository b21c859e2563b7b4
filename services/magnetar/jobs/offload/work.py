"""The messages between driver and executors: ledgers to offload, and their outcomes."""

from dataclasses import dataclass
from enum import StrEnum

from magnetar.offload.stores import StoreSpec


@dataclass(frozen=True, slots=True)
class LedgerTask:
    """A closed ledger to offload. `name` is that of its managed ledger."""

    name: str
    topic: str
    partition: int
    ledger_id: int
    size_bytes: int
    created_ms: int
    closed_ms: int
    store: StoreSpec


class Result(StrEnum):
    """How the offload of a ledger ended; the first three are those of `CommitResult`."""

    OFFLOADED = "offloaded"
    ALREADY = "already"
    GONE = "gone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one ledger.

    `length_bytes` is the sum of the entries' sizes, `file_bytes` the size of the file, `cpu_s` the
    CPU time of the executor.
    """

    name: str
    ledger_id: int
    result: Result
    entries: int = 0
    length_bytes: int = 0
    file_bytes: int = 0
    cpu_s: float = 0.0
    error: str = ""
