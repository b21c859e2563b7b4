"""The metrics page: reads topics in groups and writes one family at a time.

The event loop runs other tasks between these steps, so a scrape of ten thousand topics delays no
client for long. The page is streamed, so its whole text is never in memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

from magnetar.admin.metrics.analytics_series import AnalyticsSeries
from magnetar.admin.metrics.balance_series import balance_families
from magnetar.admin.metrics.bookie_series import BookieSeries, BookieWithStats
from magnetar.admin.metrics.broker_series import CacheRates, broker_families
from magnetar.admin.metrics.cold_series import ColdSeries
from magnetar.admin.metrics.ledger_series import ledger_families
from magnetar.admin.metrics.network_usage import NetworkUsage
from magnetar.admin.metrics.participant_series import ParticipantSeries
from magnetar.admin.metrics.quota_series import QuotaSeries
from magnetar.admin.metrics.schema_series import schema_families
from magnetar.admin.metrics.security_series import security_families
from magnetar.admin.metrics.subscription_series import NO_SUBSCRIPTIONS, SubscriptionSeries
from magnetar.admin.metrics.topic_series import (
    ROW,
    TopicSeries,
    by_namespace,
    namespace_labels,
    topic_labels,
)
from magnetar.admin.metrics.transaction_series import transaction_families
from magnetar.admin.metrics.windows import WINDOW_S, MinuteWindows
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import as_persistent
from magnetar.observe.metrics import escape, family, process_metrics

if TYPE_CHECKING:
    from magnetar.admin.metrics.delay_series import DelaySeries
    from magnetar.broker.balance.service import Balance

TOPICS_PER_TURN: Final = 256


class MetricsPage:
    """Writes the metrics page of a broker; `keep_windows` must run meanwhile."""

    def __init__(
        self,
        service: BrokerService,
        bookies: Iterable[BookieWithStats] = (),
        balance: "Balance | None" = None,
        further: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._further = further
        self._balance = balance
        self._service = service
        self.bookies = tuple(bookies)
        self._bookie_series = BookieSeries()
        self._network = NetworkUsage()
        self._windows = MinuteWindows()
        self._cache = CacheRates()
        self._cold = ColdSeries()
        self._analytics = AnalyticsSeries()

    async def keep_windows(self) -> None:
        """Ends a minute of all windows every minute, until cancelled."""
        while True:
            await asyncio.sleep(WINDOW_S)
            self.turn()

    def turn(self) -> None:
        """Ends the current minute of all windows."""
        self._windows.turn(self._service.topics)
        self._cache.turn(self._service)
        self._cold.turn(self._service)

    async def text(self) -> AsyncIterator[str]:
        """Yields the page in pieces."""
        service = self._service
        settings = service.settings
        cluster = escape(service.cluster)
        topics = TopicSeries(self._windows)
        subscriptions = SubscriptionSeries(
            rows=settings.operation.topic_metrics, consumers=settings.operation.consumer_metrics
        )
        quotas = QuotaSeries()
        participants = ParticipantSeries(cluster, topics=settings.operation.topic_metrics)
        delays: DelaySeries | None = None
        namespaces: list[str] = []
        for count, topic in enumerate(service.topics):
            labels_of_topic = topic_labels(cluster, topic)
            _collect(service, topic, labels_of_topic, topics, subscriptions, participants)
            quotas.add(labels_of_topic, topic)
            delays = _collect_delays(delays, service, labels_of_topic, topic)
            namespaces.append(f"{topic.name.tenant}/{topic.name.namespace_local}")
            if count % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
        counts: dict[str, int] = {}
        for namespace in namespaces:
            counts[namespace] = counts.get(namespace, 0) + 1
        labels = [namespace_labels(cluster, namespace) for namespace in counts]
        yield family("pulsar_topics_count", labels, list(counts.values()))
        for piece in chain(
            broker_families(service, topics.rows, len(namespaces), self._cache),
            self._cold.families(service),
            _compaction_families(service),
            security_families(service),
            schema_families(service),
            balance_families(service, self._balance, self._network),
            transaction_families(service),
        ):
            yield piece
        await self._analytics.refresh(service, self._balance)
        for piece in self._analytics.families(cluster):
            yield piece
        for piece in self._bookie_series.families(self.bookies):
            yield piece
        for piece in self._further():
            yield piece
        yield process_metrics()
        if settings.operation.topic_metrics:
            pieces = topics.families()
        else:
            names, rows = by_namespace(topics, namespaces, cluster)
            columns = zip(*rows, strict=True)
            pieces = (
                family(name, names, column, kind)
                for (name, kind), column in zip(ROW, columns, strict=False)
            )
        for piece in pieces:
            yield piece
            await asyncio.sleep(0)
        for piece in ledger_families(topics, namespaces, cluster):
            yield piece
        for piece in quotas.families(cluster, topics=settings.operation.topic_metrics):
            yield piece
        for piece in chain(participants.families(), () if delays is None else delays.families()):
            yield piece
        for piece in subscriptions.families():
            yield piece
            await asyncio.sleep(0)


def _compaction_families(service: BrokerService) -> Iterable[str]:
    if not service.compactor.counters:
        return ()
    # Imported here: a broker that compacts nothing does not need it.
    from magnetar.admin.metrics.compaction_series import compaction_families

    return compaction_families(service)


def _collect_delays(
    series: "DelaySeries | None", service: BrokerService, labels: str, topic: Topic
) -> "DelaySeries | None":
    """Adds the topic's delayed messages; returns the series, None before the first topic."""
    persistent = as_persistent(topic)
    if persistent is None or persistent.delays is None:
        return series
    if series is None:
        # Imported here: a broker without delayed messages does not need it.
        from magnetar.admin.metrics.delay_series import DelaySeries

        by_topic = service.settings.operation.topic_metrics
        series = DelaySeries(escape(service.cluster), topics=by_topic)
    series.add(labels, topic, persistent.delays)
    return series


def _collect(
    service: BrokerService,
    topic: Topic,
    labels: str,
    topics: TopicSeries,
    subscriptions: SubscriptionSeries,
    participants: ParticipantSeries,
) -> None:
    sums = NO_SUBSCRIPTIONS
    for name, subscription in topic.subscriptions.items():
        own = subscriptions.add(labels, name, subscription)
        participants.add_subscription(labels, topic, name, subscription)
        sums = own if sums is NO_SUBSCRIPTIONS else sums.plus(own)
    offloaded_bytes = 0
    if (persistent := as_persistent(topic)) is not None:
        offloaded_bytes = service.offloading.moved(persistent.managed_ledger).size_bytes
    topics.add(labels, topic, sums, offloaded_bytes)
    participants.add(labels, topic)
