"""Pulsar keys for which Magnetar has one behavior: any other value stops the start.

An operator who sets `subscriptionTypesEnabled=Exclusive` and sees the server start believes that
it refuses other types. Each row has the values that describe what Magnetar does, among them those
that Pulsar ships, so that Pulsar's own files load; with all others the process does not start.

Keys that only tune Pulsar's threads, buffers, intervals and caches are not here: they may be set,
and cause a warning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NONE: Final = ("",)
OFF: Final = ("false",)
ON: Final = ("true",)
ZERO: Final = ("0",)
TYPES: Final = ("exclusive", "shared", "failover", "key_shared")


@dataclass(frozen=True, slots=True)
class Behavior:
    """The values of some keys that Magnetar accepts, what others require, and how to avoid that."""

    feature: str
    way_out: str
    accepted: dict[str, tuple[str, ...]]
    """Values by key, in lower case; an empty value is accepted for all."""


def _keys(values: tuple[str, ...], *keys: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(keys, values)


_PULSAR: Final = "org.apache.pulsar."
_DEFAULT: Final = "remove the key, leave it empty, or set it to Pulsar's default"

BEHAVIORS: Final[tuple[Behavior, ...]] = (
    Behavior(
        "geo-replication",
        _DEFAULT,
        {
            **_keys(
                ZERO,
                "clusterMigrationCheckDurationSeconds",
                "dispatchThrottlingRatePerReplicatorInByte",
                "dispatchThrottlingRatePerReplicatorInMsg",
            ),
            **_keys(OFF, "clusterMigrationAutoResourceCreation"),
            **_keys(ON, "createTopicToRemoteClusterForReplication", "replicationMetricsEnabled"),
            **_keys(NONE, "configurationMetadataSyncEventTopic", "metadataSyncEventTopic"),
            "brokerReplicationInactiveThresholdSeconds": ("86400",),
            "replicatedSubscriptionsSnapshotFrequencyMillis": ("1000",),
            "replicatedSubscriptionsSnapshotMaxCachedPerSubscription": ("10", "30"),
            "replicatedSubscriptionsSnapshotTimeoutSeconds": ("30",),
            "replicationConnectionsPerBroker": ("16",),
            "replicationPolicyCheckDurationSeconds": ("600",),
            "replicationProducerQueueSize": ("1000",),
            "replicationStartAt": ("latest",),
            "replicatorPrefix": ("pulsar.repl",),
        },
    ),
    Behavior(
        "plugins in Java",
        "remove the key or leave it empty",
        {
            **_keys(
                NONE,
                "additionalServlets",
                "brokerEntryPayloadProcessors",
                "brokerInterceptors",
                "extraServerComponents",
                "messagingProtocols",
                "topicFactoryClassName",
            ),
            "compactionServiceFactoryClassName": (
                f"{_PULSAR}compaction.PulsarCompactionServiceFactory",
            ),
            "dispatchRateLimiterFactoryClassName": (
                f"{_PULSAR}broker.service.persistent.DispatchRateLimiterFactoryAsyncTokenBucket",
                f"{_PULSAR}broker.service.persistent.DispatchRateLimiterFactoryClassic",
            ),
            "managedLedgerStorageClassName": (f"{_PULSAR}broker.ManagedLedgerClientFactory",),
            "pulsarResourcesExtendedClassName": (
                f"{_PULSAR}broker.DefaultPulsarResourcesExtended",
            ),
            "schemaRegistryStorageClassName": (
                f"{_PULSAR}broker.service.schema.BookkeeperSchemaStorageFactory",
            ),
            "topicBundleAssignmentStrategy": (
                f"{_PULSAR}common.naming.ConsistentHashingTopicBundleAssigner",
            ),
            "topicPoliciesServiceClassName": (
                f"{_PULSAR}broker.service.SystemTopicBasedTopicPoliciesService",
            ),
        },
    ),
    Behavior(
        "functions and packages in the broker",
        "remove the key or set it to false",
        _keys(
            OFF,
            "enablePackagesManagement",
            "functionsWorkerEnabled",
            "functionsWorkerEnablePackageManagement",
        ),
    ),
    Behavior(
        "a bookie inside of the broker",
        "remove the key or set it to false, and start `magnetar bookie` and `magnetar autorecovery`"
        ", or `magnetar standalone`",
        _keys(OFF, "enableRunBookieAutoRecoveryTogether", "enableRunBookieTogether"),
    ),
    Behavior(
        "SASL and plugins for authentication",
        "remove the key or leave it empty, and use tokens, OpenID Connect, passwords or TLS",
        {
            **_keys(
                NONE,
                "bookkeeperClientAuthenticationParameters",
                "bookkeeperClientAuthenticationParametersName",
                "brokerClientSslFactoryPluginParams",
                "httpServerKeyStorePassword",
                "httpServerKeyStorePath",
                "httpServerTrustStorePassword",
                "httpServerTrustStorePath",
                "permittedStartupUsers",
                "saslJaasServerRoleTokenSignerSecretPath",
                "sslFactoryPluginParams",
            ),
            "saslJaasClientAllowedIds": (".*pulsar.*",),
            "saslJaasServerSectionName": ("pulsarbroker",),
        },
    ),
    Behavior(
        "the PROXY protocol and X-Forwarded-For",
        "remove the key or set it to false, and have the load balancer forward TCP as it is",
        _keys(
            OFF,
            "haProxyProtocolEnabled",
            "webServiceHaProxyProtocolEnabled",
            "webServiceTrustXForwardedFor",
        ),
    ),
    Behavior(
        "other addresses to listen on",
        "remove the key or leave it empty, and set bindAddress, the ports and advertisedListeners",
        # Pulsar's standalone.conf has "lo"; the bookie of a standalone listens on no address.
        {"bindAddresses": NONE, "listeningInterface": ("lo",)},
    ),
    Behavior(
        "passwords and other checksums of ledgers than CRC32C",
        "remove the key or leave it empty",
        {"managedLedgerDigestType": ("crc32c",), "managedLedgerPassword": NONE},
    ),
    Behavior(
        "skipping what cannot be read",
        "remove the key or set it to false: entries are read again until bookies have them; to "
        "give some up: pulsar-admin topics skip",
        _keys(
            OFF,
            "autoSkipNonRecoverableData",
            "managedLedgerForceRecovery",
            "schemaLedgerForceRecovery",
        ),
    ),
    Behavior(
        "switching off a domain of topics, types of subscriptions or policies for all namespaces",
        _DEFAULT + "; pulsar-admin namespaces set-subscription-types-enabled does it for one",
        {
            **_keys(
                ON,
                "enableNonPersistentTopics",
                "enablePersistentTopics",
                "subscriptionKeySharedEnable",
                "subscriptionKeySharedUseConsistentHashing",
                "systemTopicEnabled",
                "topicLevelPoliciesEnabled",
            ),
            "subscriptionTypesEnabled": TYPES,
        },
    ),
    Behavior(
        "this limit for all of the broker",
        _DEFAULT + "; docs/understand/bounds.md lists the broker's own",
        {
            **_keys(
                ZERO,
                "maxNamespacesPerTenant",
                "maxSameAddressConsumersPerTopic",
                "maxSameAddressProducersPerTopic",
                "maxTenants",
            ),
            "httpMaxRequestSize": ("-1", "0"),
            "maxConsumerMetadataSize": ("1024",),
            "subscriptionPatternMaxLength": ("50",),
            **_keys(
                ("5",),
                "managedLedgerMaxAckQuorum",
                "managedLedgerMaxEnsembleSize",
                "managedLedgerMaxWriteQuorum",
            ),
        },
    ),
    Behavior(
        "this check of names, clients and schemas for all namespaces",
        "remove the key or set it to false; pulsar-admin namespaces "
        "set-schema-validation-enforce enforces schemas in one",
        _keys(
            OFF,
            "clientLibraryVersionCheckEnabled",
            "isSchemaValidationEnforced",
            "strictTopicNameEnabled",
            "strictlyVerifySubscriptionName",
        ),
    ),
    Behavior(
        "admin requests with unknown fields, which it refuses with 400",
        "remove the key or set it to true",
        _keys(ON, "httpRequestsFailOnUnknownPropertiesEnabled"),
    ),
    Behavior(
        "other labels and series of metrics",
        "remove the key, leave it empty or set it to false; docs/run/dashboards.md names the "
        "series",
        {
            **_keys(
                OFF,
                "exposeBundlesMetricsInPrometheus",
                "exposeCustomTopicMetricLabelsEnabled",
                "exposeManagedCursorMetricsInPrometheus",
                "exposeProducerLevelMetricsInPrometheus",
                "splitTopicAndPartitionLabelInPrometheus",
            ),
            **_keys(NONE, "allowedTopicPropertyKeysForMetrics"),
        },
    ),
    Behavior(
        "another form of statistics and redelivery counts",
        _DEFAULT + ": stats have each producer, and consumers get the redelivery count",
        {
            **_keys(OFF, "aggregatePublisherStatsByProducerName"),
            **_keys(ON, "exposePublisherStats", "subscriptionRedeliveryTrackerEnabled"),
        },
    ),
    Behavior(
        "dispatch rates that count a batch as one message",
        "remove the key or set it to false, and set rates in messages",
        _keys(OFF, "dispatchThrottlingOnBatchMessageEnabled"),
    ),
    Behavior(
        "exceptions from the moves of bundles, and the choice of brokers by their version",
        "remove the key, leave it empty or set it to false; isolation policies and load_balancer "
        "limit the moves",
        {
            **_keys(NONE, "loadBalancerSheddingExcludedNamespaces"),
            **_keys(OFF, "preferLaterVersions"),
        },
    ),
    Behavior(
        "another address of a bookie's HTTP port",
        "remove the key or leave it empty, and set bindAddress, which is that of all its ports",
        {"httpServerHost": ("0.0.0.0",)},  # noqa: S104 - a value of a file, no listener
    ),
    Behavior(
        "this default of new namespaces",
        _DEFAULT + "; give the value when the namespace is created, or set its policy "
        "(pulsar-admin namespaces set-compaction-threshold)",
        {
            "bootstrapNamespaces": NONE,
            "brokerServiceCompactionThresholdInBytes": ZERO,
        },
    ),
    Behavior(
        "this behavior of topics and subscriptions",
        "remove the key or set it to false",
        _keys(
            OFF,
            "activeConsumerFailoverConsistentHashing",
            "allowAclChangesOnNonExistentTopics",
            "brokerDeleteInactivePartitionedTopicMetadataEnabled",
            "dispatchThrottlingForFilteredEntriesEnabled",
            "schemaJsonAllowLegacyJacksonFormat",
            "topicCompactionRetainNullKey",
            "triggerOffloadOnTopicLoad",
        ),
    ),
    Behavior(
        "placement of ledgers by zones, fault domains and groups of bookies from settings",
        _DEFAULT + "; pulsar-admin namespaces set-bookie-affinity-group and pulsar-admin bookies "
        "set-bookie-rack place ledgers",
        {
            **_keys(
                OFF,
                "bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
                "enforceMinNumFaultDomainsForWrite",
                "enforceMinNumRacksPerWriteQuorum",
                "enforceStrictZoneawarePlacement",
            ),
            **_keys(
                NONE, "bookkeeperClientIsolationGroups", "bookkeeperClientSecondaryIsolationGroups"
            ),
            **_keys(ON, "bookkeeperClientRackawarePolicyEnabled"),
        },
    ),
    Behavior(
        "a bookie that is started read-only",
        "remove the key or set it to false, and run `magnetar bookie drain`",
        _keys(OFF, "forceReadOnlyBookie"),
    ),
    Behavior(
        "bookies that end when their disk is full, and clients that list topics themselves",
        "remove the key, leave it empty or set it to true: a full bookie is read-only, and clients "
        "choose whether brokers match patterns and report new topics",
        _keys(
            ON,
            "enableBrokerSideSubscriptionPatternEvaluation",
            "enableBrokerTopicListWatcher",
            "readOnlyModeEnabled",
        ),
    ),
)


def rows() -> Iterator[tuple[str, tuple[str, ...], Behavior]]:
    """Yields each key with its accepted values and its behavior."""
    for behavior in BEHAVIORS:
        for key, accepted in behavior.accepted.items():
            yield key, accepted, behavior


def is_other(value: object, accepted: tuple[str, ...]) -> bool:
    """Whether a value is none of the accepted ones; an empty one always is.

    A list is accepted if it has all values of TYPES in any order, or is empty.
    """
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    texts = {str(item).strip().lower() for item in items} - {""}
    if not texts:
        return False
    if accepted == TYPES:
        return texts != set(TYPES)
    return len(texts) > 1 or texts.isdisjoint(choice.lower() for choice in accepted)
