"""Series of the transactions of topics and subscriptions, under Pulsar's names.

Only topics and subscriptions that have had a transaction since they were opened have them, and
topics with one before. Without `topic_metrics`, they are sums by namespace. The counters of a
subscription have the label `status`, which is always `succeed`: an end that fails is repeated, and
`magnetar_txn_end_retries_total` counts that.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from magnetar.admin.metrics.topic_series import namespace_labels
from magnetar.broker.subscription.api import Subscription
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import as_persistent
from magnetar.observe.metrics import escape, family

TOPIC_ROW: Final = (
    ("pulsar_txn_tb_active_total", "gauge"),
    ("pulsar_txn_tb_committed_total", "counter"),
    ("pulsar_txn_tb_aborted_total", "counter"),
)
SUBSCRIPTION_ROW: Final = (
    ("pulsar_txn_tp_committed_count_total", "counter"),
    ("pulsar_txn_tp_aborted_count_total", "counter"),
)
Row = tuple[int, ...]


class ParticipantSeries:
    """Collects the transactions of topics and subscriptions, then writes their families."""

    def __init__(self, cluster: str, *, topics: bool) -> None:
        """`cluster` is escaped; without `topics`, the series are those of namespaces."""
        self._cluster = cluster
        self._by_topic = topics
        self._topics: dict[str, Row] = {}
        self._subscriptions: dict[str, Row] = {}

    def add(self, labels: str, topic: Topic) -> None:
        """Adds a topic with its label text, if it has had a transaction."""
        persistent = as_persistent(topic)
        if persistent is None or not persistent.transactional:
            return
        stats = persistent.transactions.stats()
        if stats.state != "None":
            row = (stats.open_count, stats.committed_total, stats.aborted_total)
            _add(self._topics, self._labels(labels, topic), row)

    def add_subscription(
        self, labels: str, topic: Topic, name: str, subscription: Subscription
    ) -> None:
        """Adds a subscription of the topic with this label text, if it has had a transaction."""
        if not isinstance(subscription, PersistentSubscription) or not subscription.transactional:
            return
        stats = subscription.transactions.stats()
        if stats.state != "None":
            own = f'{labels[:-1]},subscription="{escape(name)}"}}'
            own = f'{self._labels(own, topic)[:-1]},status="succeed"}}'
            _add(self._subscriptions, own, (stats.committed_total, stats.aborted_total))

    def _labels(self, labels: str, topic: Topic) -> str:
        if self._by_topic:
            return labels
        return namespace_labels(self._cluster, f"{topic.name.tenant}/{topic.name.namespace_local}")

    def families(self) -> Iterator[str]:
        """Yields the text of each family."""
        yield from _families(TOPIC_ROW, self._topics)
        yield from _families(SUBSCRIPTION_ROW, self._subscriptions)


def _add(rows: dict[str, Row], labels: str, row: Row) -> None:
    known = rows.get(labels)
    rows[labels] = row if known is None else tuple(map(sum, zip(known, row, strict=True)))


def _families(names: Iterable[tuple[str, str]], rows: dict[str, Row]) -> Iterator[str]:
    columns = zip(*rows.values(), strict=True)
    for (name, kind), column in zip(names, columns, strict=False):
        yield family(name, list(rows), column, kind)
