"""`python -m magnetar_operator.security.job`: issues the Secrets of a cluster without the operator.

The chart runs it before an install or upgrade, and by schedule. It plans and issues what the
operator would, until nothing is left to do now; a rotation continues with the next run. Several
runs at once are safe: a Secret that another one wrote is read again.

The environment has MAGNETAR_SECRETS_CLUSTER, …_NAMESPACE, …_DOMAIN and …_SPEC (`spec` of a
MagnetarCluster, JSON). Exits with 1 and the reason if something cannot be issued.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Final

from magnetar_operator.clock import SYSTEM, Clock, utc
from magnetar_operator.cluster.manifests import security
from magnetar_operator.cluster.manifests.names import ETCD, Cluster
from magnetar_operator.kube.client import Conflict, KubeClient, KubeError
from magnetar_operator.kube.kinds import STATEFUL_SET, Object
from magnetar_operator.models.cluster import ClusterSpec
from magnetar_operator.security.issue import trust_of
from magnetar_operator.security.issuer import SecretIssuer
from magnetar_operator.security.plan import Issuance, plan
from magnetar_operator.security.stored import data_of
from magnetar_operator.security.wanted import TRUST

ROUNDS_MAX: Final = 20
"""Rounds of planning and issuing; an authority, its certificates, a key and tokens need three."""

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"

log = logging.getLogger("magnetar.secrets")


class SecretsJob:
    """Issues everything for one cluster."""

    def __init__(self, kube: KubeClient, cluster: Cluster, clock: Clock = SYSTEM) -> None:
        self._kube = kube
        self._cluster = cluster
        self._clock = clock
        self._issuer = SecretIssuer(kube, lambda: utc(clock))

    async def run(self) -> Issuance:
        """Issues the due secrets; returns the last plan. Raises KubeError."""
        wanted = security.wanted_of(self._cluster)
        if wanted is None:
            return Issuance()
        issuance = Issuance()
        for _ in range(ROUNDS_MAX):
            secrets = await self._issuer.read(wanted)
            deployed = await self._deploy_trust(
                trust_of(wanted, secrets),
                data_of(secrets.get(security.tls_secret(self._cluster, ETCD)), TRUST),
            )
            issuance = plan(wanted, secrets, utc(self._clock), deployed=deployed)
            if not issuance.actions:
                return issuance
            for action in issuance.actions:
                try:
                    await self._issuer.carry_out(action, wanted, secrets)
                except Conflict:
                    break  # another run wrote it: plan again from what it wrote
                log.info("Secret %s: %s", action.secret, action.text)
        return issuance

    async def _deploy_trust(self, bundle: bytes, mounted: bytes) -> bool:
        """Publishes the trusted authorities; returns whether etcd was started with them.

        `mounted` are those in the Secret that etcd mounts: it must not restart before its Secret
        has the new ones.
        """
        cluster = self._cluster
        if not bundle:
            return True
        await self._kube.apply(security.trust_config_map(cluster, bundle))
        if not cluster.etcd_has_tls:
            return True
        name = cluster.object_name(ETCD)
        stored = await self._kube.find(STATEFUL_SET, name, cluster.namespace)
        if stored is None:
            return True  # it starts with the present ones
        trust = security.digest_of_trust(mounted)
        before = _annotation(stored)
        if not before and bundle.count(_CERTIFICATE) == 1:
            return True  # the first authority, with which it was created
        if before != trust:
            annotations = {"metadata": {"annotations": {security.TRUST_DIGEST: trust}}}
            body = {"spec": {"template": annotations}}
            await self._kube.merge(STATEFUL_SET, cluster.namespace, name, body)
            log.info("StatefulSet %s: its members restart, to trust other authorities", name)
            return False
        return trust == security.digest_of_trust(bundle) and _is_rolled_out(stored)


def _annotation(stateful_set: Object) -> str:
    metadata = stateful_set["spec"]["template"].get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(security.TRUST_DIGEST) or "")


def _is_rolled_out(stateful_set: Object) -> bool:
    """Whether all pods of the StatefulSet have its newest template, and are ready."""
    status, replicas = stateful_set.get("status") or {}, stateful_set["spec"].get("replicas", 1)
    is_observed = status.get("observedGeneration") == stateful_set["metadata"].get("generation")
    counts = (status.get("updatedReplicas", 0), status.get("readyReplicas", 0))
    return is_observed and counts == (replicas, replicas)


def cluster_in(environ: Mapping[str, str]) -> Cluster:
    """The cluster that the environment describes. Raises KeyError and ValueError."""
    return Cluster(
        name=environ["MAGNETAR_SECRETS_CLUSTER"],
        namespace=environ["MAGNETAR_SECRETS_NAMESPACE"],
        uid="",
        spec=ClusterSpec.parse(json.loads(environ["MAGNETAR_SECRETS_SPEC"])),
        image="",
        etcd_image="",
        domain=environ.get("MAGNETAR_SECRETS_DOMAIN", ""),
    )


async def main(environ: Mapping[str, str] = os.environ) -> int:
    """Runs once; returns the exit code."""
    kube = KubeClient.connect()
    try:
        issuance = await SecretsJob(kube, cluster_in(environ)).run()
    except KubeError as error:
        log.error("%s", error)
        return 1
    finally:
        await kube.close()
    for problem in issuance.problems:
        log.error("%s", problem)
    for text in issuance.rotating:
        log.info("%s", text)
    return int(bool(issuance.problems or issuance.actions))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.exit(asyncio.run(main()))
