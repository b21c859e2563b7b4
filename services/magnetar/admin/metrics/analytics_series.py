"""Series of what the backlog job found, by namespace: for alerts and autoscalers.

One broker shows them, so that sums over brokers count once: the one that leads the load balance,
or the only one there is. The records are listed at a scrape, once in ASK_EVERY_S at most and for
LIST_S_MAX at most; where that fails, the figures from before stay. What is not known has no series,
nor has a namespace without a record. How old the figures are is a series, too.

Bounds: the NAMESPACES_MAX namespaces with the most bytes.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator
from typing import Final

from magnetar.admin.metrics.topic_series import namespace_labels
from magnetar.broker.balance.service import Balance
from magnetar.broker.service import BrokerService
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.managed_ledger.backlog_record import ANALYTICS_PREFIX, BacklogRecord, decoded
from magnetar.observe.metrics import Number, escape, family

ASK_EVERY_S: Final = 30.0
LIST_S_MAX: Final = 2.0
NAMESPACES_MAX: Final = 1_000
RECORDS_PER_TURN: Final = 128

Shown = tuple[Number | None, ...]
"""In the order of FAMILIES."""

FAMILIES: Final = (
    "magnetar_analytics_backlog_entries",
    "magnetar_analytics_backlog_messages",
    "magnetar_analytics_backlog_bytes",
    "magnetar_analytics_backlog_oldest_unacked_age_seconds",
    "magnetar_analytics_backlog_time_to_drain_seconds",
    "magnetar_analytics_backlog_growing_subscriptions",
    "magnetar_analytics_backlog_stalled_subscriptions",
    "magnetar_analytics_backlog_unreadable_subscriptions",
    "magnetar_analytics_backlog_expiring_subscriptions",
    "magnetar_analytics_backlog_stalled_bookie_bytes",
    "magnetar_analytics_run_timestamp_seconds",
)
_BYTES: Final = FAMILIES.index("magnetar_analytics_backlog_bytes")

log = get_logger("magnetar.admin.metrics")


class AnalyticsSeries:
    """Keeps the figures between scrapes."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._asked_at_s = float("-inf")
        self._shown: dict[str, Shown] = {}

    async def refresh(self, service: BrokerService, balance: Balance | None) -> None:
        """Before `families`; asks the store where it is time to."""
        if balance is not None and not balance.leadership.leading:
            self._shown = {}
            self._asked_at_s = float("-inf")  # who leads next shows them at its first scrape
            return
        now_s = self._monotonic()
        if now_s - self._asked_at_s < ASK_EVERY_S:
            return
        self._asked_at_s = now_s
        try:
            self._shown = await _listed(service)
        except (MetadataError, TimeoutError) as error:
            log.debug("backlog analytics not read", error=str(error) or type(error).__name__)

    def families(self, cluster: str) -> Iterator[str]:
        """One text for each family that somebody has a figure for; `cluster` is escaped."""
        for index, name in enumerate(FAMILIES):
            known = [
                (namespace_labels(cluster, namespace), value)
                for namespace, row in self._shown.items()
                if (value := row[index]) is not None
            ]
            if known:
                yield family(name, [label for label, _ in known], [value for _, value in known])


async def _listed(service: BrokerService) -> dict[str, Shown]:
    async with asyncio.timeout(LIST_S_MAX):
        records = await service.store.list(ANALYTICS_PREFIX)
    rows: dict[str, Shown] = {}
    for count, record in enumerate(records):
        try:
            # Between quotes: whoever writes to the store chooses the key.
            rows[escape(record.key.removeprefix(ANALYTICS_PREFIX))] = shown(decoded(record))
        except MetadataError as error:
            log.debug("backlog analytics not understood", error=error.message)
        if count % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
            await asyncio.sleep(0)
    return bounded(rows)


def bounded(rows: dict[str, Shown], most: int = NAMESPACES_MAX) -> dict[str, Shown]:
    """Those with the most bytes, in their order."""
    if len(rows) <= most:
        return rows
    kept = set(heapq.nlargest(most, rows, key=lambda name: rows[name][_BYTES] or 0))
    return {name: row for name, row in rows.items() if name in kept}


def shown(record: BacklogRecord) -> Shown:
    """The values of FAMILIES."""
    return (
        record.backlog_entries,
        record.backlog_messages,
        record.backlog_bytes,
        record.oldest_age_seconds,
        record.drains_in_seconds,
        record.growing,
        record.stalled,
        record.unreadable,
        record.expiring,
        record.held_bytes,
        record.at_ms / 1000,
    )
