"""Reads what there is of a cluster: the only part that asks, beside `act`.

Kubernetes is asked by kind and the cluster's labels; the brokers by their admin REST, with a short
deadline: where they do not answer, that is what is observed. Clients of the admin REST are kept by
address, CLIENTS_MAX at most, the oldest closed first.
"""

import asyncio
from collections import OrderedDict
from typing import Any, Final

import msgspec

from magnetar_operator.api_kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    HPA,
    NETWORK_POLICY,
    PDB,
    POD,
    PVC,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVICE_MONITOR,
    STATEFUL_SET,
)
from magnetar_operator.clock import SYSTEM, Clock
from magnetar_operator.cluster.manifests.naming import BROKER, Cluster
from magnetar_operator.cluster.observed import (
    Drain,
    LedgerHealth,
    Ledgers,
    Observed,
    Pod,
    claim_name,
    pod_of,
    volume_of,
)
from magnetar_operator.kube import KubeClient
from magnetar_operator.resources.admin_client import AdminClient, AdminError

KINDS: Final = (
    STATEFUL_SET,
    DEPLOYMENT,
    SERVICE,
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    PDB,
    HPA,
    NETWORK_POLICY,
)
ADMIN_TIMEOUT_S: Final = 15.0
CLIENTS_MAX: Final = 64
MONITORS_KNOWN_S: Final = 60.0
PREFIX: Final = "/admin/v2/magnetar"


class Admins:
    """See the module's text. `close` it."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._clients: OrderedDict[str, AdminClient] = OrderedDict()

    async def of(self, cluster: Cluster) -> AdminClient:
        """The client for the cluster's brokers."""
        url = cluster.admin_url
        client = self._clients.get(url)
        if client is None:
            client = self._clients[url] = AdminClient(url, self._clock.monotonic)
        self._clients.move_to_end(url)
        while len(self._clients) > CLIENTS_MAX:
            _, oldest = self._clients.popitem(last=False)
            await oldest.close()
        return client

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        self._clients.clear()


class Observer:
    """See the module's text."""

    def __init__(self, kube: KubeClient, admins: Admins, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._kube = kube
        self._admins = admins
        self._monitors = False
        self._monitors_until = float("-inf")

    async def observe(self, cluster: Cluster) -> Observed:
        """As of now; raises KubeError."""
        found = Observed(has_service_monitors=await self._has_monitors())
        kinds = [*KINDS, *((SERVICE_MONITOR,) if found.has_service_monitors else ())]
        lists = await asyncio.gather(
            *(self._kube.list(kind, cluster.namespace, labels=cluster.labels) for kind in kinds),
            self._kube.list(POD, cluster.namespace, labels=cluster.labels),
            self._kube.list(PVC, cluster.namespace, labels=cluster.labels),
        )
        for kind, objects in zip(kinds, lists, strict=False):
            found.objects |= {(kind.kind, one["metadata"]["name"]): one for one in objects}
        found.pods = [pod_of(one) for one in lists[-2]]
        found.claims = lists[-1]
        await self._add_namesakes(cluster, found)
        found.ledgers = await self._ledgers(cluster, found.of(BROKER))
        await self._add_claims(cluster, found)
        return found

    async def _add_claims(self, cluster: Cluster, found: Observed) -> None:
        """That a volume which was to go is gone is believed of its name, not of our labels."""
        for drain in found.ledgers.drains:
            if volume_of(drain) and found.claim(drain.bookie_id) is None:
                one = await self._kube.find(PVC, claim_name(drain.bookie_id), cluster.namespace)
                if one is not None:
                    found.claims.append(one)

    async def _add_namesakes(self, cluster: Cluster, found: Observed) -> None:
        """Objects of our names that lack our labels: somebody took those away, or made them."""
        if (STATEFUL_SET.kind, cluster.object_name("bookie")) in found.objects:
            return
        for component in ("bookie", "etcd"):
            name = cluster.object_name(component)
            one = await self._kube.find(STATEFUL_SET, name, cluster.namespace)
            if one is not None:
                found.objects[STATEFUL_SET.kind, name] = one

    async def _has_monitors(self) -> bool:
        if self._clock.monotonic() >= self._monitors_until:
            self._monitors = await self._kube.serves(SERVICE_MONITOR)
            self._monitors_until = self._clock.monotonic() + MONITORS_KNOWN_S
        return self._monitors

    async def _ledgers(self, cluster: Cluster, brokers: list[Pod]) -> Ledgers:
        if not any(one.ready for one in brokers) and cluster.spec.admin_url is None:
            return Ledgers(unknown="no broker is ready")
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                client = await self._admins.of(cluster)
                health: Any = await client.get(f"{PREFIX}/ledgers/health")
                drains: Any = await client.get(f"{PREFIX}/bookies/drains")
            return Ledgers(
                msgspec.convert(health, LedgerHealth),
                tuple(msgspec.convert(drains, list[Drain])),
            )
        except (AdminError, TimeoutError, msgspec.ValidationError) as error:
            return Ledgers(unknown=str(error) or "the brokers did not answer in time")
