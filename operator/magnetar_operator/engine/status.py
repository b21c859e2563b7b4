"""Writes the status of an object, if it has changed."""

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from magnetar_operator.engine.conditions import is_worth_writing, timestamp
from magnetar_operator.kube.client import Conflict, KubeClient, NotFound
from magnetar_operator.kube.kinds import Object, kind_of


class ObjectGone(Exception):
    """The object of the reconcile was deleted, or a newer object has its name."""


class ObjectChanged(Exception):
    """The object has changed since the reconcile read it."""


class StatusWriter:
    """Writes the statuses of all kinds.

    A status is applied as a whole: the API server removes absent fields and refuses null. It is
    written by uid, so never to a newer object of the same name. kopf would write statuses as merge
    patches by name alone, without the operator's lease.
    """

    def __init__(self, kube: KubeClient, now: Callable[[], datetime.datetime]) -> None:
        self._kube = kube
        self._now = now

    async def write(
        self, obj: Object, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> Object | None:
        """Writes `after` if it differs notably from `before`.

        Returns the object as stored, or None if nothing was written. Raises ObjectGone.
        """
        if not is_worth_writing(before, after):
            return None
        return await self.put(obj, {**after, "lastReconciled": timestamp(self._now())})

    async def put(self, obj: Object, status: Mapping[str, Any]) -> Object:
        """Writes the whole status of this very object. Raises ObjectGone."""
        metadata = obj["metadata"]
        try:
            return await self._kube.patch_status(
                kind_of(obj), metadata["namespace"], metadata["name"], status, uid=metadata["uid"]
            )
        except (Conflict, NotFound) as error:
            raise ObjectGone(str(error)) from error
