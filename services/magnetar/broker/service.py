"""The broker as one object: what sessions and the admin REST call, and what runs beside them.

It owns the topics, the listener of the binary protocol, and the few periodic tasks: keep-alive,
rates, trimming of ledgers, deletion of unused topics. It is handed the metadata store and the
managed ledgers, and knows nothing of where they keep their bytes.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from magnetar import __version__
from magnetar.broker.compaction import Compaction
from magnetar.broker.entry_stamp import EntryStamp
from magnetar.broker.lifecycle.upkeep import Upkeep
from magnetar.broker.offloading import (
    REFRESH_INTERVAL_S,
    Offloading,
    publish_defaults,
    topic_of,
)
from magnetar.broker.ownership.always import Ownership
from magnetar.broker.ownership.ownership import ClusterOwnership
from magnetar.broker.ownership.records import BrokerRecord, Urls
from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.policies.namespaces import FollowedNamespaces, NamespaceRecords
from magnetar.broker.policies.telling import PolicyNews
from magnetar.broker.rates.held import HeldBudget
from magnetar.broker.resources import Resources
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.schema.topic_schemas import TopicSchemas
from magnetar.broker.session.budget import PublishBudget
from magnetar.broker.session.connection import SWEEP_S, Connection
from magnetar.broker.session.session import Session
from magnetar.broker.settings import BrokerSettings
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.counters import RATE_PERIOD_S
from magnetar.broker.topics import TopicRegistry
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import BadRevision, MetadataStore
from magnetar.wire.framing import FRAME_OVERHEAD_BYTES_MAX

log = get_logger("magnetar.broker")

LISTEN_BACKLOG: Final = 1_024
SESSIONS_END_TIMEOUT_S: Final = 5.0
TOPICS_SHARE_OF_SHUTDOWN: Final = 0.7
"""Of the time to stop: the rest is for the connections and the storage below."""
START_ATTEMPTS_MAX: Final = 64
START_TIMEOUT_S: Final = 30.0
"""For the metadata store to tell what there is."""
HANDOVER_SHARE: Final = 0.7
"""Of the time for topics: for handing bundles over, in a cluster."""
READ_ENTRIES_MIN: Final = 100
"""What a dispatcher's first read asks for (Pulsar: dispatcherMinReadBatchSize 1)."""
_STARTS_KEY: Final = "/broker-starts"


