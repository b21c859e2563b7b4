"""Events (events.k8s.io/v1) that say in `kubectl describe` what the operator did and why.

The same news of the same object is one Event whose series counts: it is written when it is new,
and then no more often than SERIES_INTERVAL_S. Events are a courtesy: one that cannot be written is
logged, and the work goes on. NEWS_MAX of them are remembered, the oldest are forgotten first.
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

from magnetar_operator.api_kinds import EVENT, Object
from magnetar_operator.kube import KubeClient, KubeError

SERIES_INTERVAL_S: Final = 300.0
SERIES_ENDS_S: Final = 1_800.0
NEWS_MAX: Final = 5_000
NOTE_CHARACTERS_MAX: Final = 1_000
CONTROLLER: Final = "magnetar.io/operator"

Type = Literal["Normal", "Warning"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _News:
    name: str
    count: int
    written: datetime.datetime


class Events:
    """See the module's text."""

    def __init__(
        self,
        kube: KubeClient,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._kube = kube
        self._now = now
        self._news: OrderedDict[tuple[str, str, str], _News] = OrderedDict()
        self._instance = os.environ.get("POD_NAME") or socket.gethostname()

    async def tell(
        self,
        regarding: Mapping[str, Any],
        reason: str,
        note: str,
        *,
        action: str = "Reconcile",
        type: Type = "Normal",  # noqa: A002  it is what the field is called
    ) -> None:
        """Writes it, or counts it in."""
        metadata = regarding["metadata"]
        note = note[:NOTE_CHARACTERS_MAX]
        key = (str(metadata.get("uid", metadata["name"])), reason, note)
        now = self._now()
        news = self._news.get(key)
        try:
            if news is not None and (now - news.written).total_seconds() < SERIES_ENDS_S:
                await self._count(news, metadata["namespace"], now)
                self._news.move_to_end(key)
                return
            # The time alone is not enough: objects of several kinds may have one name.
            name = f"{metadata['name'][:200]}.{int(now.timestamp() * 1e6):x}{secrets.token_hex(4)}"
            await self._kube.create(self._event(regarding, name, reason, note, action, type, now))
            self._news[key] = _News(name, 1, now)
            while len(self._news) > NEWS_MAX:
                self._news.popitem(last=False)
        except KubeError as error:
            log.warning("event %s not written: %s", reason, error)

    async def _count(self, news: _News, namespace: str, now: datetime.datetime) -> None:
        news.count += 1
        if (now - news.written).total_seconds() < SERIES_INTERVAL_S:
            return
        news.written = now
        series = {"count": news.count, "lastObservedTime": _micro(now)}
        await self._kube.merge(EVENT, namespace, news.name, {"series": series})

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
