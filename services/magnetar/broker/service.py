"""The broker: the facade that sessions and the admin REST use, its listener and periodic tasks.

`assemble` builds the parts; the service starts and stops them, accepts connections on the binary
port, and runs the periodic tasks: keep-alive, rates, trimming of ledgers, deletion of unused
topics.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from magnetar import __version__
from magnetar.broker.catalog.resources import Resources
from magnetar.broker.cold.compactor import Compactor
from magnetar.broker.cold.offload import REFRESH_INTERVAL_S, Offloading, publish_defaults
from magnetar.broker.cold.offloader import CHECK_INTERVAL_S as CHECK_INTERVAL_S_OFFLOAD
from magnetar.broker.cold.offloader import Offloader
from magnetar.broker.dynamic.live_settings import LiveSettings
from magnetar.broker.explain.diagnosis import Diagnosis
from magnetar.broker.explain.refusals import RecentRefusals
from magnetar.broker.lifecycle.unacked_watch import CHECK_INTERVAL_S
from magnetar.broker.lifecycle.upkeep import Upkeep
from magnetar.broker.listeners import SecurePort
from magnetar.broker.ownership.api import Ownership
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.policies.namespaces import FollowedNamespaces, NamespaceRecords
from magnetar.broker.rates.group_limits import GroupLimits
from magnetar.broker.rates.request_limit import limits_of
from magnetar.broker.rates.subscribe_rate import host_of
from magnetar.broker.redrive.jobs import Redrives
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.schema.topic_schemas import TopicSchemas
from magnetar.broker.session.budget import PublishBudget
from magnetar.broker.session.caps import ConnectionCaps
from magnetar.broker.session.connection import SWEEP_S, Connection
from magnetar.broker.session.handlers import handlers
from magnetar.broker.session.link import SERVER_REQUEST_ID
from magnetar.broker.session.session import Handler, Session
from magnetar.broker.topic.counters import RATE_PERIOD_S
from magnetar.broker.topic.open_topics import OpenTopics
from magnetar.broker.topic.registry import TopicRegistry
from magnetar.broker.transactions.service import Transactions
from magnetar.core.causes import Causes
from magnetar.core.errors import MagnetarError, ServerError
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import MetadataStore
from magnetar.observe.peer_log import PeerLog
from magnetar.settings.broker import BrokerSettings
from magnetar.wire.framing import FRAME_OVERHEAD_BYTES_MAX

if TYPE_CHECKING:
    from magnetar.broker.balance.rules import PlacementRules
    from magnetar.broker.ownership.ownership import ClusterOwnership
    from magnetar.broker.security.broker_security import BrokerSecurity

log = get_logger("magnetar.broker")

LISTEN_BACKLOG: Final = 1_024
DELAYS_SWEEP_INTERVAL_S: Final = 60.0
RESTORE_INTERVAL_S: Final = 30.0
"""Between attempts to read cursors that could not be read."""
SESSIONS_END_TIMEOUT_S: Final = 5.0
TOPICS_SHARE_OF_SHUTDOWN: Final = 0.7
"""Share of the time to stop that topics may take; the rest is for connections and storage."""
START_TIMEOUT_S: Final = 30.0
"""Deadline of the first listing of namespaces from the metadata store."""
HANDOVER_SHARE: Final = 0.7
"""Share of the topics' time that handing over bundles may take, in a cluster."""


