"""What every part of the operator is given when it registers its reconcilers.

kopf watches in a thread of its own, with a loop of its own (at its end it cancels every task of its
loop); what it sees is handed over to ours.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import kopf

from magnetar_operator.api_kinds import Kind
from magnetar_operator.clock import SYSTEM, Clock
from magnetar_operator.events import Events
from magnetar_operator.kube import KubeClient
from magnetar_operator.settings import Settings
from magnetar_operator.work import Key, Reconcile, Work


@dataclass(slots=True)
class Context:
    """One for a running operator."""

    settings: Settings
    kube: KubeClient
    events: Events
    work: Work
    clock: Clock = SYSTEM
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    kinds: list[Kind] = field(default_factory=list)
    """That are looked at; the API server must know them before they can be watched."""
    registry: kopf.OperatorRegistry = field(default_factory=kopf.OperatorRegistry)
    figures: list[Callable[[], Iterable[str]]] = field(default_factory=list)
    """Further lines of /metrics."""

    def watch(self, kind: Kind, reconcile: Reconcile) -> None:
        """Has every object of the kind looked at when it appears, changes, and now and then.

        kopf only watches: it writes neither annotations nor finalizers. What is only told in the
        object's status causes no look. All objects that were seen are in `work.all_of(KIND)`.
        """
        self.work.register(kind.kind, reconcile)
        self.kinds.append(kind)

        async def on_event(event: Any, **_: Any) -> None:
            one = dict(event["object"])
            metadata = one.get("metadata", {})
            key = Key(kind.kind, metadata.get("namespace", ""), metadata["name"])
            if event["type"] == "DELETED":
                self.loop.call_soon_threadsafe(self.work.gone, key)
            else:
                self.loop.call_soon_threadsafe(self.work.seen, key, one)

        self._on_event(kind, on_event, {})

    def watch_owned(self, kind: Kind, label: str, owner: Kind) -> None:
        """Has the owner looked at when an object that names it in this label changes."""

        async def on_event(event: Any, **_: Any) -> None:
            metadata = event["object"].get("metadata", {})
            name = metadata.get("labels", {}).get(label, "")
            key = Key(owner.kind, metadata.get("namespace", ""), name)
            self.loop.call_soon_threadsafe(self.work.look, key)

        self._on_event(kind, on_event, {label: kopf.PRESENT})

    def _on_event(self, kind: Kind, handler: Any, labels: dict[str, Any]) -> None:
        group, _, version = kind.api_version.rpartition("/")
        # Each its own name, so that no two share one handler's id.
        handler.__name__ = "_".join(("see", kind.plural, *labels))
        decorate = kopf.on.event(
            group=group, version=version, plural=kind.plural, labels=labels, registry=self.registry
        )
        decorate(handler)
