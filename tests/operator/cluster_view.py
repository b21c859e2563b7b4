"""The observed state of a healthy cluster: three bookies and three members of etcd."""

import datetime
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from tests.operator.cluster_world import BEGAN, cluster_of

from magnetar.documents.bookies import Drain, LedgerHealth, LivingBookie
from magnetar_operator.cluster.manifests.names import BOOKIE, BROKER, ETCD, Cluster
from magnetar_operator.cluster.observed import Ledgers, Observed, Pod
from magnetar_operator.kube.kinds import Object

NOW = BEGAN


def ms(seconds_ago: float = 0) -> int:
    return int((NOW.timestamp() - seconds_ago) * 1000)


def pod(name: str, **how: Any) -> Pod:
    component = {"c-b": BOOKIE, "c-e": ETCD}.get(name[:3], BROKER)
    component = BROKER if name.startswith("c-broker") else component
    ready = how.get("ready", True)
    given = {
        "uid": f"u-{name}",
        "component": component,
        "revision": "new",
        "ready": ready,
        "ready_since": NOW - datetime.timedelta(hours=1) if ready else None,
        "ending": False,
        **how,
    }
    return Pod(name, **given)


def claim(name: str, uid: str = "", **status: Any) -> Object:
    component = BOOKIE if name.startswith("c-bookie") else ETCD
    metadata = {"name": f"data-{name}", "uid": uid or f"v-{name}"}
    metadata["labels"] = {"component": component}  # type: ignore[assignment]
    if status.pop("ending", False):
        metadata["deletionTimestamp"] = "now"
    return {"metadata": metadata, "status": status}


@dataclass
class View:
    """The observed state; a test changes one part of it."""

    cluster: Cluster = field(default_factory=cluster_of)
    pods: dict[str, Pod] = field(default_factory=dict)
    claims: dict[str, Object] = field(default_factory=dict)
    living: dict[str, LivingBookie] = field(default_factory=dict)
    drains: list[Drain] = field(default_factory=list)
    health: LedgerHealth | None = field(default_factory=lambda: LedgerHealth(healthy=True))
    replicas: int = 3
    annotations: dict[str, str] = field(default_factory=dict)
    has_set: bool = True

    def __post_init__(self) -> None:
        for name in (*(f"c-bookie-{at}" for at in range(3)), *(f"c-etcd-{at}" for at in range(3))):
            self.pods[name] = pod(name)
            self.claims[name] = claim(name)
        for at in range(3):
            self.living[f"c-bookie-{at}"] = LivingBookie(f"c-bookie-{at}", "1")

    def change(self, name: str, **how: Any) -> None:
        self.pods[name] = replace(self.pods[name], **how)

    def grow(self, count: int) -> None:
        """So many bookies instead of three."""
        self.replicas = count
        for at in range(count):
            name = f"c-bookie-{at}"
            self.pods.setdefault(name, pod(name))
            self.claims.setdefault(name, claim(name))
            self.living.setdefault(name, LivingBookie(name, "1"))

    def observed(self) -> Observed:
        health = self.health
        if health is not None:
            living = health.bookies or tuple(self.living.values())
            health = msgspec.structs.replace(health, bookies=living)
        objects = {}
        if self.has_set:
            metadata = {"name": "c-bookie", "annotations": self.annotations}
            objects["StatefulSet", "c-bookie"] = {
                "metadata": metadata,
                "spec": {"replicas": self.replicas},
            }
        return Observed(
            objects,
            list(self.pods.values()),
            list(self.claims.values()),
            Ledgers(health, tuple(self.drains), "" if health else "no broker is ready"),
        )
