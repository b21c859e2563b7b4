"""The observed state of a cluster: its objects, pods, volumes and ledgers. Pure: no IO."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.documents.bookies import Drain, LedgerHealth
from magnetar_operator.cluster.manifests.names import Cluster
from magnetar_operator.cluster.manifests.pods import STARTUP_S_MAX
from magnetar_operator.kube.kinds import Kind, Object

REASON_OF_OURS: Final = "magnetar-operator: "
"""The prefix of the reasons of the operator's own drains; it does not touch other drains."""
VOLUME_REASON: Final = f"{REASON_OF_OURS}volume "
"""The prefix of the reasons of drains for a new volume; the uid of the old claim follows."""
REVISION_LABEL: Final = "controller-revision-hash"


@dataclass(frozen=True, slots=True)
class Ledgers:
    """The state of the ledgers; if it could not be read, `unknown` gives the reason."""

    health: LedgerHealth | None = None
    drains: tuple[Drain, ...] = ()
    unknown: str = ""

    def drain(self, bookie_id: str) -> Drain | None:
        """The drain of a bookie; None if it is not drained."""
        return next((drain for drain in self.drains if drain.bookie_id == bookie_id), None)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the cluster."""

    name: str
    uid: str
    component: str
    revision: str
    ready: bool
    ready_since: datetime.datetime | None
    ending: bool
    """The pod is being deleted."""
    trouble: str = ""
    """Why the pod does not become ready, if Kubernetes reports it."""
    unready_since: datetime.datetime | None = None
    """None while the pod is ready, or if Kubernetes does not report it."""
    ports: frozenset[str] = frozenset()
    """The names of its container's ports."""

    def stuck(self, now: datetime.datetime) -> str:
        """Why the pod will not become ready; empty if it is ready or may still be starting."""
        if self.ready or self.trouble or self.unready_since is None:
            return self.trouble if not self.ready else ""
        unready_s = (now - self.unready_since).total_seconds()
        return f"not ready for {unready_s:.0f} s" if unready_s > STARTUP_S_MAX else ""

    @property
    def ordinal(self) -> int:
        """The ordinal of a pod of a StatefulSet; -1 for other pods."""
        tail = self.name.rpartition("-")[2]
        return int(tail) if tail.isdigit() else -1


@dataclass(slots=True)
class Observed:
    """The present state of a cluster."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    """The objects by kind and name."""
    pods: list[Pod] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    ledgers: Ledgers = field(default_factory=Ledgers)
    has_service_monitors: bool = False
    """Whether the CRD of ServiceMonitors is installed."""
    secrets: Mapping[str, Object | None] = field(default_factory=dict, repr=False)
    """The Secrets that the operator issues, by name; None: it does not exist."""
    secrets_unknown: str = ""
    """Why the Secrets could not be read."""

    def get(self, kind: Kind, name: str) -> Object | None:
        return self.objects.get((kind.kind, name))

    def of(self, component: str) -> list[Pod]:
        """The pods of a component, by ordinal and name."""
        pods = [pod for pod in self.pods if pod.component == component]
        return sorted(pods, key=lambda pod: (pod.ordinal, pod.name))

    def claim(self, pod: str) -> Object | None:
        """The volume claim of a pod of a StatefulSet."""
        name = claim_name(pod)
        return next((claim for claim in self.claims if claim["metadata"]["name"] == name), None)

    def claims_of(self, component: str) -> list[Object]:
        return [
            claim
            for claim in self.claims
            if claim["metadata"].get("labels", {}).get("component") == component
        ]


def claim_name(pod: str) -> str:
    """The name of the volume claim that a StatefulSet creates for a pod."""
    return f"data-{pod}"


def volume_of(drain: Drain) -> str:
    """The uid of the old claim, if the drain is for a new volume; else empty."""
    if not drain.reason.startswith(VOLUME_REASON):
        return ""
    return drain.reason.removeprefix(VOLUME_REASON).partition(" ")[0]


def pod_of(content: Mapping[str, Any]) -> Pod:
    """Parses a Pod object."""
    metadata, status = content["metadata"], content.get("status", {})
    labels = metadata.get("labels", {})
    ready, since = False, when(metadata.get("creationTimestamp"))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Ready":
            ready = condition.get("status") == "True"
            since = when(condition.get("lastTransitionTime"))
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        component=labels.get("component", ""),
        revision=labels.get(REVISION_LABEL, ""),
        ready=ready and "deletionTimestamp" not in metadata,
        ready_since=since if ready else None,
        ending="deletionTimestamp" in metadata,
        trouble=_trouble(status),
        unready_since=None if ready else since,
        ports=frozenset(
            port["name"]
            for container in (content.get("spec") or {}).get("containers") or ()
            for port in container.get("ports") or ()
            if "name" in port
        ),
    )


def when(text: str | None) -> datetime.datetime | None:
    """Parses a time (RFC 3339)."""
    return None if not text else datetime.datetime.fromisoformat(text)


def _trouble(status: Mapping[str, Any]) -> str:
    for container in status.get("containerStatuses") or ():
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}".rstrip(": ")
    return ""


def present_admin_url(cluster: Cluster, brokers: Sequence[Pod]) -> str:
    """The address of the admin REST that the brokers of now serve.

    While brokers are restarted with TLS, or without it, the address of the spec is not served yet:
    the gates would wait for it, and the restarts for the gates.
    """
    if cluster.spec.admin_url is not None:
        return cluster.spec.admin_url
    ready = [pod for pod in brokers if pod.ready and pod.ports]
    preferred = "https" if cluster.has_tls else "http"
    if not ready or any(preferred in pod.ports for pod in ready):
        return cluster.admin_url
    return cluster.admin_url_of(has_tls=not cluster.has_tls)


def first_trouble(pods: Sequence[Pod]) -> str:
    """The first pod that cannot become ready, with the reason; empty if there is none."""
    return next((f"{pod.name}: {pod.trouble}" for pod in pods if pod.trouble), "")
