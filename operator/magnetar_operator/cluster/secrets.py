"""Plans and describes the Secrets of a cluster as part of the cluster's plan. Pure: no IO."""

import datetime
from typing import Final

from magnetar_operator.cluster import rollout
from magnetar_operator.cluster.manifests import security
from magnetar_operator.cluster.manifests.names import ETCD, Cluster
from magnetar_operator.cluster.observed import Observed
from magnetar_operator.engine.status import Condition
from magnetar_operator.kube.kinds import STATEFUL_SET
from magnetar_operator.security.issue import trust_of
from magnetar_operator.security.plan import Issuance
from magnetar_operator.security.plan import plan as plan_issuance
from magnetar_operator.security.stored import data_of
from magnetar_operator.security.wanted import TRUST

REPLAN_S: Final = 1.0
"""Until the next step after Secrets were issued: the authority comes before its certificates."""


def decide(
    cluster: Cluster, observed: Observed, etcd: rollout.Rollout, now: datetime.datetime
) -> Issuance:
    """Returns the credentials to issue for the cluster now."""
    wanted = security.wanted_of(cluster)
    if wanted is None:
        return Issuance()
    if observed.secrets_unknown:
        names = ", ".join(wanted.secrets)
        text = (
            f"Secrets cannot be read: {observed.secrets_unknown}. The operator needs the verbs get "
            f"and update on the Secrets {names} of namespace {cluster.namespace}, and create on "
            "Secrets (chart: operator.securedClusters)"
        )
        return Issuance(problems=(text,))
    deployed = is_trust_deployed(cluster, observed, etcd)
    return plan_issuance(wanted, observed.secrets, now, deployed=deployed)


def trust_bundle(cluster: Cluster, observed: Observed) -> bytes:
    """The authorities that are trusted now; empty if the operator issues none."""
    wanted = security.wanted_of(cluster)
    return b"" if wanted is None else trust_of(wanted, observed.secrets)


def trust_digest(cluster: Cluster, observed: Observed) -> str:
    """A digest of the authorities in the Secret that etcd mounts; empty: there is none yet.

    Not of the authority's own: etcd must not restart before its Secret has them.
    """
    mounted = observed.secrets.get(security.tls_secret(cluster, ETCD))
    return security.digest_of_trust(data_of(mounted, TRUST))


def is_trust_deployed(cluster: Cluster, observed: Observed, etcd: rollout.Rollout) -> bool:
    """Whether every member of etcd was started with the present authorities."""
    if not cluster.etcd_has_tls:
        return True
    stored = observed.get(STATEFUL_SET, cluster.object_name(ETCD)) or {}
    template = (stored.get("spec") or {}).get("template") or {}
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    present = security.digest_of_trust(trust_bundle(cluster, observed))
    is_current = annotations.get(security.TRUST_DIGEST) == present
    return is_current and not (etcd.stale or etcd.unknown)


def condition(cluster: Cluster, issuance: Issuance) -> Condition | None:
    """The condition SecretsReady; None for a cluster without issued Secrets."""
    if security.wanted_of(cluster) is None:
        return None
    name = "SecretsReady"
    if issuance.problems:
        return Condition(name, False, "NotIssued", "; ".join(issuance.problems))
    if issuance.actions:
        text = "; ".join(action.text for action in issuance.actions)
        return Condition(name, False, "Issuing", text)
    if issuance.rotating:
        return Condition(name, True, "Rotating", "; ".join(issuance.rotating))
    return Condition(name, True, "Issued", "all certificates and tokens are current")
