"""The counts of a coordinator, for metrics: how transactions ended, and how long that took."""

from bisect import bisect_left
from typing import Final

from magnetar.transactions.model import Outcome, TransactionRecord

LATENCY_BOUNDS_MS: Final = (
    *(10, 20, 50, 100, 500, 1_000, 5_000, 15_000, 30_000, 60_000),
    *(300_000, 1_500_000, 3_000_000),
)
"""Upper bounds of `pulsar_txn_execution_latency_le_*`; the last bucket has the longer ones."""


class CoordinatorCounts:
    """Counts since the coordinator was loaded."""

    __slots__ = ("aborted", "begun", "committed", "latencies", "timed_out")

    def __init__(self) -> None:
        self.begun = self.committed = self.aborted = self.timed_out = 0
        self.latencies = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        """How many transactions took how long from begin to end, by bucket."""

    def ended(self, record: TransactionRecord) -> None:
        """Counts an ended transaction."""
        if record.state.outcome is Outcome.COMMIT:
            self.committed += 1
        else:
            self.aborted += 1
        lasted_ms = max(0, (record.ended_ms or 0) - record.opened_ms)
        self.latencies[bisect_left(LATENCY_BOUNDS_MS, lasted_ms)] += 1
