"""Reads credentials for the admin REST from Secrets, and caches them.

A MagnetarCluster has the operator's own token and its authorities. A resource with `adminUrl` names
a Secret that its author or an administrator made.

Each is read at most once per FRESH_S. If a read fails, the last credentials stay in use. Without
any, a request to a MagnetarCluster goes out without a token, and the cluster's refusal is the error
that people see; a request to an address fails with the name of its Secret.
Bound: one entry per cluster and per Secret that resources refer to.
"""

import asyncio
import logging
from collections import defaultdict
from typing import Final

import msgspec

from magnetar.security.secret import Secret
from magnetar_operator.admin.access import OPEN, Access, AccessKey, SecretKey
from magnetar_operator.admin.client import Unreachable
from magnetar_operator.clock import SYSTEM, Clock
from magnetar_operator.cluster.manifests import security
from magnetar_operator.cluster.manifests.names import BROKER, Cluster, cluster_of
from magnetar_operator.kube.client import KubeClient, KubeError
from magnetar_operator.kube.kinds import CLUSTER, SECRET, Object
from magnetar_operator.security.stored import data_of
from magnetar_operator.security.wanted import TOKEN, TRUST
from magnetar_operator.settings import Settings

FRESH_S: Final = 20.0
ADDRESS: Final = "ADMIN_URL"
"""The field of a Secret that names the address which receives its token."""

log = logging.getLogger(__name__)


class ClusterAccess:
    """The credentials for all clusters and addresses."""

    def __init__(self, kube: KubeClient, settings: Settings, clock: Clock = SYSTEM) -> None:
        self._kube = kube
        self._settings = settings
        self._clock = clock
        self._cached: dict[AccessKey, tuple[float, Access]] = {}
        self._locks: defaultdict[AccessKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, key: AccessKey) -> Access:
        """The credentials for a cluster or an address (an `AccessSource`).

        Raises Unreachable if the Secret for an address cannot be used.
        """
        async with self._locks[key]:
            fresh_until, access = self._cached.get(key, (float("-inf"), OPEN))
            if self._clock.monotonic() >= fresh_until:
                try:
                    access = await self._read(key)
                except (KubeError, msgspec.ValidationError) as error:
                    if isinstance(key, SecretKey) and key not in self._cached:
                        raise Unreachable(
                            f"Secret {key.namespace}/{key.name} with the credentials for {key.url} "
                            f"cannot be read: {error}"
                        ) from error
                    log.warning("credentials for %s/%s: %s", key.namespace, key.name, error)
                self._cached[key] = self._clock.monotonic() + FRESH_S, access
            return access

    async def _read(self, key: AccessKey) -> Access:
        if isinstance(key, SecretKey):
            return access_in(await self._kube.find(SECRET, key.name, key.namespace), key)
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


def access_in(secret: Object | None, key: SecretKey) -> Access:
    """The credentials in the Secret of an address. Raises Unreachable if it has none for it.

    The Secret names the address that receives its token. Otherwise the author of a resource could
    have the operator send any token that it may read, such as its own, to any address.
    """
    name = f"Secret {key.namespace}/{key.name}"
    if secret is None:
        raise Unreachable(f"{name} with the credentials for {key.url} does not exist: create it")
    address = data_of(secret, ADDRESS).decode(errors="replace").strip().rstrip("/")
    if address != key.url:
        raise Unreachable(
            f"{name} is not for {key.url}: its field {ADDRESS} must be this address, and is "
            f"{address or 'absent'}"
        )
    only_tls = key.url.startswith("https://")
    return Access(Secret(data_of(secret, TOKEN)), data_of(secret, TRUST), only_tls)
