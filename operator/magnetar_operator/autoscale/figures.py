"""What autoscalers are told, asked of the clusters' admin REST and kept for a moment.

Each figure is asked for at most once per FRESH_S, however many autoscalers want it: who asks while
an answer is on its way waits for that one. A cluster that does not answer is an error, never a
zero: an autoscaler then leaves things as they are.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from magnetar_operator.autoscale.metrics import (
    OF_ANALYTICS,
    OF_CLUSTER,
    OF_SUBSCRIPTION,
    AnalyticsFigures,
    Asked,
    DrainFigures,
    SubscriptionFigures,
)

FRESH_S: Final = 5.0
KEPT_MAX: Final = 10_000
TIMEOUT_S: Final = 10.0

AdminUrl = Callable[[str, str], Awaitable[str | None]]
"""The admin REST of a cluster: of which Kubernetes namespace, of which name; None: no such one."""
T = TypeVar("T")


class NoFigure(Exception):
    """There is no figure now; the text says why."""


class _Backlog(msgspec.Struct, rename="camel"):
    msg_backlog: int = 0
    backlog_size: int = 0


class _Stats(msgspec.Struct):
    subscriptions: dict[str, _Backlog] = {}


class Figures:
    """See the module's text."""

    def __init__(
        self,
        admin_url: AdminUrl,
        client: httpx.AsyncClient | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._admin_url = admin_url
        self._client = client or httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=True)
        self._now = now
        self._wall = wall
        self._kept: dict[tuple[str, ...], tuple[float, asyncio.Task[object]]] = {}

    async def close(self) -> None:
        """Ends what is under way."""
        for _, task in self._kept.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._kept.values()), return_exceptions=True)
        await self._client.aclose()

    async def value(self, question: Asked) -> float:
        """Raises NoFigure."""
        if question.of_subscription:
            return OF_SUBSCRIPTION[question.metric](await self._subscription(question))
        if question.of_analytics:
            return await self._analytics(question)
        key = (question.namespace, question.cluster)
        figures = await self._once(key, lambda: self._drain(*key), DrainFigures)
        return OF_CLUSTER[question.metric](figures, question.drain_s)

    async def _subscription(self, question: Asked) -> SubscriptionFigures:
        labels = question.labels
        name = labels["subscription"]
        key = (question.namespace, question.cluster,
               *(labels[part] for part in ("tenant", "namespace", "topic")))  # fmt: skip
        stats = await self._once(key, lambda: self._topic(*key), _Stats)
        found = stats.subscriptions.get(name)
        if found is None:
            raise NoFigure(f"{'/'.join(key[2:])} has no subscription {name}")
        return SubscriptionFigures(found.msg_backlog, found.backlog_size)

    async def _analytics(self, question: Asked) -> float:
        """An old figure is none: nobody is to be scaled by what was true then."""
        tenant, local = question.labels["tenant"], question.labels["namespace"]
        key = (question.namespace, question.cluster, tenant, local)
        found = await self._once(key, lambda: self._backlog(*key), AnalyticsFigures)
        age_s = self._wall() - found.at_ms / 1000
        if age_s > question.fresh_s:
            raise NoFigure(f"the backlog job looked at {tenant}/{local} {age_s:.0f} s ago")
        value = OF_ANALYTICS[question.metric](found)
        if value is None:
            raise NoFigure(f"the backlog job does not know {question.metric} of {tenant}/{local}")
        return value

    async def _once(
        self, key: tuple[str, ...], ask: Callable[[], Awaitable[T]], kind: type[T]
    ) -> T:
        """What was asked less than FRESH_S ago, or is being asked, else a new answer."""
        now = self._now()
        kept = self._kept.get(key)
        if kept is None or (kept[1].done() and (now - kept[0] >= FRESH_S or _failed(kept[1]))):
            if len(self._kept) >= KEPT_MAX:
                self._forget(now)
            if len(self._kept) >= KEPT_MAX:
                raise NoFigure(f"{KEPT_MAX} figures are asked for at once: try again")
            task: asyncio.Task[object] = asyncio.create_task(_of(ask), name=f"figures {key}")
            kept = self._kept[key] = (now, task)
        # Shielded: who gives up waiting does not take the answer from the others.
        found = await asyncio.shield(kept[1])
        assert isinstance(found, kind)  # noqa: S101 - a key always has the same kind of answer
        return found

    def _forget(self, now: float) -> None:
        self._kept = {
            key: (at, task)
            for key, (at, task) in self._kept.items()
            if not task.done() or now - at < FRESH_S
        }

    async def _drain(self, namespace: str, cluster: str) -> DrainFigures:
        return await self._get(namespace, cluster, "/admin/v2/magnetar/drain", DrainFigures)

    async def _backlog(
        self, namespace: str, cluster: str, tenant: str, local: str
    ) -> AnalyticsFigures:
        path = "/".join(quote(part, safe="") for part in (tenant, local))
        base = "/admin/v2/magnetar/analytics/backlog/"
        return await self._get(namespace, cluster, base + path, AnalyticsFigures)

    async def _topic(
        self, namespace: str, cluster: str, tenant: str, local: str, topic: str
    ) -> _Stats:
        path = "/".join(quote(part, safe="") for part in (tenant, local, topic))
        base = f"/admin/v2/persistent/{path}"
        parts = await self._get(namespace, cluster, base + "/partitions", dict[str, object])
        kind = "/partitioned-stats" if parts.get("partitions") else "/stats"
        return await self._get(namespace, cluster, base + kind, _Stats)

    async def _get(self, namespace: str, cluster: str, path: str, kind: type[T]) -> T:
        url = await self._admin_url(namespace, cluster)
        if url is None:
            raise NoFigure(f"there is no MagnetarCluster {namespace}/{cluster}")
        try:
            answer = await self._client.get(url.rstrip("/") + path)
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=kind)
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            raise NoFigure(f"{cluster} does not tell {path}: {error!r}") from error


async def _of(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


def _failed(task: "asyncio.Task[object]") -> bool:
    return task.cancelled() or task.exception() is not None
