"""Reads the policies of retention, TTL and compaction from records of namespaces and topics.

    /namespaces/{tenant}/{ns}                    `retention_policies`, `message_ttl_in_seconds`
    /topic-policies/{tenant}/{ns}/persistent/T   by the policies' names, `local` before `global`

A topic's policies override the namespace's, which override the brokers' defaults. Those come from a
broker (`--admin-url`), from flags, or are Pulsar's own (keep nothing, no TTL). A malformed policy
counts as keeping everything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import NamespaceName, TopicName
from magnetar.managed_ledger.settings import MIB, MINUTE_MS, Retention
from magnetar.metadata.store import MetadataStore
from magnetar.offload.policy import NAMESPACES_PREFIX, TOPIC_POLICIES_PREFIX
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD, MESSAGE_TTL, RETENTION

KEEPS_ALL: Final = Retention(-1, -1)
KEEPS_NOTHING: Final = Retention(0, 0)

_TIMES_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIMES_MS_WEEK: Final = 7 * _TIMES_MS["d"]
_SIZES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIME: Final = re.compile(r"(\d+)(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(r"(\d+)([KMGT]?)(?:i?B)?")


@dataclass(frozen=True, slots=True)
class Keeping:
    """The limits of a topic. A `ttl_s` of 0 means none, `compaction_bytes` of 0 only by request."""

    retention: Retention = KEEPS_NOTHING
    ttl_s: int = 0
    compaction_bytes: int = 0


class PolicyReader:
    """Reads topics' policies; reads each namespace's record only once."""

    def __init__(self, store: MetadataStore, default: Keeping) -> None:
        self._store = store
        self._default = default
        self._namespaces: dict[NamespaceName, Mapping[str, Any] | None] = {}

    async def of(self, topic: TopicName) -> Keeping:
        """The limits of a topic; for a partition, those of its partitioned topic."""
        base = topic.base
        if base.namespace not in self._namespaces:
            stored = await self._store.get(f"{NAMESPACES_PREFIX}{base.namespace}")
            self._namespaces[base.namespace] = _document(None if stored is None else stored.value)
        key = f"{TOPIC_POLICIES_PREFIX}{base.namespace}/{base.domain}/{base.encoded_local}"
        own = await self._store.get(key)
        return effective(
            self._default,
            self._namespaces[base.namespace],
            {} if own is None else _document(own.value),
        )


def _document(value: bytes | None) -> Mapping[str, Any] | None:
    """A policies document, empty without a record; None if it is malformed."""
    if value is None:
        return {}
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None


def effective(
    default: Keeping, namespace: Mapping[str, Any] | None, topic: Mapping[str, Any] | None
) -> Keeping:
    """The effective limits, topic over namespace over default. A document of None (malformed)
    keeps everything."""
    if namespace is None or topic is None:
        return Keeping(KEEPS_ALL, 0)
    local, replicated = topic.get("local") or {}, topic.get("global") or {}

    def value(name: str, document: str) -> Any:
        own = local.get(name)
        own = replicated.get(name) if own is None else own
        return namespace.get(document) if own is None else own

    retention = value(RETENTION.name, RETENTION.document)
    ttl = value(MESSAGE_TTL.name, MESSAGE_TTL.document)
    threshold = value(COMPACTION_THRESHOLD.name, COMPACTION_THRESHOLD.document)
    try:
        return Keeping(
            default.retention if retention is None else retention_of(retention),
            default.ttl_s if ttl is None else int(ttl),
            default.compaction_bytes if threshold is None else max(0, int(threshold)),
        )
    except (KeyError, TypeError, ValueError):
        return Keeping(KEEPS_ALL, 0)


def retention_of(value: Mapping[str, Any]) -> Retention:
    """The retention of a policy's value, which is in minutes and MiB."""
    minutes, size_mb = int(value["retentionTimeInMinutes"]), int(value["retentionSizeInMB"])
    return Retention(
        size_mb if size_mb < 0 else size_mb * MIB, minutes if minutes < 0 else minutes * MINUTE_MS
    )


def parse_time_ms(text: str) -> int:
    """Parses a time: `90s`, `5m`, `2h`, `1d`, `1w`; `0`; -1 and `forever` mean no limit."""
    if text in ("forever", "-1"):
        return -1
    if text == "0":
        return 0
    match = _TIME.fullmatch(text)
    if match is None:
        raise PreconditionFailed(f"time '{text}': write a number with ms, s, m, h, d or w")
    unit = _TIMES_MS_WEEK if match[2] == "w" else _TIMES_MS[match[2]]
    return int(match[1]) * unit


def parse_size(text: str) -> int:
    """Parses a size: `500M`, `10G`, `1T`; `0`; -1 and `any` mean no limit."""
    if text in ("any", "-1"):
        return -1
    match = _SIZE.fullmatch(text)
    if match is None:
        raise PreconditionFailed(f"size '{text}': write a number with K, M, G or T")
    return int(match[1]) * _SIZES[match[2]]


def parse_retention(text: str) -> Retention:
    """Parses a retention: `1d`, `10G`, `1d/10G` (the first limit reached), `0`, `forever`."""
    time, separator, size = text.partition("/")
    if separator:
        return Retention(parse_size(size), parse_time_ms(time))
    if text == "0":
        return Retention(0, 0)
    if text in ("forever", "-1"):
        return KEEPS_ALL
    if _TIME.fullmatch(text):
        return Retention(-1, parse_time_ms(text))
    if _SIZE.fullmatch(text):
        return Retention(parse_size(text), -1)
    raise PreconditionFailed(f"retention '{text}': write a time (1d), a size (10G), or 1d/10G")
