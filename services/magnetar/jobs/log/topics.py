"""Resolves names and patterns of topics to logs, from the metadata store.

    /partitioned-topics/{tenant}/{ns}/persistent/{topic}   partitions of a partitioned topic
    /managed-ledgers/{tenant}/{ns}/persistent/{topic}      the log of a topic or a partition

A partitioned topic resolves to all its partitions, including those without a message. A pattern is
matched against whole topic names, for partitions against the name without `-partition-N`.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from magnetar.core.errors import NotAllowed, PreconditionFailed, TopicNotFound
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX, managed_ledger_key
from magnetar.metadata.store import MetadataStore

PARTITIONED_PREFIX: Final = "/partitioned-topics/"
DOMAIN: Final = "persistent"


class _Partitioned(msgspec.Struct, frozen=True):
    """The part of a partitioned topic's record that is read."""

    partitions: int


def log_name(topic: TopicName) -> str:
    """The managed ledger of a topic or partition."""
    return f"{topic.namespace}/{DOMAIN}/{topic.encoded_local}"


async def logs_of(store: MetadataStore, topic: TopicName) -> list[TopicName]:
    """The topic itself, or its partitions. Raises TopicNotFound, NotAllowed."""
    if not topic.persistent:
        raise NotAllowed(f"{topic} keeps no log: a non-persistent topic cannot be read by Spark")
    key = f"{PARTITIONED_PREFIX}{topic.namespace}/{DOMAIN}/{topic.encoded_local}"
    record = await store.get(key)
    if record is not None:
        count = msgspec.json.decode(record.value, type=_Partitioned).partitions
        return [topic.partition(index) for index in range(count)]
    if await store.get(managed_ledger_key(log_name(topic))) is not None:
        return [topic]
    base = topic.base
    if base != topic and topic in await logs_of(store, base):
        return [topic]  # a partition without a message
    raise TopicNotFound(f"topic {topic} does not exist")


async def matching(store: MetadataStore, pattern: str) -> list[TopicName]:
    """The logs that match `topicsPattern`, possibly none.

    A partition whose partitioned topic has no record counts as a topic. Topics that are deleted
    meanwhile are skipped.
    """
    namespace, expression = _split_pattern(pattern)
    prefix = f"{namespace}/{DOMAIN}/"
    partitioned, logs = [
        {TopicName.from_encoded(DOMAIN, namespace, name) for name in await store.children(above)}
        for above in (f"{PARTITIONED_PREFIX}{prefix}", f"{MANAGED_LEDGERS_PREFIX}{prefix}")
    ]
    topics = partitioned | {topic for topic in logs if topic.base not in partitioned}
    logs_found: dict[TopicName, None] = {}
    for topic in sorted(topics, key=lambda topic: (topic.base, topic.partition_index)):
        if expression.fullmatch(topic.base.local):
            with suppress(TopicNotFound):
                logs_found |= dict.fromkeys(await logs_of(store, topic))
    return list(logs_found)


def _split_pattern(pattern: str) -> tuple[NamespaceName, re.Pattern[str]]:
    """Splits `[persistent://]tenant/namespace/EXPRESSION`, or an expression in `public/default`."""
    rest = pattern.removeprefix(f"{DOMAIN}://")
    if rest == pattern and pattern.count("/") < 2:
        namespace, expression = NamespaceName("public", "default"), pattern
    else:
        tenant, _, rest = rest.partition("/")
        local, _, expression = rest.partition("/")
        namespace = NamespaceName.parse(f"{tenant}/{local}")
    try:
        return namespace, re.compile(expression)
    except re.error as error:
        raise PreconditionFailed(f"topicsPattern '{pattern}' is no expression: {error}") from error


async def resolve(
    store: MetadataStore, topics: tuple[str, ...], pattern: str | None
) -> list[TopicName]:
    """The logs of these names, or of the pattern, without duplicates, by name and partition."""
    if pattern is not None:
        return await matching(store, pattern)
    logs: dict[TopicName, None] = {}
    for name in topics:
        logs |= dict.fromkeys(await logs_of(store, parse_topic(name)))
    return list(logs)


def means(topics: tuple[str, ...], pattern: str | None, topic: TopicName) -> bool:
    """Whether the names or the pattern select this log, even if it does not exist."""
    if pattern is not None:
        namespace, expression = _split_pattern(pattern)
        return topic.namespace == namespace and bool(expression.fullmatch(topic.base.local))
    named = [parse_topic(name) for name in topics]
    return topic in named or topic.base in named


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics by name, by namespace (`tenant/ns`), by tenant, or all of the cluster."""

    topics: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    everything: bool = False


async def selected(store: MetadataStore, selection: Selection) -> list[TopicName]:
    """The logs of a selection without duplicates: named topics, then those of namespaces, in order.

    Raises TopicNotFound for a named topic. In namespaces, partitions without a message are skipped.
    """
    selected_logs = dict.fromkeys(await resolve(store, selection.topics, None))
    namespaces = dict.fromkeys(NamespaceName.parse(name) for name in selection.namespaces)
    tenants = selection.tenants
    if selection.everything:
        tenants = tuple(await _children(store, ""))
    for tenant in tenants:
        local = await _children(store, f"{tenant}/")
        namespaces |= dict.fromkeys(NamespaceName(tenant, name) for name in local)
    for namespace in namespaces:
        names = await store.children(f"{MANAGED_LEDGERS_PREFIX}{namespace}/{DOMAIN}/")
        logs = [TopicName.from_encoded(DOMAIN, namespace, name) for name in names]
        logs.sort(key=lambda topic: (topic.base, topic.partition_index))
        selected_logs |= dict.fromkeys(logs)
    return list(selected_logs)


async def _children(store: MetadataStore, below: str) -> list[str]:
    """The tenants, or the namespaces of one tenant, that have logs."""
    return list(await store.children(f"{MANAGED_LEDGERS_PREFIX}{below}"))
