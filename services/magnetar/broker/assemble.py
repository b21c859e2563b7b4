"""Builds a broker from its parts, bottom-up: each part gets the finished parts that it uses.

The order breaks what would otherwise be cycles. `OpenTopics` comes first: policies notify the open
topics, and the ownership controls them. The managed ledgers get the ownership's guard, and then the
topic registry gets both.

A broker starts and stops its session. `choose` picks the owners of bundles by the
`rules` of placement; `managed_ledger` overrides that part of the settings.
"""

import random
import socket
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from magnetar import __version__
from magnetar.broker.catalog.resources import Resources
from magnetar.broker.catalog.topic_names import topic_of_ledger
from magnetar.broker.cold.compaction import Compaction
from magnetar.broker.cold.compactor import Compactor, Result
from magnetar.broker.cold.offload import Offloading
from magnetar.broker.dynamic.live_settings import LiveSettings
from magnetar.broker.explain.diagnosis import Diagnosis
from magnetar.broker.explain.gather.parts import Parts
from magnetar.broker.explain.refusals import RecentRefusals
from magnetar.broker.lifecycle.upkeep import Upkeep
from magnetar.broker.ownership.always import AlwaysOwned
from magnetar.broker.ownership.api import Choose
from magnetar.broker.ownership.records import BrokerRecord, Urls
from magnetar.broker.peers.client import PeerClient
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.policies.notifier import PolicyNews
from magnetar.broker.rates.broker_limits import BrokerLimits, set_limits
from magnetar.broker.rates.group_limits import GroupLimits
from magnetar.broker.rates.held_sends import HeldBudget
from magnetar.broker.redrive.jobs import Redrives
from magnetar.broker.redrive.targets import Targets
from magnetar.broker.schema.registry import SchemaRegistry
from magnetar.broker.schema.topic_schemas import TopicSchemas
from magnetar.broker.service import BrokerService
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.topic.belongings import Belongings
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.deduplication.limits import DeduplicationLimits
from magnetar.broker.topic.delayed.limits import DelayLimits
from magnetar.broker.topic.entry_stamp import EntryStamp
from magnetar.broker.topic.news import TopicNews
from magnetar.broker.topic.open_topics import OpenTopics
from magnetar.broker.topic.registry import TopicRegistry
from magnetar.broker.transactions.coordinator import Limits
from magnetar.broker.transactions.coordinators import Coordinators
from magnetar.broker.transactions.local import LocalParticipants
from magnetar.broker.transactions.participants import Notifier
from magnetar.broker.transactions.routing import RoutedParticipants
from magnetar.broker.transactions.service import Transactions
from magnetar.broker.transactions.shares import OPEN_MAX
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.names import TopicName
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.claim import unguarded
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import ABSENT, BadRevision, MetadataStore
from magnetar.offload.cold import ColdLedgers
from magnetar.offload.stores import StoreSpec
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.subscriptions import SubscriptionSettings
from magnetar.transactions.records import StoredRecords

if TYPE_CHECKING:
    from magnetar.broker.balance.rules import PlacementRules
    from magnetar.broker.ownership.ownership import ClusterOwnership
    from magnetar.broker.security.broker_security import BrokerSecurity
    from magnetar.security.credentials import Credentials
    from magnetar.security.tls.reload import ClientTls

START_ATTEMPTS_MAX: Final = 64
READ_ENTRIES_MIN: Final = 100
"""Entries of a dispatcher's first read (Pulsar: dispatcherMinReadBatchSize 1)."""
STARTS_KEY: Final = "/broker-starts"


