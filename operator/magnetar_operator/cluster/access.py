"""Reads the operator's own credentials for MagnetarClusters from their Secrets, and caches them.

Each cluster is read at most once per FRESH_S. If a read fails, the last credentials stay in use;
without any, the request goes out without a token and the cluster's refusal is the error that
people see. Bound: one entry per cluster that resources refer to.
"""

import asyncio
import logging
from collections import defaultdict
from typing import Final

import msgspec

from magnetar.security.secret import Secret
from magnetar_operator.admin.access import OPEN, Access, ClusterKey
from magnetar_operator.clock import SYSTEM, Clock
from magnetar_operator.cluster.manifests import security
from magnetar_operator.cluster.manifests.names import BROKER, Cluster, cluster_of
from magnetar_operator.kube.client import KubeClient, KubeError
from magnetar_operator.kube.kinds import CLUSTER, SECRET
from magnetar_operator.security.stored import data_of
from magnetar_operator.security.wanted import TOKEN, TRUST
from magnetar_operator.settings import Settings

FRESH_S: Final = 20.0

log = logging.getLogger(__name__)


class ClusterAccess:
    """The credentials for all clusters."""

    def __init__(self, kube: KubeClient, settings: Settings, clock: Clock = SYSTEM) -> None:
        self._kube = kube
        self._settings = settings
        self._clock = clock
        self._cached: dict[ClusterKey, tuple[float, Access]] = {}
        self._locks: defaultdict[ClusterKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, key: ClusterKey) -> Access:
        """The credentials for a cluster (an `AccessSource`)."""
        async with self._locks[key]:
            fresh_until, access = self._cached.get(key, (float("-inf"), OPEN))
            if self._clock.monotonic() >= fresh_until:
                try:
                    access = await self._read(key)
                except (KubeError, msgspec.ValidationError) as error:
                    log.warning("credentials for %s/%s: %s", key.namespace, key.name, error)
                self._cached[key] = self._clock.monotonic() + FRESH_S, access
            return access

    async def _read(self, key: ClusterKey) -> Access:
        owner = await self._kube.find(CLUSTER, key.name, key.namespace)
        if owner is None:
            return OPEN
        return await self.read(cluster_of(owner, self._settings))

    async def read(self, cluster: Cluster) -> Access:
        """Reads the credentials for a cluster. Raises KubeError."""
        token, trust = b"", b""
        if cluster.authenticates:
            role = cluster.spec.auth.super_users.operator
            token = await self._field(cluster, security.token_secret(cluster, role), TOKEN)
        if cluster.has_tls:
            trust = await self._field(cluster, security.tls_secret(cluster, BROKER), TRUST)
        return Access(Secret(token), trust, only_tls=cluster.has_tls)

    async def _field(self, cluster: Cluster, secret: str, field: str) -> bytes:
        return data_of(await self._kube.find(SECRET, secret, cluster.namespace), field)
