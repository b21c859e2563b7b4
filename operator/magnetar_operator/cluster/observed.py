"""What there is of a cluster: objects, pods and volumes, and what its brokers say of ledgers."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from magnetar_operator.api_kinds import Kind, Object

REASON_OF_OURS: Final = "magnetar-operator: "
"""What drains that the operator asked for begin their reason with; others are left alone."""
VOLUME_REASON: Final = f"{REASON_OF_OURS}volume "
"""What those begin with that are for a new volume; the uid of the old one's claim follows."""
STARTUP_S_MAX: Final = 300.0
"""How long a pod may take to become ready: the startup probe allows as much for its process."""
REVISION_LABEL: Final = "controller-revision-hash"


class InTheWay(msgspec.Struct, frozen=True):
    """A ledger that still needs a bookie."""

    ledger_id: int
    why: str = ""


class Drain(msgspec.Struct, frozen=True, rename="camel"):
    """A bookie that is being emptied, as the admin REST tells it."""

    bookie_id: str
    state: str
    requested_ms: int = 0
    reason: str = ""
    ledgers_total: int = 0
    ledgers_left: int = 0
    bytes_left: int = 0
    ledgers_proven: int = 0
    refused: str = ""
    in_the_way: tuple[InTheWay, ...] = ()
    proven_ms: int = 0
    incarnations: tuple[str, ...] = ()
    """Of the disks that the proof is about."""


class LedgerTrouble(msgspec.Struct, frozen=True, rename="camel"):
    """A ledger that lacks copies."""

    ledger_id: int
    state: str = ""
    why: str = ""


class LivingBookie(msgspec.Struct, frozen=True, rename="camel"):
    """A bookie that is registered."""

    bookie_id: str
    incarnation: str = ""
    writable: bool = True
    draining: bool = False
    incarnations_before: int = 0
    disk_bytes_total: int = 0
    disk_bytes_free: int = 0


class LedgerHealth(msgspec.Struct, frozen=True, rename="camel"):
    """Whether every ledger has its copies, as the admin REST tells it."""

    healthy: bool
    reason: str = ""
    under_replicated: int = 0
    lost: int = 0
    ledgers: tuple[LedgerTrouble, ...] = ()
    bookies: tuple[LivingBookie, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledgers:
    """What the brokers say; `unknown` says why they do not."""

    health: LedgerHealth | None = None
    drains: tuple[Drain, ...] = ()
    unknown: str = ""

    def drain(self, bookie_id: str) -> Drain | None:
        return next((one for one in self.drains if one.bookie_id == bookie_id), None)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the cluster."""

    name: str
    uid: str
    component: str
    revision: str
    ready: bool
    ready_since: datetime.datetime | None
    going: bool
    """It is being deleted."""
    trouble: str = ""
    """Why it does not become ready, where Kubernetes says."""
    unready_since: datetime.datetime | None = None
    """None while it is ready, or if Kubernetes does not say."""

    def stuck(self, now: datetime.datetime) -> str:
        """Why it will not become ready by itself; empty if it is ready or may be starting."""
        if self.ready or self.trouble or self.unready_since is None:
            return self.trouble if not self.ready else ""
        unready_s = (now - self.unready_since).total_seconds()
        return f"not ready for {unready_s:.0f} s" if unready_s > STARTUP_S_MAX else ""

    @property
    def ordinal(self) -> int:
        """Of a pod of a StatefulSet; -1 for others."""
        tail = self.name.rpartition("-")[2]
        return int(tail) if tail.isdigit() else -1


@dataclass(slots=True)
class Observed:
    """See the module's text."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    """By kind and name."""
    pods: list[Pod] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    ledgers: Ledgers = field(default_factory=Ledgers)
    has_service_monitors: bool = False
    """Whether their CRD is installed."""

    def get(self, kind: Kind, name: str) -> Object | None:
        return self.objects.get((kind.kind, name))

    def of(self, component: str) -> list[Pod]:
        """The component's pods, by ordinal and name."""
        found = [one for one in self.pods if one.component == component]
        return sorted(found, key=lambda one: (one.ordinal, one.name))

    def claim(self, pod: str) -> Object | None:
        """The volume of a pod of a StatefulSet."""
        name = claim_name(pod)
        return next((one for one in self.claims if one["metadata"]["name"] == name), None)

    def claims_of(self, component: str) -> list[Object]:
        return [
            one
            for one in self.claims
            if one["metadata"].get("labels", {}).get("component") == component
        ]


def claim_name(pod: str) -> str:
    """As its StatefulSet calls it."""
    return f"data-{pod}"


def volume_of(drain: Drain) -> str:
    """The uid of the claim whose bookie it empties, where it is for a new volume; else empty."""
    if not drain.reason.startswith(VOLUME_REASON):
        return ""
    return drain.reason.removeprefix(VOLUME_REASON).partition(" ")[0]


def pod_of(content: Mapping[str, Any]) -> Pod:
    """From the API server's object."""
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
        going="deletionTimestamp" in metadata,
        trouble=_trouble(status),
        unready_since=None if ready else since,
    )


def when(text: str | None) -> datetime.datetime | None:
    """RFC 3339, as Kubernetes writes it."""
    return None if not text else datetime.datetime.fromisoformat(text)


def _trouble(status: Mapping[str, Any]) -> str:
    for one in status.get("containerStatuses") or ():
        waiting = one.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}".rstrip(": ")
    return ""


def first_trouble(pods: Sequence[Pod]) -> str:
    """For a message: the first pod that cannot get ready, and why."""
    return next((f"{one.name}: {one.trouble}" for one in pods if one.trouble), "")