async def describe_broker(
    store: MetadataStore,
    clock: Clock,
    listener: socket.socket,
    *,
    service_url: str,
    http_url: str,
    service_url_tls: str = "",
    http_url_tls: str = "",
    listeners: Mapping[str, Urls] | None = None,
    address: tuple[str, int] | None = None,
) -> BrokerRecord:
    """Returns the record under which this start of the broker registers.

    Each start gets a number of its own, so that generated producer names are never reused. Other
    brokers reach the bound socket at `address`, by default at the host of its service URL.
    """
    host, port = address or _address_of(service_url or service_url_tls, listener)
    return BrokerRecord(
        broker_id=(http_url or http_url_tls).partition("://")[2],
        start=await _count_start(store),
        host=host,
        port=port,
        urls=Urls(service_url, http_url, service_url_tls, http_url_tls),
        listeners=dict(listeners or {}),
        version=__version__,
        started_ms=clock.now_ms(),
    )


def assemble(
    settings: BrokerSettings,
    store: MetadataStore,
    ledgers: LedgerClient,
    clock: Clock,
    record: BrokerRecord,
    *,
    session: MetadataSession | None = None,
    choose: Choose | None = None,
    rules: "PlacementRules | None" = None,
    only_broker: bool = False,
    managed_ledger: ManagedLedgerSettings | None = None,
    security: "BrokerSecurity | None" = None,
    peers: PeerClient | None = None,
) -> BrokerService:
    """Returns a broker that is ready to start; with a `session`, it is one of a cluster.

    Without `security`, every client may do everything. `peers` connects to the other brokers.
    """
    clock, peers = SteadyClock.of(clock), peers or _own_peers(settings)
    managed_ledger = managed_ledger or settings.managed_ledger()
    tasks, resources, schemas = TaskSet("broker"), Resources(store), SchemaRegistry(store, clock)
    open_topics, groups = OpenTopics(tasks), GroupLimits(store, clock, record.broker_id, session)
    policy_news = PolicyNews(open_topics.__iter__, open_topics.loaded, tasks)
    policies = BrokerPolicies(store, settings, resources, policy_news.changed)
    cold, compaction, offloading = _cold(settings, store, clock, policies, managed_ledger)
    cluster_ownership = _in_cluster(store, session, record, open_topics, clock, choose, rules)
    topic_schemas = TopicSchemas(schemas, policies)
    factory = ManagedLedgerFactory(
        *(store, ledgers, clock, managed_ledger),
        cold=cold,
        guard=cluster_ownership.guard if cluster_ownership else unguarded,
        confirm=partial(_confirm_retention, policies, open_topics),
        trim_limit=compaction.trim_limit,
        cold_first=offloading.cold_first,
        forget=Belongings(resources, topic_schemas, policies).forget_with_log,
    )
    context = _topic_context(settings, store, clock, tasks, topic_schemas, policies, groups)
    ownership = cluster_ownership or AlwaysOwned(resources, open_topics)
    news = TopicNews(tasks, store if session else None)
    parts = (resources, factory, context, open_topics, ownership, news)
    topics = TopicRegistry(*parts, default_partitions=settings.topics.default_partitions)
    service = BrokerService(
        settings=settings,
        live=LiveSettings(settings, store),
        store=store,
        clock=clock,
        record=record,
        session=session,
        only_broker=only_broker,
        tasks=tasks,
        resources=resources,
        policies=policies,
        schemas=schemas,
        topic_schemas=topic_schemas,
        compactor=_compactor(settings, compaction, ledgers, open_topics, has_jobs=not only_broker),
        offloading=offloading,
        cluster_ownership=cluster_ownership,
        rules=rules,
        groups=groups,
        ledgers=factory,
        open_topics=open_topics,
        topics=topics,
        upkeep=Upkeep(topics, clock, context.limits, policy_news.changed_for_all),
        diagnosis=_diagnosis(settings, store, record, clock, factory, policies, offloading),
        security=security,
        transactions=_transactions(settings, store, record, topics, context, peers, resources),
        redrives=_redrives(settings, record, peers, schemas, Targets(resources, topics), clock),
    )
    return _follow_settings(service, context.limits, policy_news)


