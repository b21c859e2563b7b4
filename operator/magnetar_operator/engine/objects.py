"""Writes the Kubernetes objects of an owner, such as a cluster's pods or a SparkJob's runs."""

from magnetar_operator.engine.plan import Apply, Remove
from magnetar_operator.kube.client import Conflict, KubeClient
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.kinds import Object


class ObjectWriter:
    """Applies and deletes Kubernetes objects for one owner, and records the owner's Events."""

    def __init__(self, kube: KubeClient, events: Events, owner: Object) -> None:
        self._kube = kube
        self._events = events
        self._owner = owner

    async def apply(self, action: Apply) -> None:
        """Applies an object; records an Event if the action has a reason and anything changed."""
        applied = await self._kube.apply(action.manifest, before=action.before)
        if applied.changed and action.reason:
            # The text of a creation already names the object.
            text = action.text if action.verb == "create" else f"{action.target}: {action.text}"
            await self.record(action.reason, text, warning=action.verb == "repair")

    async def remove(self, action: Remove, reason: str = "Removed") -> None:
        """Deletes this very object; does nothing if a newer object has its name."""
        namespace = self._owner["metadata"]["namespace"]
        try:
            await self._kube.delete(action.kind, action.name, namespace, uid=action.uid)
        except Conflict:
            return  # the next reconcile decides about the new object
        await self.record(reason, f"{action.target}: {action.text}")

    async def record(self, reason: str, text: str, *, warning: bool = False) -> None:
        """Records an Event that regards the owner."""
        await self._events.record(
            self._owner, reason, text, type="Warning" if warning else "Normal"
        )
