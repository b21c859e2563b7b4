"""Which logs the names of topics mean, as the metadata store has them.

    /partitioned-topics/{tenant}/{ns}/persistent/{topic}   partitions of a partitioned topic
    /managed-ledgers/{tenant}/{ns}/persistent/{topic}      a topic's, or one partition's, log

A partitioned topic means all its partitions, those without a message yet included. A pattern is
matched against whole names of topics, partitioned ones by the name without `-partition-N`.
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
    """What is read of a partitioned topic's record."""

    partitions: int


def log_name(topic: TopicName) -> str:
    """The managed ledger of a topic that is no partitioned one."""
    return f"{topic.namespace}/{DOMAIN}/{topic.encoded_local}"


async def logs_of(store: MetadataStore, topic: TopicName) -> list[TopicName]:
    """The topic itself, or its partitions; raises TopicNotFound, NotAllowed."""
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
        return [topic]  # a partition that nobody has written to
    raise TopicNotFound(f"topic {topic} does not exist")


async def matching(store: MetadataStore, pattern: str) -> list[TopicName]:
    """The logs that `topicsPattern` means, possibly none.

    A partition whose partitioned topic has no record is a topic of its own; what is deleted while
    this runs is passed over.
    """
    namespace, expression = _split_pattern(pattern)
    prefix = f"{namespace}/{DOMAIN}/"
    partitioned, logs = [
        {TopicName.from_encoded(DOMAIN, namespace, name) for name in await store.children(above)}
        for above in (f"{PARTITIONED_PREFIX}{prefix}", f"{MANAGED_LEDGERS_PREFIX}{prefix}")
    ]
    topics = partitioned | {topic for topic in logs if topic.base not in partitioned}
    found: dict[TopicName, None] = {}
    for topic in sorted(topics, key=lambda each: (each.base, each.partition_index)):
        if expression.fullmatch(topic.base.local):
            with suppress(TopicNotFound):
                found |= dict.fromkeys(await logs_of(store, topic))
    return list(found)


def _split_pattern(pattern: str) -> tuple[NamespaceName, re.Pattern[str]]:
    """`[persistent://]tenant/namespace/EXPRESSION`, or an expression in `public/default`."""
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
    """Every log that is meant, once each, in the order of names and partitions."""
    if pattern is not None:
        return await matching(store, pattern)
    found: dict[TopicName, None] = {}
    for name in topics:
        found |= dict.fromkeys(await logs_of(store, parse_topic(name)))
    return list(found)


def means(topics: tuple[str, ...], pattern: str | None, topic: TopicName) -> bool:
    """Whether names or a pattern mean this log, also if it does not exist."""
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
    """Every log that is meant, once each: the named ones, then those of namespaces, in order.

    Raises TopicNotFound for a name; of namespaces, what nobody has written to is passed over.
    """
    found = dict.fromkeys(await resolve(store, selection.topics, None))
    namespaces = dict.fromkeys(NamespaceName.parse(each) for each in selection.namespaces)
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
        found |= dict.fromkeys(logs)
    return list(found)


async def _children(store: MetadataStore, below: str) -> list[str]:
    """Tenants, or namespaces of one, that have logs."""
    return list(await store.children(f"{MANAGED_LEDGERS_PREFIX}{below}"))
