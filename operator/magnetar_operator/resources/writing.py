"""What a look found, and how it gets into Kubernetes: the finalizer and the status.

The finalizer is put and taken by the very version of the object that was decided on; a status only
of the very object (uid) it is about, and only where it differs from what is there.
"""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar_operator.api_kinds import Object
from magnetar_operator.kube import Conflict, KubeClient, NotFound
from magnetar_operator.resources.memory import PAUSE_MAX_S, Memory
from magnetar_operator.resources.placing import kind_named
from magnetar_operator.resources.resource_status import (
    READY,
    Condition,
    conditions,
    is_worth_writing,
    timestamp,
)
from magnetar_operator.settings import FINALIZER
from magnetar_operator.work import Key


@dataclass(slots=True)
class Verdict:
    """What a look found: conditions, fields of the status, and when to look again."""

    conditions: list[Condition]
    fields: dict[str, Any] = field(default_factory=dict)
    again_soon: bool = False
    """After a pause that grows; else after the resync interval."""
    pause_max_s: float = PAUSE_MAX_S


def verdict(reason: str, message: str, *, holds: bool | None = False, soon: bool = True) -> Verdict:
    """Of which Ready is all there is to say."""
    return Verdict([Condition(READY, holds, reason, message)], again_soon=soon)


class Writer:
    """See the module's text."""

    def __init__(
        self, kube: KubeClient, memory: Memory, now: Callable[[], datetime.datetime]
    ) -> None:
        self._kube = kube
        self._memory = memory
        self._now = now

    async def finalizer(self, one: Object, *, wanted: bool) -> Object:
        has = FINALIZER in (one["metadata"].get("finalizers") or ())
        if has == wanted:
            return one
        return await self.set_finalizer(one, wanted=wanted)

    async def set_finalizer(self, one: Object, *, wanted: bool) -> Object:
        """Adds or takes away ours, of just this version of the object; raises Conflict."""
        metadata = one["metadata"]
        others = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
        body = {
            "metadata": {
                "resourceVersion": metadata["resourceVersion"],
                "finalizers": [*others, FINALIZER] if wanted else others,
            }
        }
        kind = kind_named(one["kind"])
        after = await self._kube.merge(kind, metadata["namespace"], metadata["name"], body)
        return {**after, "apiVersion": one["apiVersion"], "kind": one["kind"]}

    async def status(self, key: Key, one: Object, found: Verdict) -> None:
        """Where it differs from what is there."""
        before = self._memory.status(key, one)
        generation = int(one["metadata"].get("generation", 0))
        after = {**before, **found.fields, "observedGeneration": generation}
        if "plan" not in found.fields:
            after.pop("plan", None)
        # A status is applied as a whole: a field that is absent is removed, and null is refused.
        after = {name: value for name, value in after.items() if value is not None}
        after["conditions"] = conditions(
            before.get("conditions") or (), found.conditions, generation, self._now()
        )
        if is_worth_writing(before, after):
            after["lastReconciled"] = timestamp(self._now())
            await self.put_status(key, one, after)

    async def put_status(self, key: Key, one: Object, status: Mapping[str, Any]) -> None:
        """The whole status, of this very object."""
        metadata = one["metadata"]
        try:
            after = await self._kube.patch_status(
                kind_named(key.kind), key.namespace, key.name, status, uid=metadata["uid"]
            )
        except Conflict as error:  # another one has its name now
            raise NotFound(error.status, error.reason, error.message) from error
        self._memory.wrote(key, after)
