"""The limits of a subscription.

The defaults are those of Pulsar 4.2's `broker.conf`; the comments name its keys.
"""

from dataclasses import dataclass

from magnetar.policies.filters import FilterSpec


@dataclass(slots=True)
class SubscriptionLimits:
    """Limits of a subscription; 0 means unlimited for those where it does in Pulsar."""

    max_unacked_per_consumer: int = 50_000  # maxUnackedMessagesPerConsumer
    max_unacked_per_subscription: int = 200_000  # maxUnackedMessagesPerSubscription
    max_consumers: int = 0  # maxConsumersPerSubscription
    failover_switch_delay_s: float = 1.0  # activeConsumerFailoverDelayTimeMillis
    read_entries_min: int = 100  # dispatcherMinReadBatchSize; the size of the first read
    read_entries_max: int = 1_000  # dispatcherMaxReadBatchSize
    read_bytes_max: int = 4 << 20  # dispatcherMaxReadSizeBytes; Pulsar's is 5 MiB
    round_robin_entries_max: int = 20  # dispatcherMaxRoundRobinBatchSize
    look_ahead_per_consumer: int = 2_000  # keySharedLookAheadMsgInReplayThresholdPerConsumer
    look_ahead_per_subscription: int = 20_000  # …PerSubscription
    ring_points: int = 100  # subscriptionKeySharedConsistentHashingReplicaPoints
    skip_unreadable: bool = False  # autoSkipNonRecoverableData
    entry_filters: FilterSpec | None = None  # entryFilters
