"""Series of backlog quotas, only of topics that have one.

`pulsar_storage_backlog_age_seconds` is missing because it would cost a read per topic and scrape.
"""

from collections.abc import Iterator
from typing import Final

from magnetar.broker.lifecycle.quota import QuotaType, quotas_of
from magnetar.broker.topic.api import Topic
from magnetar.observe.metrics import family, single
from magnetar.policies.lifecycle import BACKLOG_QUOTA

EVICTIONS: Final = "pulsar_storage_backlog_quota_exceeded_evictions_total"


class QuotaSeries:
    """Collects the quotas and evictions of topics, then writes their families."""

    def __init__(self) -> None:
        self._limits: dict[QuotaType, tuple[list[str], list[int]]] = {
            kind: ([], []) for kind in QuotaType
        }
        self._eviction_labels: list[str] = []
        self._evictions: list[int] = []
        self._totals = {"size": 0, "time": 0}
        # The topics of a namespace share one policy object, which is parsed once per page.
        self._parsed: dict[int, tuple[object, dict[QuotaType, int]]] = {}

    def add(self, labels: str, topic: Topic) -> None:
        """Adds a topic with its label text."""
        if not topic.name.persistent:
            return
        for kind, limit in self._limits_of(topic).items():
            names, limits = self._limits[kind]
            names.append(labels)
            limits.append(limit)
        counters = topic.counters
        for quota_type, count in (
            ("size", counters.evictions_by_size),
            ("time", counters.evictions_by_age),
        ):
            if count:
                self._eviction_labels.append(f'{labels[:-1]},quota_type="{quota_type}"}}')
                self._evictions.append(count)
                self._totals[quota_type] += count

    def _limits_of(self, topic: Topic) -> dict[QuotaType, int]:
        value = topic.policies.value(BACKLOG_QUOTA)
        parsed = self._parsed.get(id(value))
        if parsed is None:
            limits = {quota.type: quota.limit for quota in quotas_of(value)}
            # The value is kept as well, so that no other object gets its id.
            self._parsed[id(value)] = parsed = (value, limits)
        return parsed[1]

    def families(self, cluster: str, *, topics: bool) -> Iterator[str]:
        """Yields the text of each family; without `topics` only the broker's sums."""
        for kind, count in self._totals.items():
            if count:
                yield single(
                    "pulsar_broker_storage_backlog_quota_exceeded_evictions_total",
                    f'{{cluster="{cluster}",quota_type="{kind}"}}',
                    count,
                    "counter",
                )
        if not topics:
            return
        yield family("pulsar_storage_backlog_quota_limit", *self._limits[QuotaType.SIZE])
        yield family("pulsar_storage_backlog_quota_limit_time", *self._limits[QuotaType.AGE])
        yield family(EVICTIONS, self._eviction_labels, self._evictions, "counter")
