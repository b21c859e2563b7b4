"""Policies of lifecycle: how long messages, backlogs, subscriptions, topics and copies are kept.

Semantics follow Pulsar's cookbooks on retention and expiry, PIP-56, PIP-94 and broker.conf.
"""

from typing import Any, Final

from magnetar.policies.policy import Policy, Rest, Unset, Unsupported
from magnetar.policies.types import (
    INT64_MAX,
    Boolean,
    Choice,
    Field,
    Integer,
    MapOf,
    Number,
    Record,
    Rule,
    Text,
    Unit,
)


def _both_or_none(value: dict[str, Any]) -> bool:
    return bool((value["retentionTimeInMinutes"] == 0) == (value["retentionSizeInMB"] == 0))


RETENTION: Final = Policy(
    name="retention",
    manifest="retention",
    type=Record(
        (
            Field(
                "retentionTimeInMinutes",
                Integer(
                    Unit.MINUTES,
                    low=-1,
                    refusal="Invalid retention policy: time limit must be >= -1",
                ),
                "How long acknowledged messages are retained; -1: forever.",
                manifest="time",
            ),
            Field(
                "retentionSizeInMB",
                Integer(
                    Unit.MEBIBYTES,
                    low=-1,
                    high=INT64_MAX,
                    refusal="Invalid retention policy: size limit must be >= -1",
                ),
                "How many bytes of acknowledged messages are retained; -1: all.",
                manifest="size",
            ),
        ),
        rules=(
            Rule(
                "string(self.time).matches('^0[a-zA-Z]*$') == "
                "string(self.size).matches('^0[a-zA-Z]*$')",
                "Invalid retention policy: a limit of 0 keeps nothing, whatever the other is; set "
                "both to 0, or -1 where there is no limit",
                _both_or_none,
                "Invalid retention policy: Setting a single time or size limit to 0 is invalid "
                "when one of the limits has a non-zero value. Use the value of -1 instead of 0 to "
                "ignore a specific limit. To disable retention both limits must be set to 0.",
            ),
        ),
    ),
    default=None,
    text="Retains messages after every subscription has acknowledged them. Closed ledgers beyond "
    "either limit are deleted, the oldest first.",
    enforced_by="magnetar.broker.topic.persistent",
    broker_setting="retention_minutes, retention_size_mb",
    document="retention_policies",
    invalid="Invalid retention policy",
    invalid_status=400,
    namespace=Rest("retention"),
    topic=Rest("retention"),
    loses_data=True,
)

MESSAGE_TTL: Final = Policy(
    name="message_ttl",
    manifest="messageTTL",
    type=Integer(Unit.SECONDS),
    default=0,
    text="Messages older than this are acknowledged for every subscription; 0: never.",
    enforced_by="magnetar.broker.lifecycle.enforcement",
    broker_setting="message_ttl_s",
    document="message_ttl_in_seconds",
    invalid="Invalid value for message TTL",
    namespace=Rest("messageTTL", invalid="Invalid value for message TTL, message TTL must >= 0"),
    topic=Rest(
        "messageTTL",
        query="messageTTL",
        empty_removes=True,
        invalid="Invalid value for message TTL",
    ),
    loses_data=True,
)

QUOTA_ACTIONS: Final = Choice(
    {
        "producer_request_hold": "producers wait until the backlog is below the limit",
        "producer_exception": "producers are refused until the backlog is below the limit",
        "consumer_backlog_eviction": "the oldest messages of the backlog are skipped",
    }
)

BACKLOG_QUOTA: Final = Policy(
    name="backlog_quota",
    manifest="backlogQuota",
    type=MapOf(
        Choice(
            {
                "destination_storage": "the bytes of the largest backlog",
                "message_age": "the age of the oldest unacknowledged message",
            }
        ),
        Record(
            (
                Field(
                    "limitSize",
                    Integer(Unit.BYTES, low=-1, high=INT64_MAX),
                    "The largest backlog of a subscription; -1: no limit.",
                    default=-1,
                    manifest="size",
                    alias="limit",
                ),
                Field(
                    "limitTime",
                    Integer(Unit.SECONDS, low=-1),
                    "The greatest age of a backlog; -1: no limit.",
                    default=-1,
                    manifest="time",
                ),
                Field("policy", QUOTA_ACTIONS, "The action above the limit."),
            )
        ),
    ),
    default=None,
    text="Limits the backlogs of subscriptions by size or age.",
    enforced_by="magnetar.broker.lifecycle.enforcement",
    broker_setting="backlog_quota_bytes, backlog_quota_s, backlog_quota_action",
    document="backlog_quota_map",
    invalid="Set backlog quota failed because the data validation failed",
    invalid_status=400,
    namespace=Rest(
        "backlogQuotaMap",
        set_path="backlogQuota",
        remove_path="backlogQuota",
        keyed_by="backlogQuotaType",
        unset=Unset.VALUE,
    ),
    topic=Rest(
        "backlogQuotaMap",
        set_path="backlogQuota",
        remove_path="backlogQuota",
        keyed_by="backlogQuotaType",
        unset=Unset.VALUE,
    ),
    loses_data=True,
)

