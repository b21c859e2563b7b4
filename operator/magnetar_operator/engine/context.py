"""The context in which each part of the operator registers its reconcilers.

kopf's handlers (`kopf.on.event`) receive the watch events in the operator's own event loop and pass
them to the `ReconcileQueue`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import kopf

from magnetar_operator.admin.client import AdminClients
from magnetar_operator.clock import SYSTEM, Clock
from magnetar_operator.engine.queue import ObjectKey, Reconcile, ReconcileQueue
from magnetar_operator.kube.client import KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import Kind
from magnetar_operator.settings import Settings


@dataclass(slots=True)
class Context:
    """The objects that all reconcilers of a running operator share."""

    settings: Settings
    kube: KubeClient
    events: Events
    queue: ReconcileQueue
    clients: AdminClients
    clock: Clock = SYSTEM
    kinds: list[Kind] = field(default_factory=list)
    """The reconciled kinds; the API server must serve them before kopf can watch them."""
    registry: kopf.OperatorRegistry = field(default_factory=kopf.OperatorRegistry)
    figures: list[Callable[[], Iterable[str]]] = field(default_factory=list)
    """Producers of further families of /metrics."""

    def watch(self, kind: Kind, reconcile: Reconcile) -> None:
        """Registers the reconciler of a kind.

        Every object of the kind is reconciled when it is created, when its spec or metadata
        changes, and after the resync interval. A change of its status alone causes no reconcile.
        kopf only watches: it writes neither annotations nor finalizers. `queue.all_of(KIND)`
        returns all objects.
        """
        self.queue.register(kind.kind, reconcile)
        self.kinds.append(kind)

        async def on_event(event: Any, **_: Any) -> None:
            self.queue.received(kind.kind, event)

        self._on_event(kind, on_event, {})

    def watch_owned(self, kind: Kind, label: str, owner: Kind) -> None:
        """Reconciles an owner when an object changes that names the owner in this label."""

        async def on_event(event: Any, **_: Any) -> None:
            metadata = event["object"].get("metadata", {})
            name = metadata.get("labels", {}).get(label, "")
            self.queue.enqueue(ObjectKey(owner.kind, metadata.get("namespace", ""), name))

        self._on_event(kind, on_event, {label: kopf.PRESENT})

    def _on_event(self, kind: Kind, handler: Any, labels: dict[str, Any]) -> None:
        group, _, version = kind.api_version.rpartition("/")
        # kopf uses the function's name as the handler's id, which must be unique.
        handler.__name__ = "_".join(("on", kind.plural, *labels))
        decorate = kopf.on.event(
            group=group, version=version, plural=kind.plural, labels=labels, registry=self.registry
        )
        decorate(handler)
