"""The records of tenants, namespaces, clusters and partitioned topics in the metadata store.

    /tenants/{tenant}                                  adminRoles, allowedClusters
    /namespaces/{tenant}/{namespace}                   policies
    /clusters/{cluster}                                service URLs
    /partitioned-topics/{tenant}/{ns}/{domain}/{topic} partitions, properties

The records are JSON with Pulsar's field names, so REST returns them as stored. Every change is a
compare-and-swap or a transaction that checks its preconditions. Creating a namespace also writes
its tenant's record, so that a concurrent deletion of the tenant, which found no namespaces, fails.
Creating a topic checks its namespace, and creating a partition checks its topic (`deletion_mark`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from magnetar.broker.catalog.deletion_mark import (
    MarkedDeletion,
    Restored,
    refuse_marked,
    unchanged,
)
from magnetar.core.errors import Conflict, NotFound, PreconditionFailed
from magnetar.core.names import NamespaceName, TopicName, check_entity_name
from magnetar.managed_ledger.backlog_record import record_key
from magnetar.metadata.records import decode_document, encode
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    MetadataStore,
    Put,
    Record,
)

Document = dict[str, Any]

PARTITIONS_MAX: Final = 100_000
CAS_ATTEMPTS_MAX: Final = 16

TENANTS_PREFIX: Final = "/tenants/"
NAMESPACES_PREFIX: Final = "/namespaces/"
CLUSTERS_PREFIX: Final = "/clusters/"
PARTITIONED_PREFIX: Final = "/partitioned-topics/"


class FollowedNamespaces(Protocol):
    """The namespaces' records in memory, kept up to date by a watch."""

    def record(self, namespace: NamespaceName) -> Record | None:
        """Returns the namespace's record as last seen by this broker."""

    def seen(self, record: Record) -> None:
        """Notes a record that this broker has just read or written."""