SUBSCRIPTION_EXPIRATION: Final = Policy(
    name="subscription_expiration",
    manifest="subscriptionExpirationTime",
    type=Integer(Unit.MINUTES),
    default=0,
    text="Subscriptions without a consumer for this long are deleted; 0: never.",
    enforced_by="magnetar.broker.lifecycle.upkeep",
    broker_setting="subscription_expiration_minutes",
    document="subscription_expiration_time_minutes",
    invalid="Invalid value for subscription expiration time",
    namespace=Rest(
        "subscriptionExpirationTime", invalid="Invalid value for subscription expiration time"
    ),
    topic=Rest(
        "subscriptionExpirationTime",
        query="subscriptionExpirationTime",
        empty_removes=True,
        invalid="Invalid value for subscription expiration time",
    ),
    loses_data=True,
)

INACTIVE_TOPICS: Final = Policy(
    name="inactive_topics",
    manifest="inactiveTopicPolicies",
    type=Record(
        (
            Field(
                "inactiveTopicDeleteMode",
                Choice(
                    {
                        "delete_when_no_subscriptions": "no subscription and no producer",
                        "delete_when_subscriptions_caught_up": "no backlog, producer or consumer",
                    }
                ),
                "When a topic counts as inactive.",
                manifest="deleteMode",
            ),
            Field(
                "maxInactiveDurationSeconds",
                Integer(Unit.SECONDS, low=1),
                "How long a topic must have been inactive before it is deleted.",
                manifest="maxInactiveDuration",
            ),
            Field("deleteWhileInactive", Boolean(), "Whether inactive topics are deleted."),
        )
    ),
    default=None,
    text="Deletes unused topics.",
    enforced_by="magnetar.broker.lifecycle.upkeep",
    broker_setting="delete_inactive_topics, delete_inactive_topics_mode, "
    "delete_inactive_topics_after_s",
    document="inactive_topic_policies",
    namespace=Rest("inactiveTopicPolicies"),
    topic=Rest("inactiveTopicPolicies"),
    loses_data=True,
)

PERSISTENCE: Final = Policy(
    name="persistence",
    manifest="persistence",
    type=Record(
        (
            Field("bookkeeperEnsemble", Integer(low=1, high=64), "Bookies of a ledger.",
                  manifest="ensembleSize"),
            Field("bookkeeperWriteQuorum", Integer(low=1, high=64), "Copies of an entry.",
                  manifest="writeQuorum"),
            Field("bookkeeperAckQuorum", Integer(low=1, high=64),
                  "Copies that must be on disk before a receipt is sent.", manifest="ackQuorum"),
            Field("managedLedgerMaxMarkDeleteRate", Number(low=-1.0),
                  "How often per second a cursor is stored at most; 0 or -1: the broker's default, "
                  "once a second.",
                  default=-1.0,
                  manifest="maxMarkDeleteRate"),
        ),
        rules=(
            Rule(
                "self.ensembleSize >= self.writeQuorum && self.writeQuorum >= self.ackQuorum",
                "Bookkeeper-Ensemble >= WriteQuorum >= AckQuorum must hold",
                lambda value: value["bookkeeperEnsemble"]
                >= value["bookkeeperWriteQuorum"]
                >= value["bookkeeperAckQuorum"],
                "Bookkeeper Ensemble ({bookkeeperEnsemble}) >= WriteQuorum "
                "({bookkeeperWriteQuorum}) >= AckQuorum ({bookkeeperAckQuorum})",
            ),
        ),
        refused=(
            ("managedLedgerStorageClassName", "there is one class of storage; leave it out"),
        ),
    ),
    default=None,
    text="How many copies new ledgers have, and how many a receipt requires.",
    enforced_by="magnetar.broker.topic.persistent",
    limitation=Unsupported(
        lambda value, _cluster: 0 < value["managedLedgerMaxMarkDeleteRate"] < 1,
        "a mark-delete rate below 1 (managedLedgerMaxMarkDeleteRate, in manifests "
        "maxMarkDeleteRate) is not supported: brokers store cursors once a second, and at once "
        "if a client waits for the receipt of an ack; leave it out or set 0, 1 or more",
        "self.?maxMarkDeleteRate.orValue(-1.0) <= 0.0 || self.maxMarkDeleteRate >= 1.0",
    ),
    broker_setting="ensemble_size, write_quorum, ack_quorum",
    document="persistence",
    invalid_status=400,
    namespace=Rest("persistence", empty_removes=False),
    topic=Rest("persistence", empty_removes=False),
)  # fmt: skip

