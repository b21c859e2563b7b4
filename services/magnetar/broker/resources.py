"""Tenants, namespaces, clusters and partitioned topics: what exists, kept in the metadata store.

    /tenants/{tenant}                                  adminRoles, allowedClusters
    /namespaces/{tenant}/{namespace}                   policies
    /clusters/{cluster}                                service URLs
    /partitioned-topics/{tenant}/{ns}/{domain}/{topic} partitions, properties

Documents are JSON with Pulsar's own field names, so that REST returns what is stored. Every change
is a compare-and-swap or a transaction that checks what it depends on: a namespace cannot be
created below a tenant that is being deleted, nor partitions shrink under two writers.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from magnetar.core.errors import Conflict, NotFound, PreconditionFailed
from magnetar.core.names import NamespaceName, TopicName, check_entity_name
from magnetar.managed_ledger.backlog_record import record_key
from magnetar.metadata.store import ABSENT, BadRevision, Check, MetadataStore, Put, Record

Document = dict[str, Any]

PARTITIONS_MAX: Final = 100_000
CAS_ATTEMPTS_MAX: Final = 16

_TENANTS: Final = "/tenants/"
_NAMESPACES: Final = "/namespaces/"
_CLUSTERS: Final = "/clusters/"
_PARTITIONED: Final = "/partitioned-topics/"


def _encode(document: Document) -> bytes:
    return msgspec.json.encode(document)


def _decode(data: bytes) -> Document:
    document: Document = msgspec.json.decode(data)
    return document


class FollowedNamespaces(Protocol):
    """The namespaces' records in memory, as a watch keeps them."""

    def record(self, namespace: NamespaceName) -> Record | None: ...

    def seen(self, record: Record) -> None:
        """Takes one that was just written."""