class BrokerService:
    """See the module's text. `start`, then `stop`; never started again."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MetadataStore,
        ledgers: ManagedLedgerFactory,
        clock: Clock,
        session: MetadataSession | None = None,
    ) -> None:
        """With a `session`, which the service starts and stops, it is one broker of a cluster."""
        self.settings = settings
        self.store = store
        self.ledgers = ledgers
        self.clock = clock = SteadyClock.of(clock)
        self.version = __version__
        self.server_version = f"Magnetar {__version__}"
        self.cluster = settings.cluster_name
        self.session = session
        self.record = BrokerRecord("", 0, "", 0, Urls("", ""))
        """This broker, as others know it."""
        self.only_broker = False
        self.started_ms = clock.now_ms()
        self.stopping = False
        self.liveness_timeout_s = settings.liveness_check_timeout_ms / 1000
        self.budget = PublishBudget()
        self.sessions: set[Session] = set()
        self.sessions_total = 0
        self.tasks = TaskSet("broker")
        self.resources = Resources(store)
        self.policies = BrokerPolicies(store, settings, self.resources)
        self.schemas = SchemaRegistry(store, clock)
        self.topic_schemas = TopicSchemas(self.schemas, self.policies)
        self.compaction = Compaction(store, ledgers.cold.files, self.policies, clock)
        ledgers.limit_trimming_with(self.compaction.trim_limit)
        self.topics = TopicRegistry(
            settings,
            self.resources,
            ledgers,
            TopicContext(
                clock=clock,
                tasks=self.tasks,
                schemas=self.topic_schemas,
                policies=self.policies,
                subscription_limits=_subscription_limits(settings),
                held=HeldBudget(),
                message_bytes_max=settings.message_bytes_max,
                throttle_tailing=settings.dispatch_rate_for_tailing,
                stamp=EntryStamp.of(settings.entry_metadata, clock),
            ),
        )
        news = PolicyNews(self.topics.__iter__, self.topics.loaded, self.tasks)
        self.policies.on_change = news.changed
        self.upkeep = Upkeep(self.topics, clock)
        ledgers.confirm_with(self._confirm_retention)
        self.offloading = Offloading(settings, self.policies, store, ledgers.cold, clock)
        ledgers.cold_first_with(self.offloading.cold_first)
        self.cluster_ownership: ClusterOwnership | None = None
        self._server: asyncio.Server | None = None
        self._no_sessions: asyncio.Event | None = None
        self._producer_names = 0
        self._start_number = 0

    # -- life ------------------------------------------------------------------------------

    @property
    def broker_id(self) -> str:
        return self.record.broker_id

    @property
    def service_url(self) -> str:
        return self.record.urls.service_url

    @property
    def http_url(self) -> str:
        return self.record.urls.http_url

    @property
    def ownership(self) -> Ownership:
        """Which topics are served here, and who serves the others."""
        return self.topics.ownership

    async def start(
        self,
        listener: socket.socket,
        *,
        service_url: str,
        http_url: str,
        only_broker: bool = False,
        listeners: Mapping[str, Urls] | None = None,
        address: tuple[str, int] | None = None,
    ) -> None:
        """Takes connections on the bound socket.

        The only broker of a cluster is found at whatever address a client came by, so that one
        behind a mapped port or another name serves all the same. One of several registers with
        its `listeners`, and with the `address` at which other brokers reach the socket.
        """
        self.only_broker = only_broker
        # Generated producer names must never come again, so each start has a number of its own.
        self._start_number = await self._count_start()
        host, port = address or _address_of(service_url, listener)
        self.record = BrokerRecord(
            broker_id=http_url.partition("://")[2],
            start=self._start_number,
            host=host,
            port=port,
            urls=Urls(service_url, http_url),
            listeners=dict(listeners or {}),
            version=self.version,
            started_ms=self.started_ms,
        )
        if self.session is not None:
            self.cluster_ownership = ClusterOwnership(
                self.store, self.session, self.record, self.topics, self.clock
            )
            self.topics.ownership = self.cluster_ownership
            self.topics.news.follow(self.store, self.tasks)
            self.ledgers.guard_with(self.cluster_ownership.guard)
            await self.cluster_ownership.start()
        await self.follow_policies()
        await publish_defaults(self.store, self.offloading.defaults)
        loop = asyncio.get_running_loop()
        frame_bytes_max = self.settings.message_bytes_max + FRAME_OVERHEAD_BYTES_MAX
        self._every(SWEEP_S, self._close_unfinished, "connection deadlines")
        self._server = await loop.create_server(
            lambda: Connection(Session(self), frame_bytes_max),
            sock=listener,
            backlog=LISTEN_BACKLOG,
        )
        if self.session is not None:
            # Once it listens: what is registered can be reached.
            await self.session.start()
        self._begin_upkeep()

    def _begin_upkeep(self) -> None:
        self._every(self.settings.keep_alive_interval_s, self._keep_alive, "keep-alive")
        self._every(RATE_PERIOD_S, self._renew_rates, "rates")
        self._every(self.settings.retention_check_interval_s, self.upkeep.trim, "trim-ledgers")
        self._every(
            self.settings.ttl_check_interval_minutes * 60,
            self.upkeep.expire_messages,
            "expire-messages",
        )
        if self.settings.backlog_quota_checks:
            self._every(
                self.settings.backlog_quota_check_interval_s,
                self.upkeep.check_quotas,
                "check-backlog-quotas",
            )
        self._every(
            self.settings.subscription_check_interval_minutes * 60,
            self.upkeep.expire_subscriptions,
            "expire-subscriptions",
        )
        self._every(
            self.settings.delete_inactive_topics_interval_s,
            self.upkeep.delete_unused,
            "delete-unused-topics",
        )
        self._every(
            REFRESH_INTERVAL_S,
            lambda: self.offloading.refresh_all(self.ledgers.opened),
            "offloaded-sizes",
        )

    async def follow_policies(self) -> None:
        """Returns once the policies that are set are known here, before any topic is opened."""
        records: NamespaceRecords
        if self.cluster_ownership is not None:
            records = self.cluster_ownership.rings
        else:
            records = followed = FollowedNamespaces(self.store)
            self.tasks.start(followed.run(), "follow namespaces")
            async with asyncio.timeout(START_TIMEOUT_S):
                await followed.ready()
        self.resources.follow(records)
        await self.policies.start(records, self.tasks)

    async def stop(self) -> None:
        """Drains: no new connections, clients sent away, everything known made durable.

        One of several brokers hands its bundles over first, and goes on answering look-ups
        meanwhile. It stops listening after its registration is gone, never before.
        """
        deadline_s = self.settings.shutdown_timeout_ms / 1000 * TOPICS_SHARE_OF_SHUTDOWN
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        if self.cluster_ownership is not None:
            await self.cluster_ownership.drain(deadline_s * HANDOVER_SHARE)
            self.stopping = True
            await self.cluster_ownership.withdraw()
        self.stopping = True
        if self._server is not None:
            self._server.close()
        try:
            async with asyncio.timeout_at(deadline):
                await self.topics.close()
        except TimeoutError:
            log.warning("topics did not close in time", left=len(self.topics))
        for session in list(self.sessions):
            session.link.close()
        await self._sessions_ended()
        if self.cluster_ownership is not None:
            await self.cluster_ownership.stop()
        if self.session is not None:
            await self.session.stop()
        await self.tasks.stop()

    async def _sessions_ended(self) -> None:
        if self.sessions:
            self._no_sessions = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SESSIONS_END_TIMEOUT_S):
                    await self._no_sessions.wait()

    async def _count_start(self) -> int:
        for _ in range(START_ATTEMPTS_MAX):
            record = await self.store.get(_STARTS_KEY)
            number = 1 if record is None else int(record.value) + 1
            revision = 0 if record is None else record.revision
            try:
                await self.store.put(_STARTS_KEY, str(number).encode(), expected=revision)
            except BadRevision:
                continue  # another broker of the cluster was started at this moment
            return number
        raise MetadataError(f"{_STARTS_KEY} changed {START_ATTEMPTS_MAX} times in a row")

    # -- sessions --------------------------------------------------------------------------

    def session_opened(self, session: Session) -> None:
        limit = self.settings.connections_max
        self.sessions.add(session)
        self.sessions_total += 1
        if self.stopping or (limit and len(self.sessions) > limit):
            log.warning("connection refused", peer=session.link.address, limit=limit)
            session.link.close()

    def session_lost(self, session: Session) -> None:
        self.sessions.discard(session)
        if self._no_sessions is not None and not self.sessions:
            self._no_sessions.set()

    def new_producer_name(self) -> str:
        """A name that no producer of this cluster has had: `cluster-start-number`."""
        self._producer_names += 1
        return f"{self.cluster}-{self._start_number}-{self._producer_names - 1}"

    @staticmethod
    def rfc3339(at_ms: int) -> str:
        """A time as Pulsar prints it."""
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")

    # -- what runs beside ------------------------------------------------------------------

    def _every(self, period_s: float, what: Callable[[], Awaitable[None]], name: str) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(period_s)
                try:
                    await what()
                except MagnetarError as error:
                    log.warning("periodic work failed", work=name, error=str(error))
                except Exception:
                    # A bug of ours: without keep-alive, say, the broker would fall ill slowly.
                    log.exception("periodic work failed", work=name)

        self.tasks.start(repeat(), name)

    async def _keep_alive(self) -> None:
        for session in list(self.sessions):
            wire = session.wire
            if wire.heard:
                wire.heard = session.ping_sent = False
            elif session.link.reading_paused:
                continue  # its answer may wait in a socket that we do not read
            elif session.ping_sent:
                log.info("silent peer disconnected", peer=session.link.address)
                wire.close()
            else:
                session.ping_sent = True
                session.link.ping()

    async def _close_unfinished(self) -> None:
        """Holds connections to the deadlines of what they begin."""
        now = asyncio.get_running_loop().time()
        for session in list(self.sessions):
            if isinstance(session.wire, Connection):
                session.wire.look(now)

    async def _confirm_retention(self, ledger: str) -> None:
        """Ledgers of this topic are about to go: is what is kept of it as the store says?"""
        name = topic_of(ledger)
        await self.policies.confirm(name)
        if (topic := self.topics.loaded(name)) is not None:
            topic.policies_changed()

    async def _renew_rates(self) -> None:
        async for topic in self.upkeep.each_topic():
            if topic.counters.messages_in or topic.counters.message_rate_in:
                topic.counters.renew_rates(RATE_PERIOD_S)
            for producer in topic.producers:
                producer.renew_rates(RATE_PERIOD_S)
            for subscription in topic.subscriptions.values():
                subscription.update_rates()


def _address_of(service_url: str, listener: socket.socket) -> tuple[str, int]:
    """Where other brokers reach the socket, unless they are told: at the host that clients use."""
    host, port = listener.getsockname()[:2]
    return (urlsplit(service_url).hostname or host), port


def _subscription_limits(settings: BrokerSettings) -> SubscriptionLimits:
    return SubscriptionLimits(
        max_unacked_per_consumer=settings.unacked_per_consumer_max,
        max_unacked_per_subscription=settings.unacked_per_subscription_max,
        max_consumers=settings.consumers_per_subscription_max,
        failover_switch_delay_s=settings.failover_delay_ms / 1000,
        read_entries_min=min(READ_ENTRIES_MIN, settings.dispatch_entries_max),
        read_entries_max=settings.dispatch_entries_max,
        round_robin_entries_max=settings.dispatch_turn_entries_max,
        ring_points=settings.key_shared_points,
    )
