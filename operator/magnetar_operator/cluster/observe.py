"""Observes a cluster: its objects in Kubernetes, and the ledgers as its brokers report them.

Objects are listed by kind and by the cluster's labels. The ledgers' state comes from the admin
REST, with a short deadline; if the brokers do not answer, the observation gives the reason.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from magnetar.documents.bookies import Drain, LedgerHealth
from magnetar_operator.admin.client import AdminClient, AdminClients, AdminError, Purpose
from magnetar_operator.clock import SYSTEM, Clock, utc
from magnetar_operator.cluster.manifests.names import BROKER, Cluster
from magnetar_operator.cluster.manifests.security import wanted_of
from magnetar_operator.cluster.observed import (
    Ledgers,
    Observed,
    Pod,
    claim_name,
    pod_of,
    present_admin_url,
    volume_of,
)
from magnetar_operator.kube.client import Forbidden, KubeClient
from magnetar_operator.kube.kinds import (
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
from magnetar_operator.security.issuer import SecretIssuer

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
MONITORS_FRESH_S: Final = 60.0
PREFIX: Final = "/admin/v2/magnetar"


def admin_of(clients: AdminClients, cluster: Cluster, brokers: Sequence[Pod]) -> AdminClient:
    """The client of the cluster's admin REST."""
    return clients.at(present_admin_url(cluster, brokers), Purpose.CLUSTERS, cluster.key)


class Observer:
    """Reads everything that the planner of clusters needs."""

    def __init__(self, kube: KubeClient, clients: AdminClients, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._kube = kube
        self._clients = clients
        self._issuer = SecretIssuer(kube, lambda: utc(clock))
        self._monitors = False
        self._monitors_until = float("-inf")

    async def observe(self, cluster: Cluster) -> Observed:
        """The cluster as it is now. Raises KubeError."""
        observed = Observed(has_service_monitors=await self._has_monitors())
        kinds = [*KINDS, *((SERVICE_MONITOR,) if observed.has_service_monitors else ())]
        lists = await asyncio.gather(
            *(self._kube.list(kind, cluster.namespace, labels=cluster.labels) for kind in kinds),
            self._kube.list(POD, cluster.namespace, labels=cluster.labels),
            self._kube.list(PVC, cluster.namespace, labels=cluster.labels),
        )
        for kind, objects in zip(kinds, lists, strict=False):
            observed.objects |= {(kind.kind, obj["metadata"]["name"]): obj for obj in objects}
        observed.pods = [pod_of(obj) for obj in lists[-2]]
        observed.claims = lists[-1]
        await self._add_namesakes(cluster, observed)
        await self._add_secrets(cluster, observed)
        observed.ledgers = await self._ledgers(cluster, observed.of(BROKER))
        await self._add_claims(cluster, observed)
        return observed

    async def _add_claims(self, cluster: Cluster, observed: Observed) -> None:
        """Reads claims of replaced volumes by name: a claim without our labels still exists."""
        for drain in observed.ledgers.drains:
            if volume_of(drain) and observed.claim(drain.bookie_id) is None:
                claim = await self._kube.find(PVC, claim_name(drain.bookie_id), cluster.namespace)
                if claim is not None:
                    observed.claims.append(claim)

    async def _add_namesakes(self, cluster: Cluster, observed: Observed) -> None:
        """Adds StatefulSets that have our names and lack our labels."""
        if (STATEFUL_SET.kind, cluster.object_name("bookie")) in observed.objects:
            return
        for component in ("bookie", "etcd"):
            name = cluster.object_name(component)
            stateful_set = await self._kube.find(STATEFUL_SET, name, cluster.namespace)
            if stateful_set is not None:
                observed.objects[STATEFUL_SET.kind, name] = stateful_set

    async def _add_secrets(self, cluster: Cluster, observed: Observed) -> None:
        wanted = wanted_of(cluster)
        if wanted is None:
            return
        try:
            observed.secrets = await self._issuer.read(wanted)
        except Forbidden as error:
            observed.secrets_unknown = error.message

    async def _has_monitors(self) -> bool:
        if self._clock.monotonic() >= self._monitors_until:
            self._monitors = await self._kube.serves(SERVICE_MONITOR)
            self._monitors_until = self._clock.monotonic() + MONITORS_FRESH_S
        return self._monitors

    async def _ledgers(self, cluster: Cluster, brokers: list[Pod]) -> Ledgers:
        if not any(pod.ready for pod in brokers) and cluster.spec.admin_url is None:
            return Ledgers(unknown="no broker is ready")
        try:
            async with asyncio.timeout(ADMIN_TIMEOUT_S):
                client = admin_of(self._clients, cluster, brokers)
                health: Any = await client.get(f"{PREFIX}/ledgers/health")
                drains: Any = await client.get(f"{PREFIX}/bookies/drains")
            return Ledgers(
                msgspec.convert(health, LedgerHealth),
                tuple(msgspec.convert(drains, list[Drain])),
            )
        except (AdminError, TimeoutError, msgspec.ValidationError) as error:
            return Ledgers(unknown=str(error) or "the brokers did not answer in time")