def _cold(
    settings: BrokerSettings,
    store: MetadataStore,
    clock: SteadyClock,
    policies: BrokerPolicies,
    managed_ledger: ManagedLedgerSettings,
) -> tuple[ColdLedgers, Compaction, Offloading]:
    cold = ColdLedgers(store, managed_ledger.cold_cache_bytes_max, clock)
    compaction = Compaction(store, cold.files, policies, clock)
    return cold, compaction, Offloading(settings.offload, policies, store, cold, clock)


def _compactor(
    settings: BrokerSettings,
    compaction: Compaction,
    ledgers: LedgerClient,
    topics: OpenTopics,
    *,
    has_jobs: bool,
) -> Compactor:
    own, context = settings.compaction, ledgers.context

    async def compact(topic: TopicName, artifacts: StoreSpec | None, result: Result) -> None:
        # Imported here: a broker that compacts nothing does not need it.
        from magnetar.broker.cold.in_workers import InWorkers

        await InWorkers(context, topics, own, artifacts, has_jobs=has_jobs)(topic, result)

    enabled = own.compaction_topic_size_mb_max != 0 or not has_jobs
    return Compactor(compaction, context.store, topics, context.clock, compact, enabled=enabled)


def _follow_settings(
    service: BrokerService, limits: BrokerLimits, news: PolicyNews
) -> BrokerService:
    """Applies the settings, now and after each change, to the parts that keep what follows."""

    def apply(settings: BrokerSettings) -> None:
        own = settings.limits
        set_limits(limits, settings)
        service.upkeep.unacked.set(own.unacked_per_broker_max, own.unacked_share_when_blocked)
        service.policies.set_defaults(settings)
        service.settings_changed(settings)

    def changed(settings: BrokerSettings) -> None:
        apply(settings)
        news.changed_for_all()

    service.groups.on_change = news.changed_for_all
    service.upkeep.refusals = service.diagnosis.refusals
    apply(service.settings)
    service.live.listen(changed)
    service.policies.confirm_defaults = service.live.confirm
    return service


def _redrives(
    settings: BrokerSettings,
    record: BrokerRecord,
    peers: PeerClient,
    schemas: SchemaRegistry,
    targets: Targets,
    clock: SteadyClock,
) -> Redrives:
    return Redrives(
        *(record, peers, schemas, targets, clock),
        transactions=settings.transactions.transactions,
        authenticated=settings.security.authentication_enabled,
    )


def _own_peers(settings: BrokerSettings) -> PeerClient:
    """Returns the connections of a single broker: to itself."""
    return PeerClient(_own_credentials(settings), _own_tls(settings))


def _own_credentials(settings: BrokerSettings) -> "Credentials | None":
    """Returns what a single broker presents to itself; None without `broker_client_auth_plugin`."""
    security = settings.security
    if not (security.authentication_enabled and security.broker_client_auth_plugin):
        return None
    # Imported here: an open broker starts without the modules of security.
    from magnetar.security.credentials import Credentials
    from magnetar.security.secret import Secret

    parameters = security.broker_client_auth_parameters or Secret("")
    return Credentials.parse(security.broker_client_auth_plugin, parameters)


def _own_tls(settings: BrokerSettings) -> "ClientTls | None":
    """Returns the TLS of a single broker's connections to itself; None if they are plain."""
    config = settings.broker_tls.client_config(settings.tls)
    if config is None:
        return None
    # Imported here: an open broker starts without the modules of security.
    from magnetar.security.tls.reload import open_client_tls

    return open_client_tls(config, "brokers")


def _diagnosis(
    settings: BrokerSettings,
    store: MetadataStore,
    record: BrokerRecord,
    clock: SteadyClock,
    ledgers: ManagedLedgerFactory,
    policies: BrokerPolicies,
    offloading: Offloading,
) -> Diagnosis:
    records = StoredRecords(store, enabled=settings.transactions.transactions)
    refusals = RecentRefusals(clock)
    parts = Parts(ledgers, clock, policies, offloading, records, refusals)
    return Diagnosis(parts, record.broker_id)