COMPACTION_THRESHOLD: Final = Policy(
    name="compaction_threshold",
    manifest="compactionThreshold",
    type=Integer(Unit.BYTES, high=INT64_MAX),
    default=0,
    text="The size of messages not yet compacted at which a compaction starts; 0: on request only.",
    document="compaction_threshold",
    namespace=Rest(
        "compactionThreshold", set_verb="PUT", invalid="compactionThreshold must be 0 or more"
    ),
    topic=Rest("compactionThreshold", invalid="Invalid value for compactionThreshold"),
    enforced_by="magnetar.broker.cold.compaction",
)

OFFLOAD_DRIVERS: Final = Choice(
    {
        "aws-s3": "Amazon S3 and compatible stores",
        "S3": "the same",
        "s3": "the same",
        "google-cloud-storage": "Google Cloud Storage",
        "azureblob": "Azure Blob Storage",
        "filesystem": "a folder that all brokers and jobs can access",
    },
    refusal="The driver is not supported, support value: S3,aws-s3,google-cloud-storage,"
    "filesystem,azureblob",
)

OFFLOAD: Final = Policy(
    name="offload",
    manifest="offloadPolicies",
    type=Record(
        (
            Field("managedLedgerOffloadDriver", OFFLOAD_DRIVERS, "The kind of store.",
                  default=None, manifest="driver"),
            Field("managedLedgerOffloadBucket", Text(), "The bucket.", default=None,
                  manifest="bucket"),
            Field("managedLedgerOffloadRegion", Text(), "Its region.", default=None,
                  manifest="region"),
            Field("managedLedgerOffloadServiceEndpoint", Text(), "The store's address.",
                  default=None, manifest="endpoint"),
            Field("managedLedgerOffloadThresholdInBytes", Integer(Unit.BYTES, -1, INT64_MAX),
                  "Ledgers beyond this size of a topic are moved; -1: on request only.",
                  default=None,
                  manifest="threshold"),
            Field("managedLedgerOffloadThresholdInSeconds", Integer(Unit.SECONDS, -1, INT64_MAX),
                  "Ledgers older than this are moved; -1: on request only.", default=None,
                  manifest="thresholdAge"),
            Field("managedLedgerOffloadDeletionLagInMillis",
                  Integer(Unit.MILLISECONDS, -1, INT64_MAX),
                  "How long bookies keep a ledger after it was moved.", default=None,
                  manifest="deletionLag"),
            Field("managedLedgerOffloadedReadPriority",
                  Choice(
                      {"tiered-storage-first": "the moved copy", "bookkeeper-first": "bookies"},
                      {
                          "tiered-storage-first": "TIERED_STORAGE_FIRST",
                          "bookkeeper-first": "BOOKKEEPER_FIRST",
                      },
                  ),
                  "Which copy is read while both exist.", default=None, manifest="readPriority"),
        )
    ),
    default=None,
    text="Moves closed ledgers to object storage.",
    enforced_by="magnetar.offload.policy",
    document="offload_policies",
    namespace=Rest("offloadPolicies", remove_path="removeOffloadPolicies", empty_removes=False),
    topic=Rest("offloadPolicies", empty_removes=False),
)  # fmt: skip

OFFLOAD_THRESHOLD: Final = Policy(
    name="offload_threshold",
    manifest="offloadThreshold",
    type=Integer(Unit.BYTES, -1, INT64_MAX),
    default=-1,
    text="Ledgers beyond this size of a topic are moved to object storage; -1: on request only.",
    enforced_by="magnetar.offload.policy",
    document="offload_threshold",
    undefined=-1,
    namespace=Rest("offloadThreshold", set_verb="PUT", unset=Unset.VALUE),
)

OFFLOAD_THRESHOLD_AGE: Final = Policy(
    name="offload_threshold_age",
    manifest="offloadThresholdAge",
    type=Integer(Unit.SECONDS, -1, INT64_MAX),
    default=-1,
    text="Ledgers older than this are moved to object storage; -1: on request only.",
    enforced_by="magnetar.offload.policy",
    document="offload_threshold_in_seconds",
    undefined=-1,
    namespace=Rest("offloadThresholdInSeconds", set_verb="PUT", unset=Unset.VALUE, done=200),
)

OFFLOAD_DELETION_LAG: Final = Policy(
    name="offload_deletion_lag",
    manifest="offloadDeletionLag",
    type=Integer(Unit.MILLISECONDS, -1, INT64_MAX),
    default=None,
    text="How long bookies keep a ledger after it was moved to object storage; -1: forever.",
    enforced_by="magnetar.offload.policy",
    document="offload_deletion_lag_ms",
    namespace=Rest("offloadDeletionLagMs", set_verb="PUT"),
)

LIFECYCLE: Final = (
    RETENTION, MESSAGE_TTL, BACKLOG_QUOTA, SUBSCRIPTION_EXPIRATION, INACTIVE_TOPICS, PERSISTENCE,
    COMPACTION_THRESHOLD, OFFLOAD, OFFLOAD_THRESHOLD, OFFLOAD_THRESHOLD_AGE, OFFLOAD_DELETION_LAG,
)  # fmt: skip
