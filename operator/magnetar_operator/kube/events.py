"""Records Events (events.k8s.io/v1), by which `kubectl describe` shows what the operator did.

Equal Events of an object are counted in one Event's series, which is written at most once per
SERIES_INTERVAL_S. If an Event cannot be written, the failure is logged and the reconcile continues.
At most RECENT_MAX Events are remembered; the oldest are forgotten first.

Why kopf's events do not do this: see `engine.watches`.
"""

import datetime
import logging
import os
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from magnetar_operator.kube.client import KubeClient, KubeError
from magnetar_operator.kube.kinds import EVENT, Object

SERIES_INTERVAL_S: Final = 300.0
SERIES_ENDS_S: Final = 1_800.0
RECENT_MAX: Final = 5_000
NOTE_CHARACTERS_MAX: Final = 1_000
CONTROLLER: Final = "magnetar.io/operator"

Type = Literal["Normal", "Warning"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Recent:
    name: str
    count: int
    written: datetime.datetime


class Events:
    """Records Events, and counts repeated ones in a series."""

    def __init__(
        self,
        kube: KubeClient,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._kube = kube
        self._now = now
        self._recent: OrderedDict[tuple[str, str, str], _Recent] = OrderedDict()
        self._instance = os.environ.get("POD_NAME") or socket.gethostname()

    async def record(
        self,
        regarding: Mapping[str, Any],
        reason: str,
        note: str,
        *,
        action: str = "Reconcile",
        type: Type = "Normal",  # noqa: A002  the name of the field
    ) -> None:
        """Writes an Event, or counts it in the series of an equal one."""
        metadata = regarding["metadata"]
        note = note[:NOTE_CHARACTERS_MAX]
        key = (str(metadata.get("uid", metadata["name"])), reason, note)
        now = self._now()
        recent = self._recent.get(key)
        try:
            if recent is not None and (now - recent.written).total_seconds() < SERIES_ENDS_S:
                await self._count(recent, metadata["namespace"], now)
                self._recent.move_to_end(key)
                return
            # The time alone is not unique: objects of different kinds may have the same name.
            name = f"{metadata['name'][:200]}.{int(now.timestamp() * 1e6):x}{secrets.token_hex(4)}"
            await self._kube.create(self._event(regarding, name, reason, note, action, type, now))
            self._recent[key] = _Recent(name, 1, now)
            while len(self._recent) > RECENT_MAX:
                self._recent.popitem(last=False)
        except KubeError as error:
            log.warning("event %s not written: %s", reason, error)

    async def _count(self, recent: _Recent, namespace: str, now: datetime.datetime) -> None:
        recent.count += 1
        if (now - recent.written).total_seconds() < SERIES_INTERVAL_S:
            return
        recent.written = now
        series = {"count": recent.count, "lastObservedTime": _micro(now)}
        await self._kube.merge(EVENT, namespace, recent.name, {"series": series})

    def _event(
        self,
        regarding: Mapping[str, Any],
        name: str,
        reason: str,
        note: str,
        action: str,
        type_: Type,
        now: datetime.datetime,
    ) -> Object:
        metadata = regarding["metadata"]
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "eventTime": _micro(now),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance[:128],
            "action": action,
            "reason": reason,
            "type": type_,
            "note": note,
            "regarding": {
                "apiVersion": regarding["apiVersion"],
                "kind": regarding["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata.get("uid", ""),
            },
        }


def _micro(when: datetime.datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