class BrokerService:
    """A broker: `start` it once, then `stop` it. `broker.assemble` builds it."""

    offloader: Offloader | None = None
    """Offloads the topics of a standalone; None in a cluster, where jobs do."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        live: LiveSettings,
        store: MetadataStore,
        clock: SteadyClock,
        record: BrokerRecord,
        session: MetadataSession | None,
        only_broker: bool,
        tasks: TaskSet,
        resources: Resources,
        policies: BrokerPolicies,
        schemas: SchemaRegistry,
        topic_schemas: TopicSchemas,
        compactor: Compactor,
        offloading: Offloading,
        cluster_ownership: "ClusterOwnership | None",
        rules: "PlacementRules | None",
        groups: GroupLimits,
        ledgers: ManagedLedgerFactory,
        open_topics: OpenTopics,
        topics: TopicRegistry,
        upkeep: Upkeep,
        diagnosis: Diagnosis,
        redrives: Redrives,
        security: "BrokerSecurity | None" = None,
        transactions: Transactions | None = None,
    ) -> None:
        self.live, self.settings = live, settings
        self.store, self.clock = store, clock
        self.record = record
        """This broker's registration, as other brokers see it."""
        self.session = session
        self.only_broker = only_broker
        """Whether clients may use any address by which they reached this broker.

        A broker behind a mapped port or under another name then works without configuration.
        """
        self.tasks, self.resources = tasks, resources
        self.policies, self.schemas = policies, schemas
        self.topic_schemas = topic_schemas
        self.compaction, self.compactor = compactor.compaction, compactor
        self.offloading = offloading
        self.cluster_ownership = cluster_ownership
        """None without a cluster."""
        self.rules = rules
        """The rules of placement; None without any."""
        self.groups = groups
        """The limits of resource groups."""
        self.ledgers = ledgers
        self.open_topics, self.topics = open_topics, topics
        self.upkeep, self.diagnosis, self.redrives = upkeep, diagnosis, redrives
        self.security = security
        """None while authentication is off."""
        connections = settings.connections
        self.request_limit, self.command_limit = limits_of(connections)
        self.transactions = transactions
        """None while transactions are off."""
        self.version, self.server_version = __version__, f"Magnetar {__version__}"
        self.stopping = False
        self.liveness_timeout_s = connections.liveness_check_timeout_ms / 1000
        self.budget = PublishBudget()
        self.sessions: set[Session] = set()
        self._caps = ConnectionCaps(connections.connections_max, connections.connections_per_ip_max)
        self._causes = Causes()
        self.peer_log = PeerLog(get_logger("magnetar.session"))
        self.sessions_total = self._producer_names = 0
        self._servers: list[asyncio.Server] = []
        self._no_sessions: asyncio.Event | None = None

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.settings.cluster_name

    @property
    def refusals(self) -> RecentRefusals:
        """The clients that were refused lately."""
        return self.diagnosis.refusals

    @property
    def broker_id(self) -> str:
        """The id under which other brokers and tools address this broker."""
        return self.record.broker_id

    @property
    def service_url(self) -> str:
        """The address of the binary protocol; that with TLS if there is no other."""
        urls = self.record.urls
        return urls.service_url or urls.service_url_tls

    @property
    def http_url(self) -> str:
        """The address of the admin REST; that with TLS if there is no other."""
        urls = self.record.urls
        return urls.http_url or urls.http_url_tls

    @property
    def ownership(self) -> Ownership:
        """Decides which topics this broker serves, and finds the owners of the others."""
        return self.topics.ownership

    async def start(self, listener: socket.socket | None, secure: SecurePort | None = None) -> None:
        """Accepts connections on the bound sockets; a broker of a cluster registers itself."""
        if self.cluster_ownership is not None:
            await self.cluster_ownership.start()
        await self.follow_policies()
        await publish_defaults(self.store, self.offloading.defaults)
        if self.only_broker:
            await self.compactor.forget_jobs()
        if self.offloader is not None:
            await self.offloader.forget_jobs()
        loop = asyncio.get_running_loop()
        self._every(SWEEP_S, self._close_unfinished, "connection deadlines")
        accept = partial(
            self._connection,
            handlers(
                self.security,
                transactional=self.transactions is not None,
                limit=self.command_limit,
            ),
            self.settings.producers.message_bytes_max + FRAME_OVERHEAD_BYTES_MAX,
        )
        if listener is not None:
            self._servers.append(
                await loop.create_server(accept, sock=listener, backlog=LISTEN_BACKLOG)
            )
        if secure is not None:
            # Imported here: an open process does not need it.
            from magnetar.security.tls.transport import server_factory

            self._servers.append(
                await loop.create_server(
                    server_factory(secure.tls, accept),
                    sock=secure.socket,
                    backlog=LISTEN_BACKLOG,
                )
            )
        if self.session is not None:
            # After the listener opened, so that a registered broker can be reached.
            await self.session.start()
        if self.transactions is not None:
            self.transactions.start()
        self._begin_upkeep()

    def _connection(self, handling: Mapping[int, Handler], frame_bytes_max: int) -> Connection:
        return Connection(Session(self, handling), frame_bytes_max)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Applies settings that were changed at run time, in the parts of the service itself."""
        self.settings = settings
        self.topics.creation.partitions_max = settings.topics.partitions_max
        connections = settings.connections
        self._caps.set(
            connections.connections_max,
            connections.connections_per_ip_max,
            (host_of(session.link.address) for session in self.sessions),
        )

    def _begin_upkeep(self) -> None:
        self._every(CHECK_INTERVAL_S, self.upkeep.unacked.check, "unacked-of-broker")
        self._every(self.settings.connections.keep_alive_interval_s, self._keep_alive, "keep-alive")
        self._every(RATE_PERIOD_S, self._renew_rates, "rates")
        self._every(
            self.settings.storage.retention_check_interval_s, self.upkeep.trim, "trim-ledgers"
        )
        self._every(
            self.settings.checks.ttl_check_interval_minutes * 60,
            self.upkeep.expire_messages,
            "expire-messages",
        )
        if self.settings.checks.backlog_quota_checks:
            self._every(
                self.settings.checks.backlog_quota_check_interval_s,
                self.upkeep.check_quotas,
                "check-backlog-quotas",
            )
        self._every(
            self.settings.checks.subscription_check_interval_minutes * 60,
            self.upkeep.expire_subscriptions,
            "expire-subscriptions",
        )
        self._every(
            self.settings.deduplication.deduplication_sweep_interval_s,
            self.upkeep.sweep_deduplication,
            "sweep-deduplication",
        )
        self._every(DELAYS_SWEEP_INTERVAL_S, self.upkeep.sweep_delays, "sweep-delays")
        self._every(RESTORE_INTERVAL_S, self.upkeep.restore_subscriptions, "restore-subscriptions")
        self._every(
            self.settings.topics.delete_inactive_topics_interval_s,
            self.upkeep.delete_unused,
            "delete-unused-topics",
        )
        if (interval_s := self.settings.compaction.compaction_check_interval_s) > 0:
            self._every(interval_s, self.compactor.check, "check-compaction")
        if self.offloader is not None:
            self._every(CHECK_INTERVAL_S_OFFLOAD, self.offloader.check, "check-offload")
        self._every(
            REFRESH_INTERVAL_S,
            lambda: self.offloading.refresh_all(self.ledgers.opened),
            "offloaded-sizes",
        )

    async def follow_policies(self) -> None:
        """Returns once all existing policies are loaded. Call it before any topic is opened.

        The settings that were changed at run time are in force before.
        """
        await self.live.start(self.tasks)
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
        self.tasks.start(self.groups.run(), "follow resource groups")
        async with asyncio.timeout(START_TIMEOUT_S):
            await self.groups.ready()
        if self.session is not None:
            self.tasks.start(self.groups.run_reports(), "report resource groups")
        if self.security is not None:
            await self._start_security(self.security, records)

    async def _start_security(self, security: "BrokerSecurity", records: NamespaceRecords) -> None:
        # Imported here: an open process does not need them.
        from magnetar.broker.session.recheck import Recheck
        from magnetar.broker.session.revocation import Revocation

        if security.audit is not None:
            security.audit.start()
        revocation = Revocation(lambda: self.sessions, security.authenticator)
        self.tasks.start(revocation.run(), "revocation")
        if (authorizer := security.authorizer) is not None:
            await authorizer.start(records, self.tasks)
            recheck = Recheck(lambda: self.sessions, authorizer, self.tasks)
            authorizer.listen(recheck.changed)

    async def stop(self) -> None:
        """Stops accepting connections, makes all state durable and disconnects the clients.

        A broker of a cluster first hands over its bundles and still answers look-ups meanwhile. It
        stops listening only after its registration is deleted.
        """
        deadline_s = self.settings.connections.shutdown_timeout_ms / 1000 * TOPICS_SHARE_OF_SHUTDOWN
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        if self.cluster_ownership is not None:
            await self.cluster_ownership.drain(deadline_s * HANDOVER_SHARE)
            self.stopping = True
            await self.cluster_ownership.withdraw()
        self.stopping = True
        await self.redrives.stop()
        await self.compactor.stop()
        if self.offloader is not None:
            await self.offloader.stop()
        if self.transactions is not None:
            await self.transactions.stop()
        for server in self._servers:
            server.close()
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
        if self.security is not None:
            await self.security.close()

    async def _sessions_ended(self) -> None:
        if self.sessions:
            self._no_sessions = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SESSIONS_END_TIMEOUT_S):
                    await self._no_sessions.wait()

    def session_opened(self, session: Session) -> None:
        """See `session.Broker.session_opened`."""
        self.sessions.add(session)
        self.sessions_total += 1
        host = host_of(session.link.address)
        refusal = self._caps.opened(host)
        if refusal is not None:
            if self._causes.is_new(host, refusal):
                log.warning("connection refused", peer=session.link.address, reason=refusal)
            session.link.error_code(SERVER_REQUEST_ID, ServerError.NOT_ALLOWED_ERROR, refusal)
            if self.security is not None:
                self.security.audit_refused_connection(host, refusal)
        if refusal is not None or self.stopping:
            session.link.close()

    def session_lost(self, session: Session) -> None:
        """See `session.Broker.session_lost`."""
        self.sessions.discard(session)
        self._caps.closed(host_of(session.link.address))
        if self._no_sessions is not None and not self.sessions:
            self._no_sessions.set()

    def new_producer_name(self) -> str:
        """Returns a name that no producer of this cluster has had: `cluster-start-number`."""
        self._producer_names += 1
        return f"{self.cluster}-{self.record.start}-{self._producer_names - 1}"

    def _every(self, period_s: float, work: Callable[[], Awaitable[None]], name: str) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(period_s)
                try:
                    await work()
                except MagnetarError as error:
                    log.warning("periodic work failed", work=name, error=str(error))
                except Exception:
                    # A bug. Without keep-alive, for example, the broker would degrade unnoticed.
                    log.exception("periodic work failed", work=name)

        self.tasks.start(repeat(), name)

    async def _keep_alive(self) -> None:
        for session in list(self.sessions):
            wire = session.wire
            if wire.heard:
                wire.heard = session.ping_sent = False
            elif session.link.reading_paused:
                continue  # the answer may wait in a socket that is not being read
            elif session.ping_sent:
                log.info("silent peer disconnected", peer=session.link.address)
                wire.close()
            else:
                session.ping_sent = True
                session.link.ping()

    async def _close_unfinished(self) -> None:
        """Closes connections that exceed the deadline of an unfinished frame or handshake."""
        now = asyncio.get_running_loop().time()
        for session in list(self.sessions):
            if isinstance(session.wire, Connection):
                session.wire.check_deadlines(now)

    async def _renew_rates(self) -> None:
        async for topic in self.upkeep.each_topic():
            if topic.counters.messages_in or topic.counters.message_rate_in:
                topic.counters.renew_rates(RATE_PERIOD_S)
            for producer in topic.producers:
                producer.renew_rates(RATE_PERIOD_S)
            for subscription in topic.subscriptions.values():
                subscription.update_rates()
            self.diagnosis.stalls.check(topic)
        self.diagnosis.stalls.round_ended()
