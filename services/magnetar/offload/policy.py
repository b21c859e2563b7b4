"""Decides whether, when and where a topic is offloaded: topic over namespace over broker, by field.

Pure. Brokers pass what they have in memory; jobs read the same from metadata: the namespace's
document, the topic's own policies, and the defaults that brokers publish at `records.DEFAULTS_KEY`.
As in Pulsar, a namespace's older, single thresholds apply if its offload policies omit them, and a
threshold of -1 means: only on request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from magnetar.core.errors import MetadataError
from magnetar.core.names import NamespaceName, TopicName
from magnetar.offload.stores import FILESYSTEM, StoreSpec

DELETION_LAG_MS_DEFAULT: Final = 4 * 3_600_000
NEVER: Final = -1
TIERED_FIRST: Final = "tiered-storage-first"
BOOKKEEPER_FIRST: Final = "bookkeeper-first"
NAMESPACES_PREFIX: Final = "/namespaces/"
TOPIC_POLICIES_PREFIX: Final = "/topic-policies/"
OFFLOAD_POLICY: Final = "offload"
"""The name of the policy in the registry, and in a topic's record."""

_DRIVER: Final = "managedLedgerOffloadDriver"
_BUCKET: Final = "managedLedgerOffloadBucket"
_REGION: Final = "managedLedgerOffloadRegion"
_ENDPOINT: Final = "managedLedgerOffloadServiceEndpoint"
_BYTES: Final = "managedLedgerOffloadThresholdInBytes"
_SECONDS: Final = "managedLedgerOffloadThresholdInSeconds"
_LAG: Final = "managedLedgerOffloadDeletionLagInMillis"
_PRIORITY: Final = "managedLedgerOffloadedReadPriority"

Document = Mapping[str, Any]


class OffloadDefaults(msgspec.Struct, frozen=True, omit_defaults=True):
    """The brokers' settings as published for jobs."""

    driver: str = ""
    bucket: str = ""
    region: str = ""
    endpoint: str = ""
    prefix: str = ""
    folder: str = ""
    threshold_bytes: int = NEVER
    threshold_s: int = NEVER
    deletion_lag_ms: int = DELETION_LAG_MS_DEFAULT
    read_priority: str = TIERED_FIRST


NO_DEFAULTS: Final = OffloadDefaults()


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """The effective offload policies of a topic. `store` is None if no store is configured."""

    store: StoreSpec | None
    threshold_bytes: int
    """Bytes, in closed and open ledgers, that stay on bookies; -1: no limit."""
    threshold_s: int
    """The age at which a closed ledger is offloaded; -1: never by age."""
    deletion_lag_ms: int
    """How long bookies keep an offloaded ledger; -1: for ever."""
    read_priority: str

    @property
    def automatic(self) -> bool:
        """Whether ledgers are offloaded without a request."""
        return self.store is not None and (self.threshold_bytes >= 0 or self.threshold_s >= 0)

    @property
    def reads_cold_first(self) -> bool:
        return self.read_priority != BOOKKEEPER_FIRST


def effective(
    defaults: OffloadDefaults, namespace: Document | None, topic: Document | None
) -> OffloadPlan:
    """The effective policies. `namespace` is the namespace's policies document, `topic` the topic's
    own offload policies (see `topic_offload`)."""
    own = _namespace_policies(namespace or {})
    values = {key: value for key, value in own.items() if value is not None}
    values |= {key: value for key, value in (topic or {}).items() if value is not None}
    lag = values.get(_LAG)
    return OffloadPlan(
        store=_store(defaults, values),
        threshold_bytes=_number(values, _BYTES, defaults.threshold_bytes),
        threshold_s=_number(values, _SECONDS, defaults.threshold_s),
        deletion_lag_ms=defaults.deletion_lag_ms if lag is None else max(NEVER, int(lag)),
        read_priority=str(values.get(_PRIORITY) or defaults.read_priority)
        .lower()
        .replace("_", "-"),
    )


def _namespace_policies(document: Document) -> dict[str, Any]:
    """The namespace's offload policies, completed by its older thresholds."""
    values = dict(document.get("offload_policies") or {})
    for key, old, unset in (
        (_BYTES, "offload_threshold", NEVER),
        (_SECONDS, "offload_threshold_in_seconds", NEVER),
        (_LAG, "offload_deletion_lag_ms", None),
    ):
        if values.get(key) is None and document.get(old) not in (None, unset):
            values[key] = document[old]
    return values


def _number(values: Document, key: str, default: int) -> int:
    value = values.get(key)
    return max(NEVER, default if value is None else int(value))


def _store(defaults: OffloadDefaults, values: Document) -> StoreSpec | None:
    driver = str(values.get(_DRIVER) or defaults.driver)
    if not driver:
        return None
    bucket, region, endpoint = defaults.bucket, defaults.region, defaults.endpoint
    if driver == FILESYSTEM:
        # A folder has no endpoint, and the bucket of another driver is not its path.
        bucket, region, endpoint = defaults.folder, "", ""
    configured = {_BUCKET: bucket, _REGION: region, _ENDPOINT: endpoint}
    bucket, region, endpoint = (str(values.get(key) or value) for key, value in configured.items())
    return StoreSpec(driver, bucket, region, endpoint, defaults.prefix)


def namespace_key(name: str) -> str:
    """The key of the policies document of a managed ledger's namespace."""
    tenant, namespace, _ = name.split("/", 2)
    return f"{NAMESPACES_PREFIX}{tenant}/{namespace}"


def topic_policies_key(name: str) -> str:
    """The key of the topic's own policies; for a partition, those of its partitioned topic."""
    tenant, namespace, domain, encoded = name.split("/", 3)
    topic = TopicName.from_encoded(domain, NamespaceName(tenant, namespace), encoded).base
    return f"{TOPIC_POLICIES_PREFIX}{tenant}/{namespace}/{domain}/{topic.encoded_local}"


def topic_offload(key: str, value: bytes | None) -> dict[str, Any] | None:
    """The offload policies in a topic's own record. Raises MetadataError naming the key."""
    if value is None:
        return None
    document = _document(key, value)
    local = (document.get("local") or {}).get(OFFLOAD_POLICY)
    replicated = (document.get("global") or {}).get(OFFLOAD_POLICY)
    policies: dict[str, Any] | None = replicated if local is None else local
    return policies


def namespace_document(key: str, value: bytes | None) -> dict[str, Any]:
    """Decodes a policies document; empty without one. Raises MetadataError naming the key."""
    return {} if value is None else _document(key, value)


def decode_defaults(key: str, value: bytes | None) -> OffloadDefaults:
    """Decodes the defaults that brokers published; unset without any. Raises MetadataError."""
    if value is None:
        return NO_DEFAULTS
    try:
        return msgspec.json.decode(value, type=OffloadDefaults)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no offload defaults: {error}") from error


def _document(key: str, value: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise MetadataError(f"{key} holds no policies: {error}") from error
