"""Series of backlog quotas, of topics that have one: others would add three lines each for nothing.

`pulsar_storage_backlog_age_seconds` is not among them: it takes a read per topic and scrape.
"""

from collections.abc import Iterator
from typing import Final

from magnetar.broker.lifecycle.quota import QuotaType, quotas_of
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topics import Topic
from magnetar.observe.metrics import family, single
from magnetar.policies.lifecycle import BACKLOG_QUOTA

EVICTIONS: Final = "pulsar_storage_backlog_quota_exceeded_evictions_total"


class QuotaSeries:
    """Collects topics, then writes them out."""

    def __init__(self) -> None:
        self._limits: dict[QuotaType, tuple[list[str], list[int]]] = {
            kind: ([], []) for kind in QuotaType
        }
        self._eviction_labels: list[str] = []
        self._evictions: list[int] = []
        self._totals = {"size": 0, "time": 0}
        # Topics of a namespace have one and the same value: it is looked at once a page.
        self._known: dict[int, tuple[object, dict[QuotaType, int]]] = {}

    def add(self, labels: str, topic: Topic) -> None:
        """One topic with its label text."""
        if not isinstance(topic, PersistentTopic):
            return
        for kind, limit in self._limits_of(topic).items():
            names, limits = self._limits[kind]
            names.append(labels)
            limits.append(limit)
        counters = topic.counters
        for what, count in (
            ("size", counters.evictions_by_size),
            ("time", counters.evictions_by_age),
        ):
            if count:
                self._eviction_labels.append(f'{labels[:-1]},quota_type="{what}"}}')
                self._evictions.append(count)
                self._totals[what] += count

    def _limits_of(self, topic: PersistentTopic) -> dict[QuotaType, int]:
        value = topic.policies.value(BACKLOG_QUOTA)
        known = self._known.get(id(value))
        if known is None:
            limits = {each.type: each.limit for each in quotas_of(value)}
            self._known[id(value)] = known = (value, limits)
        return known[1]

    def families(self, cluster: str, *, topics: bool) -> Iterator[str]:
        """One text for each family; without `topics` only the broker's sums."""
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
