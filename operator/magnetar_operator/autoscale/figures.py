"""Figures for autoscalers, read from the clusters' admin REST and cached for FRESH_S.

Each figure is read at most once per FRESH_S, however many autoscalers need it: further requests
wait for the running one. If a cluster does not answer, the result is an error and never a zero, so
that the autoscaler changes nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from magnetar.core.tasks import TaskSet
from magnetar_operator.admin.access import ClusterKey
from magnetar_operator.admin.client import AdminClient, AdminClients, AdminError, Purpose
from magnetar_operator.autoscale.metrics import (
    OF_ANALYTICS,
    OF_CLUSTER,
    OF_SUBSCRIPTION,
    AnalyticsFigures,
    DrainFigures,
    Question,
    SubscriptionFigures,
)

FRESH_S: Final = 5.0
CACHED_MAX: Final = 10_000
TIMEOUT_S: Final = 10.0
"""Deadline of one request, with its retries."""

AdminUrl = Callable[[str, str], Awaitable[str | None]]
"""The address of a cluster's admin REST by Kubernetes namespace and name; None: no such cluster."""
T = TypeVar("T")


class NoFigure(Exception):
    """A figure is not available now; the text says why."""


class _Backlog(msgspec.Struct, rename="camel"):
    msg_backlog: int = 0
    backlog_size: int = 0


class _Stats(msgspec.Struct):
    subscriptions: dict[str, _Backlog] = {}


class Figures:
    """Reads figures of clusters, each at most once per FRESH_S."""

    def __init__(
        self,
        admin_url: AdminUrl,
        clients: AdminClients,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._admin_url = admin_url
        self._clients = clients
        self._monotonic = monotonic
        self._wall = wall
        self._cached: dict[tuple[str, ...], tuple[float, asyncio.Task[object]]] = {}
        """The time of each request, and its task, which keeps the answer."""
        self._tasks = TaskSet("autoscale figures")

    async def close(self) -> None:
        """Cancels running requests, and refuses new ones."""
        await self._tasks.stop()

    async def value(self, question: Question) -> float:
        """The value that answers the question. Raises NoFigure."""
        if question.of_subscription:
            return OF_SUBSCRIPTION[question.metric](await self._subscription(question))
        if question.of_analytics:
            return await self._analytics(question)
        key = (question.namespace, question.cluster)
        figures = await self._once(key, lambda: self._drain(*key), DrainFigures)
        return OF_CLUSTER[question.metric](figures, question.drain_s)

    async def _subscription(self, question: Question) -> SubscriptionFigures:
        labels = question.labels
        name = labels["subscription"]
        key = (question.namespace, question.cluster,
               *(labels[part] for part in ("tenant", "namespace", "topic")))  # fmt: skip
        stats = await self._once(key, lambda: self._topic(*key), _Stats)
        backlog = stats.subscriptions.get(name)
        if backlog is None:
            raise NoFigure(f"{'/'.join(key[2:])} has no subscription {name}")
        return SubscriptionFigures(backlog.msg_backlog, backlog.backlog_size)

    async def _analytics(self, question: Question) -> float:
        """A figure of the last analysis. An old one is refused: nothing must scale by old data."""
        tenant, local = question.labels["tenant"], question.labels["namespace"]
        key = (question.namespace, question.cluster, tenant, local)
        figures = await self._once(key, lambda: self._backlog(*key), AnalyticsFigures)
        age_s = self._wall() - figures.at_ms / 1000
        if age_s > question.fresh_s:
            raise NoFigure(f"the backlog job analyzed {tenant}/{local} {age_s:.0f} s ago")
        value = OF_ANALYTICS[question.metric](figures)
        if value is None:
            raise NoFigure(f"the backlog job has no {question.metric} of {tenant}/{local}")
        return value

    async def _once(
        self, key: tuple[str, ...], request: Callable[[], Awaitable[T]], kind: type[T]
    ) -> T:
        """The answer that is younger than FRESH_S, else that of the running or of a new request."""
        now = self._monotonic()
        cached = self._cached.get(key)
        if cached is None or (
            cached[1].done() and (now - cached[0] >= FRESH_S or _failed(cached[1]))
        ):
            if len(self._cached) >= CACHED_MAX:
                self._forget(now)
            if len(self._cached) >= CACHED_MAX:
                raise NoFigure(f"{CACHED_MAX} figures are requested at once: try again")
            task = self._tasks.start(_answer(request), "/".join(key))
            if task is None:
                raise NoFigure("the operator is stopping: ask another one")
            cached = self._cached[key] = (now, task)
        # Shielded: other callers may wait for the same answer.
        answer = await asyncio.shield(cached[1])
        if isinstance(answer, NoFigure):
            raise NoFigure(str(answer))
        assert isinstance(answer, kind)  # noqa: S101 - a key always has the same kind of answer
        return answer

    def _forget(self, now: float) -> None:
        self._cached = {
            key: (at, task)
            for key, (at, task) in self._cached.items()
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

    def _client(self, url: str, namespace: str, cluster: str) -> AdminClient:
        return self._clients.at(url, Purpose.AUTOSCALING, ClusterKey(namespace, cluster))

    async def _get(self, namespace: str, cluster: str, path: str, kind: type[T]) -> T:
        url = await self._admin_url(namespace, cluster)
        if url is None:
            raise NoFigure(f"there is no MagnetarCluster {namespace}/{cluster}")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                content = await self._client(url, namespace, cluster).get(path)
            return msgspec.convert(content, kind)
        except TimeoutError as error:
            raise NoFigure(f"{cluster} did not answer GET {path} within {TIMEOUT_S} s") from error
        except (AdminError, msgspec.ValidationError) as error:
            raise NoFigure(f"{cluster} has no figures at {path}: {error}") from error


async def _answer(request: Callable[[], Awaitable[T]]) -> T | NoFigure:
    """The figure, or the reason why there is none, which is not a failure of the task."""
    try:
        return await request()
    except NoFigure as reason:
        return reason


def _failed(task: "asyncio.Task[object]") -> bool:
    return task.cancelled() or task.exception() is not None or isinstance(task.result(), NoFigure)