class Resources:
    """The named things of a cluster. Methods raise NotFound, Conflict or PreconditionFailed."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._followed: FollowedNamespaces | None = None

    def follow(self, namespaces: FollowedNamespaces) -> None:
        """Has what every topic asks when it is opened answered from memory."""
        self._followed = namespaces

    # -- tenants ---------------------------------------------------------------------------

    async def tenants(self) -> list[str]:
        return list(await self._store.children(_TENANTS))

    async def tenant(self, tenant: str) -> Document:
        return await self._get(_TENANTS + tenant, "Tenant does not exist")

    async def create_tenant(self, tenant: str, info: Document) -> None:
        check_entity_name(tenant, "tenant")
        await self._create(_TENANTS + tenant, info, "Tenant already exist")

    async def update_tenant(self, tenant: str, info: Document) -> None:
        await self._update(_TENANTS + tenant, lambda _: info, "Tenant does not exist")

    async def delete_tenant(self, tenant: str) -> None:
        """Refused while the tenant has namespaces."""
        record = await self._store.get(_TENANTS + tenant)
        if record is None:
            raise NotFound("Tenant doesn't exist")
        if await self.namespaces(tenant):
            raise Conflict("The tenant still has active namespaces")
        await self._store.delete(_TENANTS + tenant, expected=record.revision)

    # -- namespaces ------------------------------------------------------------------------

    async def namespaces(self, tenant: str) -> list[str]:
        """The tenant's namespaces as `tenant/namespace`, in order."""
        names = await self._store.children(f"{_NAMESPACES}{tenant}/")
        return [f"{tenant}/{name}" for name in names]

    async def namespace_exists(self, namespace: NamespaceName) -> bool:
        return await self._store.get(f"{_NAMESPACES}{namespace}") is not None

    async def policies(self, namespace: NamespaceName) -> Document:
        return await self._get(f"{_NAMESPACES}{namespace}", "Namespace does not exist")

    async def policies_known(self, namespace: NamespaceName) -> Document:
        """As `policies`; where namespaces are followed, as this broker was told last.

        For what is asked once a topic or a client: a read of the store for each would cost more
        than all the rest when very many come at once.
        """
        record = None if self._followed is None else self._followed.record(namespace)
        return await self.policies(namespace) if record is None else _decode(record.value)

    async def create_namespace(self, namespace: NamespaceName, policies: Document) -> None:
        check_entity_name(namespace.local, "namespace")
        tenant = await self._store.get(_TENANTS + namespace.tenant)
        if tenant is None:
            raise NotFound("Tenant does not exist")
        key = f"{_NAMESPACES}{namespace}"
        if await self._store.get(key) is not None:
            raise Conflict("Namespace already exists")
        try:
            revision = await self._store.transact(
                [
                    Check(_TENANTS + namespace.tenant, tenant.revision),
                    Put(key, _encode(policies), expected=ABSENT),
                ]
            )
        except BadRevision as error:
            raise Conflict("Namespace already exists") from error
        if self._followed is not None:
            self._followed.seen(Record(key, _encode(policies), revision))

    async def update_policies(
        self, namespace: NamespaceName, change: Callable[[Document], Document]
    ) -> None:
        """Applies `change` to the policies by compare-and-swap; it may run more than once."""
        await self._update(f"{_NAMESPACES}{namespace}", change, "Namespace does not exist")

    async def delete_namespace(self, namespace: NamespaceName) -> None:
        """The caller has made sure that the namespace holds no topics."""
        # What the backlog job left of it first: broken off between, the deletion is begun again.
        await self._store.delete(record_key(str(namespace)))
        if not await self._store.delete(f"{_NAMESPACES}{namespace}"):
            raise NotFound("Namespace does not exist")

    # -- clusters --------------------------------------------------------------------------

    async def clusters(self) -> list[str]:
        return list(await self._store.children(_CLUSTERS))

    async def cluster(self, cluster: str) -> Document:
        return await self._get(_CLUSTERS + cluster, "Cluster does not exist")

    async def create_cluster(self, cluster: str, data: Document) -> None:
        check_entity_name(cluster, "cluster")
        await self._create(_CLUSTERS + cluster, data, "Cluster already exists")

    async def update_cluster(self, cluster: str, data: Document) -> None:
        await self._update(_CLUSTERS + cluster, lambda _: data, "Cluster does not exist")

    async def delete_cluster(self, cluster: str) -> None:
        if not await self._store.delete(_CLUSTERS + cluster):
            raise NotFound("Cluster does not exist")

    # -- partitioned topics ----------------------------------------------------------------

    async def partitions(self, topic: TopicName) -> int:
        """Partitions of a partitioned topic; 0 where the topic is none."""
        record = await self._store.get(partitioned_key(topic))
        return 0 if record is None else int(_decode(record.value)["partitions"])

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: Document | None = None
    ) -> None:
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise PreconditionFailed("Number of partitions should be between 1 and 100000")
        document = {"partitions": partitions, "properties": properties or {}}
        await self._create(partitioned_key(topic), document, "This topic already exists")

    async def grow_partitions(self, topic: TopicName, partitions: int) -> None:
        def grow(document: Document) -> Document:
            if partitions <= int(document["partitions"]):
                raise PreconditionFailed(
                    "Number of partitions should be greater than the existing number of partitions"
                )
            return {**document, "partitions": partitions}

        if partitions > PARTITIONS_MAX:
            raise PreconditionFailed("Number of partitions should be between 1 and 100000")
        await self._update(partitioned_key(topic), grow, f"Partitioned Topic {topic} not found")

    async def delete_partitioned(self, topic: TopicName) -> None:
        if not await self._store.delete(partitioned_key(topic)):
            raise NotFound(f"Partitioned Topic not found: {topic}")

    async def partitioned_topics(self, namespace: NamespaceName, domain: str) -> list[TopicName]:
        prefix = f"{_PARTITIONED}{namespace}/{domain}/"
        names = await self._store.children(prefix)
        return [TopicName.from_encoded(domain, namespace, name) for name in names]

    async def partitioned_properties(self, topic: TopicName) -> dict[str, str]:
        document = await self._get(partitioned_key(topic), f"Partitioned Topic not found: {topic}")
        properties: dict[str, str] = document.get("properties") or {}
        return properties

    async def update_partitioned_properties(
        self, topic: TopicName, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        await self._update(
            partitioned_key(topic),
            lambda document: {**document, "properties": change(document.get("properties") or {})},
            f"Partitioned Topic not found: {topic}",
        )

    # -- documents -------------------------------------------------------------------------

    async def _get(self, key: str, absent: str) -> Document:
        record = await self._store.get(key)
        if record is None:
            raise NotFound(absent)
        return _decode(record.value)

    async def _create(self, key: str, document: Document, exists: str) -> None:
        try:
            await self._store.put(key, _encode(document), expected=ABSENT)
        except BadRevision as error:
            raise Conflict(exists) from error

    async def _update(self, key: str, change: Callable[[Document], Document], absent: str) -> None:
        for _ in range(CAS_ATTEMPTS_MAX):
            record = await self._store.get(key)
            if record is None:
                raise NotFound(absent)
            changed = _encode(change(_decode(record.value)))
            try:
                revision = await self._store.put(key, changed, expected=record.revision)
            except BadRevision:
                continue
            if self._followed is not None and key.startswith(_NAMESPACES):
                self._followed.seen(Record(key, changed, revision))
            return
        raise Conflict(f"{key} is being changed by others; try again")


def partitioned_key(topic: TopicName) -> str:
    """Of the record that makes a topic a partitioned one."""
    return f"{_PARTITIONED}{topic.namespace}/{topic.domain}/{topic.encoded_local}"
