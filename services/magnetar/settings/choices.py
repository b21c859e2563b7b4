"""The values of the settings that accept one of several words."""

from typing import Literal

PortTls = Literal["off", "optional", "required"]
TlsProtocol = Literal["TLSv1.2", "TLSv1.3"]
LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
QuotaAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
OffloadDriver = Literal["aws-s3", "S3", "google-cloud-storage", "azureblob", "filesystem"]
ReadPriority = Literal["tiered-storage-first", "bookkeeper-first"]
TopicType = Literal["non-partitioned", "partitioned"]
InactiveTopicMode = Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
EntryFilterName = Literal["properties", "expression"]
EntryMetadataField = Literal["timestamp", "index"]
SchemaCompatibility = Literal[
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
SplitAlgorithm = Literal[
    "range_equally_divide",
    "topic_count_equally_divide",
    "specified_positions_divide",
    "flow_or_qps_equally_divide",
]
RoleLog = Literal["NONE", "REDACTED", "hash:SHA256", "hash:MD5"]
PublicAlgorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"
]
AuthorizationProvider = Literal["pulsar"]
