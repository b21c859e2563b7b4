"""A view of one cluster that many resources share: each list and analysis is read once.

One list of a namespace's topics answers whether any of a thousand topics exists. It is read again
when it is FRESH_S old. Objects that are created or deleted through this view enter or leave the
lists at once. A list is therefore at most FRESH_S behind the cluster: creating a topic that exists
is refused, reading a deleted one gives 404, and the next reconcile uses a new list. Deletions do
not rely on cached lists: they call `forget` first.

One caller reads a list while the others wait for it. Memory: the names in the namespaces that have
resources, and one analysis for each of them.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from magnetar.core.names import TopicName
from magnetar.documents.backlog import BacklogRecord
from magnetar_operator.admin.access import AccessKey
from magnetar_operator.admin.client import AdminClient, AdminClients, AdminError, NotFound, Purpose
from magnetar_operator.admin.target import ADMIN, NAMESPACE, TENANT, TOPIC, Target
from magnetar_operator.clock import SYSTEM, Clock

FRESH_S: Final = 10.0
SYSTEM_PREFIX: Final = "__"
"""The prefix of the names of the broker's own topics."""


@dataclass(slots=True)
class _List:
    names: set[str] | None
    """None: the tenant or namespace of the list does not exist."""
    fresh_until: float


class ClusterView:
    """A cached view of one cluster's tenants, namespaces and topics."""

    def __init__(
        self, client: AdminClient, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.client = client
        self.has_all_policies: bool | None = None
        """Whether the cluster returns all policies of a topic at once; None: not tried yet."""
        self.analyses = Analyses(client, monotonic)
        self._monotonic = monotonic
        self._lists: dict[str, _List] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def clusters(self) -> set[str]:
        """The names of the clusters that this cluster's metadata lists."""
        return await self._list(f"{ADMIN}/clusters") or set()

    async def tenants(self) -> set[str]:
        return await self._list(f"{ADMIN}/tenants") or set()

    async def namespaces(self, tenant: str) -> set[str] | None:
        """Full names; None if the tenant does not exist."""
        return await self._list(f"{ADMIN}/namespaces/{tenant}")

    async def topics(self, namespace: str, domain: str) -> set[str] | None:
        """Full names of topics and of single partitions; None if the namespace does not exist."""
        return await self._list(f"{ADMIN}/{domain}/{namespace}")

    async def partitioned(self, namespace: str, domain: str) -> set[str] | None:
        """Full names of partitioned topics."""
        return await self._list(f"{ADMIN}/{domain}/{namespace}/partitioned")

    async def exists(self, target: Target) -> bool:
        """Whether a tenant, namespace or topic exists."""
        if target.kind == TENANT:
            return target.name in await self.tenants()
        if target.kind == NAMESPACE:
            return target.name in (await self.namespaces(target.tenant) or ())
        name = target.topic
        if target.name in (await self.partitioned(target.namespace, name.domain) or ()):
            return True
        return target.name in (await self.topics(target.namespace, name.domain) or ())

    async def is_partitioned(self, name: TopicName) -> bool:
        return str(name) in (await self.partitioned(str(name.namespace), name.domain) or ())

    def exclusive(self, target: Target) -> asyncio.Lock:
        """The lock for changes of a document that several resources share."""
        return self._locks[f"changes of {target.permissions_path}"]

    def created(self, target: Target, partitions: int = 0) -> None:
        """Adds a created target to the lists."""
        for key in self._keys(target, partitions):
            if (cached := self._lists.get(key)) is not None and cached.names is not None:
                cached.names.add(target.name)
            elif cached is not None:
                del self._lists[key]

    def deleted(self, target: Target) -> None:
        """Removes a deleted target from the lists."""
        for key in (*self._keys(target, 0), *self._keys(target, 1)):
            if (cached := self._lists.get(key)) is not None and cached.names is not None:
                cached.names.discard(target.name)

    def forget(self, target: Target) -> None:
        """Drops the lists that name the target, and the lists of its contents."""
        for key in (*self._keys(target, 0), *self._keys(target, 1), *self._contents(target)):
            self._lists.pop(key, None)

    def _keys(self, target: Target, partitions: int) -> tuple[str, ...]:
        """The lists that name the target."""
        if target.kind == TENANT:
            return (f"{ADMIN}/tenants",)
        if target.kind == NAMESPACE:
            return (f"{ADMIN}/namespaces/{target.tenant}",)
        if target.kind == TOPIC:
            path = f"{ADMIN}/{target.topic.domain}/{target.namespace}"
            return (f"{path}/partitioned",) if partitions else (path,)
        return ()

    def _contents(self, target: Target) -> tuple[str, ...]:
        """The lists of the target's contents."""
        if target.kind == TENANT:
            return (f"{ADMIN}/namespaces/{target.name}",)
        if target.kind == NAMESPACE:
            paths = [
                f"{ADMIN}/{domain}/{target.name}" for domain in ("persistent", "non-persistent")
            ]
            return (*paths, *(f"{path}/partitioned" for path in paths))
        return ()

    async def _list(self, path: str) -> set[str] | None:
        async with self._locks[path]:
            cached = self._lists.get(path)
            if cached is None or self._monotonic() >= cached.fresh_until:
                cached = self._lists[path] = _List(await self._read(path), 0.0)
                cached.fresh_until = self._monotonic() + FRESH_S
            return cached.names

    async def _read(self, path: str) -> set[str] | None:
        try:
            return set(await self.client.get(path) or ())
        except NotFound:
            return None


async def inhabitants(view: ClusterView, namespace: str) -> list[str]:
    """The topics of a namespace, sorted: partitioned topics once, without the broker's own."""
    topics: set[str] = set()
    for domain in ("persistent", "non-persistent"):
        topics |= await view.partitioned(namespace, domain) or set()
        for name in await view.topics(namespace, domain) or ():
            topic = parse(name)
            if topic.partition_index < 0 or str(topic.base) not in topics:
                topics.add(name)
    return sorted(name for name in topics if not parse(name).local.startswith(SYSTEM_PREFIX))


def parse(name: str) -> TopicName:
    """Parses a full name from a list."""
    domain, _, rest = name.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return TopicName(domain, tenant, namespace, local)


class Clusters:
    """The views of all clusters, by the address of their admin REST."""

    def __init__(self, clients: AdminClients, clock: Clock = SYSTEM) -> None:
        self._clients = clients
        self._clock = clock
        self._views: dict[tuple[str, AccessKey | None], ClusterView] = {}

    def at(self, url: str, access_key: AccessKey | None = None) -> ClusterView:
        """The view of a cluster, with the credentials of `access_key`; created on first use."""
        key = (url.rstrip("/"), access_key)
        if key not in self._views:
            client = self._clients.at(url, Purpose.CATALOG, access_key)
            self._views[key] = ClusterView(client, self._clock.monotonic)
        return self._views[key]


ANALYSIS_FRESH_S: Final = 60.0
ANSWER_S_MAX: Final = 2.0
"""How long reconciles of a namespace wait for the answer, once per ANALYSIS_FRESH_S."""


class Analyses:
    """Caches the backlog job's last result for each namespace, read from the brokers.

    No reconcile fails because of it: if the cluster has no such route, or no analysis, there is no
    record. If no answer arrives within ANSWER_S_MAX, the last record stays; its reader checks its
    age.
    """

    def __init__(
        self, client: AdminClient, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._monotonic = monotonic
        self._records: dict[str, tuple[float, BacklogRecord | None]] = {}
        """The time until which each record is fresh, and the record."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, namespace: str) -> BacklogRecord | None:
        """The record of `tenant/namespace`; None if there is none."""
        async with self._locks[namespace]:
            cached = self._records.get(namespace)
            if cached is None or self._monotonic() >= cached[0]:
                try:
                    record = await self._request(namespace)
                except (AdminError, TimeoutError):
                    record = None if cached is None else cached[1]
                cached = self._records[namespace] = self._monotonic() + ANALYSIS_FRESH_S, record
            return cached[1]

    async def _request(self, namespace: str) -> BacklogRecord | None:
        """Reads a record; None if it does not exist or cannot be decoded."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                record = await self._client.get(f"{ADMIN}/magnetar/analytics/backlog/{namespace}")
            return msgspec.convert(record, BacklogRecord)
        except (NotFound, msgspec.ValidationError):
            return None