class Resources:
    """Reads and changes the records. Raises NotFound, Conflict or PreconditionFailed."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # All creations write the record of their tenant: without a turn each, they would fail
        # one another's transaction more often than CAS_ATTEMPTS_MAX.
        self._creation = asyncio.Lock()
        self._followed: FollowedNamespaces | None = None

    def follow(self, namespaces: FollowedNamespaces) -> None:
        """Uses the records in memory for checks that every opening of a topic needs."""
        self._followed = namespaces

    async def tenants(self) -> list[str]:
        """Returns the names of all tenants, in order."""
        return list(await self._store.children(TENANTS_PREFIX))

    async def tenant(self, tenant: str) -> Document:
        """Returns the tenant's record."""
        return await self._get(TENANTS_PREFIX + tenant, "Tenant does not exist")

    async def create_tenant(self, tenant: str, info: Document) -> None:
        """Creates the tenant; raises Conflict if it exists."""
        check_entity_name(tenant, "tenant")
        await self._create(TENANTS_PREFIX + tenant, info, "Tenant already exist")

    async def update_tenant(self, tenant: str, info: Document) -> None:
        """Replaces the tenant's record."""
        await self._update(TENANTS_PREFIX + tenant, lambda _: info, "Tenant does not exist")

    async def delete_tenant(self, tenant: str) -> None:
        """Deletes the tenant; raises Conflict while it has namespaces."""
        for _ in range(CAS_ATTEMPTS_MAX):
            record = await self._store.get(TENANTS_PREFIX + tenant)
            if record is None:
                raise NotFound("Tenant doesn't exist")
            # Listed after the read: a namespace that is created later changes the revision.
            if await self.namespaces(tenant):
                raise Conflict("The tenant still has active namespaces")
            with contextlib.suppress(BadRevision):
                await self._store.delete(TENANTS_PREFIX + tenant, expected=record.revision)
                return
        raise Conflict(f"Tenant {tenant} is being changed by others; try again")

    async def namespaces(self, tenant: str) -> list[str]:
        """Returns the tenant's namespaces as `tenant/namespace`, in order."""
        names = await self._store.children(f"{NAMESPACES_PREFIX}{tenant}/")
        return [f"{tenant}/{name}" for name in names]

    async def namespace_exists(self, namespace: NamespaceName) -> bool:
        """Whether the namespace has a record."""
        return await self._store.get(f"{NAMESPACES_PREFIX}{namespace}") is not None

    async def policies(self, namespace: NamespaceName) -> Document:
        """Returns the namespace's policies."""
        return await self._get(f"{NAMESPACES_PREFIX}{namespace}", "Namespace does not exist")

    async def create_namespace(self, namespace: NamespaceName, policies: Document) -> None:
        """Creates the namespace; raises Conflict if it exists, NotFound without its tenant."""
        check_entity_name(namespace.local, "namespace")
        async with self._creation:
            await self._create_namespace(namespace, policies)

    async def _create_namespace(self, namespace: NamespaceName, policies: Document) -> None:
        key, value = f"{NAMESPACES_PREFIX}{namespace}", encode(policies)
        for _ in range(CAS_ATTEMPTS_MAX):
            tenant = await self._store.get(TENANTS_PREFIX + namespace.tenant)
            if tenant is None:
                raise NotFound("Tenant does not exist")
            try:
                # The tenant is written, not only checked: its deletion may already have listed.
                revision = await self._store.transact(
                    [
                        Put(key, value, expected=ABSENT),
                        Put(tenant.key, tenant.value, expected=tenant.revision),
                    ]
                )
            except BadRevision as error:
                if error.key == key:
                    raise Conflict("Namespace already exists") from error
                continue
            self._wrote(Record(key, value, revision))
            return
        raise Conflict(f"Tenant {namespace.tenant} is being changed by others; try again")

    async def namespace_check(self, namespace: NamespaceName, *, fresh: bool) -> Check:
        """Returns the check for a transaction that creates something in the namespace.

        Without `fresh`, the record in memory is used; if that is outdated, the transaction fails.
        Raises NotFound and BeingDeleted.
        """
        followed = self._followed
        record = None if fresh or followed is None else followed.record(namespace)
        if record is None:
            record = await self._store.get(f"{NAMESPACES_PREFIX}{namespace}")
            if record is None:
                raise NotFound("Namespace does not exist")
            self._wrote(record)
        refuse_marked(decode_document(record.key, record.value), f"Namespace {namespace}")
        return Check(record.key, record.revision)

    async def update_policies(
        self,
        namespace: NamespaceName,
        change: Callable[[Document], Document],
        *,
        under: Sequence[Check] = (),
    ) -> None:
        """Applies `change` to the policies by compare-and-swap, possibly repeatedly.

        Raises BeingDeleted, and BadRevision of a check in `under`.
        """

        def checked(document: Document) -> Document:
            refuse_marked(document, f"Namespace {namespace}")
            return change(document)

        key = f"{NAMESPACES_PREFIX}{namespace}"
        await self._update(key, checked, "Namespace does not exist", under)

    def namespace_deletion(
        self, namespace: NamespaceName, restored: Restored = unchanged
    ) -> MarkedDeletion:
        """Returns the deletion of the namespace's record, to run with that of its topics.

        `restored` as for `MarkedDeletion`.
        """
        return MarkedDeletion(
            self._store,
            f"{NAMESPACES_PREFIX}{namespace}",
            what=f"Namespace {namespace}",
            absent="Namespace does not exist",
            written=self._wrote,
            restored=restored,
        )

    async def forget_backlog(self, namespace: NamespaceName, under: Check) -> None:
        """Deletes the backlog job's record of the namespace. Raises BadRevision."""
        key = record_key(str(namespace))
        if await self._store.get(key) is not None:
            await self._store.transact([Delete(key), under])

    async def clusters(self) -> list[str]:
        """Returns the names of all clusters, in order."""
        return list(await self._store.children(CLUSTERS_PREFIX))

    async def cluster(self, cluster: str) -> Document:
        """Returns the cluster's record."""
        return await self._get(CLUSTERS_PREFIX + cluster, "Cluster does not exist")

    async def create_cluster(self, cluster: str, data: Document) -> None:
        """Creates the cluster's record; raises Conflict if it exists."""
        check_entity_name(cluster, "cluster")
        await self._create(CLUSTERS_PREFIX + cluster, data, "Cluster already exists")

    async def update_cluster(self, cluster: str, change: Callable[[Document], Document]) -> None:
        """Applies `change` to the cluster's record by compare-and-swap, possibly repeatedly."""
        await self._update(CLUSTERS_PREFIX + cluster, change, "Cluster does not exist")

    async def delete_cluster(self, cluster: str) -> None:
        """Deletes the cluster's record."""
        if not await self._store.delete(CLUSTERS_PREFIX + cluster):
            raise NotFound("Cluster does not exist")

    async def partitions(self, topic: TopicName) -> int:
        """Returns the partition count of a topic; 0 if it is not partitioned."""
        record = await self._store.get(partitioned_key(topic))
        return 0 if record is None else int(decode_document(record.key, record.value)["partitions"])

    async def partitions_check(self, topic: TopicName) -> tuple[int, Check]:
        """Returns the partition count, and the check for a transaction that creates a partition.

        Raises BeingDeleted.
        """
        key = partitioned_key(topic)
        record = await self._store.get(key)
        if record is None:
            return 0, Check(key, ABSENT)
        document = decode_document(record.key, record.value)
        refuse_marked(document, f"Partitioned topic {topic}")
        return int(document["partitions"]), Check(key, record.revision)

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: Document | None = None
    ) -> None:
        """Creates a partitioned topic's record; raises Conflict if it exists."""
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise PreconditionFailed("Number of partitions should be between 1 and 100000")
        key = partitioned_key(topic)
        value = encode({"partitions": partitions, "properties": properties or {}})
        for attempt in range(CAS_ATTEMPTS_MAX):
            namespace = await self.namespace_check(topic.namespace, fresh=attempt > 0)
            try:
                await self._store.transact([Put(key, value, expected=ABSENT), namespace])
            except BadRevision as error:
                if error.key == key:
                    raise Conflict("This topic already exists") from error
                continue
            return
        raise Conflict(f"Namespace {topic.namespace} is being changed by others; try again")

    async def grow_partitions(self, topic: TopicName, partitions: int) -> None:
        """Increases the partition count; raises PreconditionFailed if it is not higher."""

        def grow(document: Document) -> Document:
            refuse_marked(document, f"Partitioned topic {topic}")
            if partitions <= int(document["partitions"]):
                raise PreconditionFailed(
                    "Number of partitions should be greater than the existing number of partitions"
                )
            return {**document, "partitions": partitions}

        if partitions > PARTITIONS_MAX:
            raise PreconditionFailed("Number of partitions should be between 1 and 100000")
        await self._update(partitioned_key(topic), grow, f"Partitioned Topic {topic} not found")

    def partitioned_deletion(self, topic: TopicName, under: Check | None = None) -> MarkedDeletion:
        """Returns the deletion of the topic's record, to run with that of its partitions."""
        return MarkedDeletion(
            self._store,
            partitioned_key(topic),
            what=f"Partitioned topic {topic}",
            absent=f"Partitioned Topic not found: {topic}",
            written=lambda _: None,
            under=under,
        )

    async def partitioned_topics(self, namespace: NamespaceName, domain: str) -> list[TopicName]:
        """Returns the namespace's partitioned topics of a domain."""
        prefix = f"{PARTITIONED_PREFIX}{namespace}/{domain}/"
        names = await self._store.children(prefix)
        return [TopicName.from_encoded(domain, namespace, name) for name in names]

    async def partitioned_properties(self, topic: TopicName) -> dict[str, str]:
        """Returns the properties of a partitioned topic."""
        document = await self._get(partitioned_key(topic), f"Partitioned Topic not found: {topic}")
        properties: dict[str, str] = document.get("properties") or {}
        return properties

    async def update_partitioned_properties(
        self, topic: TopicName, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Applies `change` to the properties by compare-and-swap, possibly repeatedly."""

        def changed(document: Document) -> Document:
            refuse_marked(document, f"Partitioned topic {topic}")
            return {**document, "properties": change(document.get("properties") or {})}

        await self._update(partitioned_key(topic), changed, f"Partitioned Topic not found: {topic}")

    async def _get(self, key: str, absent: str) -> Document:
        record = await self._store.get(key)
        if record is None:
            raise NotFound(absent)
        return decode_document(record.key, record.value)

    async def _create(self, key: str, document: Document, exists: str) -> None:
        try:
            await self._store.put(key, encode(document), expected=ABSENT)
        except BadRevision as error:
            raise Conflict(exists) from error

    async def _update(
        self,
        key: str,
        change: Callable[[Document], Document],
        absent: str,
        under: Sequence[Check] = (),
    ) -> None:
        for _ in range(CAS_ATTEMPTS_MAX):
            record = await self._store.get(key)
            if record is None:
                raise NotFound(absent)
            changed = encode(change(decode_document(record.key, record.value)))
            try:
                revision = await self._store.transact(
                    [Put(key, changed, expected=record.revision), *under]
                )
            except BadRevision as error:
                if error.key != key:
                    raise
                continue
            if key.startswith(NAMESPACES_PREFIX):
                self._wrote(Record(key, changed, revision))
            return
        raise Conflict(f"{key} is being changed by others; try again")

    def _wrote(self, namespace: Record) -> None:
        """Notes a namespace's record that was just read or written."""
        if self._followed is not None:
            self._followed.seen(namespace)


def partitioned_key(topic: TopicName) -> str:
    """Returns the key of the record that makes a topic a partitioned one."""
    return f"{PARTITIONED_PREFIX}{topic.namespace}/{topic.domain}/{topic.encoded_local}"