def _in_cluster(
    store: MetadataStore,
    session: MetadataSession | None,
    record: BrokerRecord,
    open_topics: OpenTopics,
    clock: SteadyClock,
    choose: Choose | None,
    rules: "PlacementRules | None",
) -> "ClusterOwnership | None":
    if session is None:
        return None
    # Imported here: a standalone does not need it.
    from magnetar.broker.ownership.ownership import ClusterOwnership, fewest_bundles

    choose = choose or fewest_bundles
    return ClusterOwnership(store, session, record, open_topics, clock, choose, rules)


async def _count_start(store: MetadataStore) -> int:
    for _ in range(START_ATTEMPTS_MAX):
        record = await store.get(STARTS_KEY)
        number = 1 if record is None else int(record.value) + 1
        revision = ABSENT if record is None else record.revision
        try:
            await store.put(STARTS_KEY, str(number).encode(), expected=revision)
        except BadRevision:
            continue  # another broker of the cluster is starting
        return number
    raise MetadataError(f"{STARTS_KEY} changed {START_ATTEMPTS_MAX} times in a row")


def _address_of(service_url: str, listener: socket.socket) -> tuple[str, int]:
    """Returns the host that clients use and the port of the socket."""
    host, port = listener.getsockname()[:2]
    return (urlsplit(service_url).hostname or host), port


async def _confirm_retention(
    policies: BrokerPolicies, open_topics: OpenTopics, ledger: str
) -> None:
    """Brings a topic's retention up to date with the store, before its ledgers are trimmed."""
    name = topic_of_ledger(ledger)
    await policies.confirm(name)
    if (topic := open_topics.loaded(name)) is not None:
        topic.policies_changed()


def _topic_context(
    settings: BrokerSettings,
    store: MetadataStore,
    clock: SteadyClock,
    tasks: TaskSet,
    schemas: TopicSchemas,
    policies: BrokerPolicies,
    groups: GroupLimits,
) -> TopicContext:
    deduplication = settings.deduplication
    return TopicContext(
        clock=clock,
        tasks=tasks,
        schemas=schemas,
        policies=policies,
        subscription_limits=_subscription_limits(settings.subscriptions),
        held=HeldBudget(),
        limits=BrokerLimits(clock),
        groups=groups,
        message_bytes_max=settings.producers.message_bytes_max,
        deduplication=DeduplicationLimits(
            deduplication.deduplication_producers_max,
            deduplication.deduplication_inactivity_minutes * 60,
            deduplication.deduplication_snapshot_entries,
        ),
        delays=DelayLimits(
            settings.delayed.delayed_delivery_strict,
            settings.delayed.delayed_delivery_memory_messages,
        ),
        stamp=EntryStamp.of(settings.producers.entry_metadata, clock),
        encryption_required=settings.connections.encryption_required,
        transactions=StoredRecords(store, enabled=settings.transactions.transactions),
    )


def _subscription_limits(settings: SubscriptionSettings) -> SubscriptionLimits:
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


def _transactions(
    settings: BrokerSettings,
    store: MetadataStore,
    record: BrokerRecord,
    topics: TopicRegistry,
    context: TopicContext,
    peers: PeerClient,
    resources: Resources,
) -> Transactions | None:
    own = settings.transactions
    if not own.transactions:
        return None
    local = LocalParticipants(topics)
    rng = random.Random()
    notifier = Notifier(
        RoutedParticipants(local, peers),
        at_once=own.transaction_ends_max,
        timeout_s=own.transaction_end_timeout_ms / 1000,
        random=rng,
    )
    limits = Limits(
        open_max=own.open_transactions_max or OPEN_MAX,
        retention_ms=own.transaction_outcome_retention_s * 1000,
    )
    broker = f"{record.broker_id}#{record.start}"
    coordinators = Coordinators(
        store, topics.ownership, broker, notifier, context.clock, rng, limits
    )
    bundles = settings.topics.default_namespace_bundles
    name = settings.cluster_name
    return Transactions(resources, name, coordinators, notifier, local, peers, bundles)
