"""Series of the backlog job's results, by namespace, for alerts and autoscalers.

Only one broker shows them, the leader of the load balance or a single broker, so that sums over
brokers count them once. A scrape lists the records, at most every LIST_EVERY_S and for at most
LIST_S_MAX; if that fails, the last figures stay. A value that is unknown has no series, nor has a
namespace without a record. The time of the analysis is a series too.

Bounds: the NAMESPACES_MAX namespaces with the most bytes.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from magnetar.admin.metrics.topic_series import namespace_labels
from magnetar.broker.service import BrokerService
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.documents.backlog import BacklogRecord
from magnetar.managed_ledger.backlog_record import ANALYTICS_PREFIX, decoded
from magnetar.observe.metrics import Number, escape, family

if TYPE_CHECKING:
    from magnetar.broker.balance.service import Balance

LIST_EVERY_S: Final = 30.0
LIST_S_MAX: Final = 2.0
NAMESPACES_MAX: Final = 1_000
RECORDS_PER_TURN: Final = 128

Values = tuple[Number | None, ...]
"""The values of a namespace, in the order of FAMILIES."""

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
    """Keeps the values of all namespaces between scrapes."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._listed_at_s = float("-inf")
        self._values: dict[str, Values] = {}

    async def refresh(self, service: BrokerService, balance: "Balance | None") -> None:
        """Lists the records if the last list is old enough; called before `families`."""
        if balance is not None and not balance.leadership.leading:
            self._values = {}
            self._listed_at_s = float("-inf")  # a new leader shows them at its first scrape
            return
        now_s = self._monotonic()
        if now_s - self._listed_at_s < LIST_EVERY_S:
            return
        self._listed_at_s = now_s
        try:
            self._values = await _read_records(service)
        except (MetadataError, TimeoutError) as error:
            text = str(error) or type(error).__name__
            log.debug("backlog analyses not listed, the last values stay", error=text)

    def families(self, cluster: str) -> Iterator[str]:
        """Yields the text of each family that has a value; `cluster` is escaped."""
        for index, name in enumerate(FAMILIES):
            series = [
                (namespace_labels(cluster, namespace), value)
                for namespace, row in self._values.items()
                if (value := row[index]) is not None
            ]
            if series:
                yield family(name, [label for label, _ in series], [value for _, value in series])


async def _read_records(service: BrokerService) -> dict[str, Values]:
    async with asyncio.timeout(LIST_S_MAX):
        records = await service.store.list(ANALYTICS_PREFIX)
    rows: dict[str, Values] = {}
    for count, record in enumerate(records):
        try:
            # Escaped: any writer to the store can choose the key, which becomes a label.
            namespace = escape(record.key.removeprefix(ANALYTICS_PREFIX))
            rows[namespace] = values_of(decoded(record))
        except MetadataError as error:
            log.debug("backlog analysis skipped", error=error.message)
        if count % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
            await asyncio.sleep(0)
    return bounded(rows)


def bounded(rows: dict[str, Values], count_max: int = NAMESPACES_MAX) -> dict[str, Values]:
    """Returns the namespaces with the most bytes, in their order."""
    if len(rows) <= count_max:
        return rows
    kept = set(heapq.nlargest(count_max, rows, key=lambda name: rows[name][_BYTES] or 0))
    return {name: row for name, row in rows.items() if name in kept}


def values_of(record: BacklogRecord) -> Values:
    """Returns the values of FAMILIES."""
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
