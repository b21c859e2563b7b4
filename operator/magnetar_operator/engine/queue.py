"""A deduplicating work queue: one reconcile per object at a time, many objects in parallel.

Watches report objects (`received`). A worker calls the reconciler of the object's kind,
which returns the seconds until the next reconcile; None stands for the resync interval, after which
drift is detected. An object that is enqueued during its own reconcile is reconciled once more.
Failures are retried with exponential back-off and jitter.

Why kopf's queues do not do this: kopf handles each event of an object in turn and merges none, so a
StatefulSet that starts a hundred pods would cost a hundred reconciles of its cluster
(`tests/operator/test_queue.py`). kopf can call a handler later only by a timer, which puts kopf's
finalizer on every object, or after a `TemporaryError`, which patches the object itself at each
retry. Here a reconcile with nothing to do writes nothing (`test_resources_reconcile.py`), and no
MagnetarCluster or SparkJob has a finalizer that could hang. A reconcile also enqueues other objects
(an owner, a resource that waits for this one). kopf has one queue per watched object and cannot
express that.

Bounds: one key per object, `workers` reconciles at once, RECONCILE_S_MAX for each of them,
PAUSE_MAX_S between attempts.
"""

import asyncio
import heapq
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.core.backoff import backoff_s
from magnetar.core.tasks import TaskSet
from magnetar_operator.kube.client import KubeError
from magnetar_operator.kube.kinds import Object

PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 120.0
RECONCILE_S_MAX: Final = 600.0
"""A reconcile that takes longer is cancelled and retried."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Identifies an object by kind, Kubernetes namespace and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def key_of(obj: Object) -> ObjectKey:
    """The key of an object."""
    metadata = obj["metadata"]
    return ObjectKey(obj["kind"], metadata.get("namespace", ""), metadata["name"])


Reconcile = Callable[[Object], Awaitable[float | None]]
"""Reconciles an object. Returns the seconds until the next reconcile (None: the resync interval);
raises to be retried with back-off."""


class ReconcileQueue:
    """Runs reconciles: one at a time for each object, at most `workers` at once.

    Call `start`, then `stop`.
    """

    def __init__(self, workers: int, resync_s: float) -> None:
        self._resync_s = resync_s
        self._reconcilers: dict[str, Reconcile] = {}
        self._latest: dict[ObjectKey, Object] = {}
        self._due: list[tuple[float, ObjectKey]] = []
        self._due_at: dict[ObjectKey, float] = {}
        self._busy: set[ObjectKey] = set()
        self._again: set[ObjectKey] = set()
        self._failed: Counter[ObjectKey] = Counter()
        self._wake = asyncio.Event()
        self._free = asyncio.Semaphore(workers)
        self._tasks = TaskSet("reconcile queue")
        self.reconciles: Counter[str] = Counter()
        """Reconciles that were started, by kind."""
        self.failures: Counter[str] = Counter()
        """Reconciles that raised, by kind."""

    def register(self, kind: str, reconcile: Reconcile) -> None:
        """Sets the reconciler of a kind."""
        self._reconcilers[kind] = reconcile

    def start(self) -> None:
        """Starts to reconcile enqueued objects."""
        self._tasks.start(self._dispatch(), "dispatch")

    async def stop(self) -> None:
        """Cancels running reconciles; a reconcile may be cancelled at any await."""
        await self._tasks.stop()

    def received(self, kind: str, event: Mapping[str, Any]) -> None:
        """Handles a watch event of an object: enqueues the object, or removes a deleted one."""
        obj = dict(event["object"])
        metadata = obj.get("metadata", {})
        key = ObjectKey(kind, metadata.get("namespace", ""), metadata["name"])
        if event["type"] == "DELETED":
            self.deleted(key)
        else:
            self.changed(key, obj)

    def changed(self, key: ObjectKey, obj: Object) -> None:
        """Enqueues an object that a watch reports, unless only its status has changed."""
        before, self._latest[key] = self._latest.get(key), obj
        if before is not None and _written(before) == _written(obj):
            return
        self._failed.pop(key, None)
        self.enqueue(key)

    def deleted(self, key: ObjectKey) -> None:
        """Removes an object that a watch reports as deleted."""
        self._latest.pop(key, None)
        self._due_at.pop(key, None)
        self._failed.pop(key, None)
        self._again.discard(key)

    def enqueue(self, key: ObjectKey, after_s: float = 0.0) -> None:
        """Reconciles an object within `after_s` seconds. Ignores objects that no watch reported."""
        if key not in self._latest:
            return
        if key in self._busy:
            if after_s <= 0:
                self._again.add(key)
            return
        at = asyncio.get_running_loop().time() + after_s
        due_at = self._due_at.get(key)
        if due_at is None or at < due_at:
            self._due_at[key] = at
            heapq.heappush(self._due, (at, key))
            self._wake.set()

    def latest(self, key: ObjectKey) -> Object | None:
        """The object as a watch last reported it; None if none did."""
        return self._latest.get(key)

    def all_of(self, kind: str, namespace: str | None = None) -> list[Object]:
        """All objects of a kind (in a namespace, if given), as the watches last reported them."""
        return [
            obj
            for key, obj in self._latest.items()
            if key.kind == kind and namespace in (None, key.namespace)
        ]

    @property
    def waiting(self) -> int:
        """Objects that are due and wait for a worker."""
        now = asyncio.get_running_loop().time()
        return sum(at <= now for at in self._due_at.values())

    async def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if self._due and self._due[0][0] <= loop.time():
                at, key = heapq.heappop(self._due)
                if self._due_at.get(key) != at:
                    continue  # rescheduled for another time, or deleted
                del self._due_at[key]
                await self._free.acquire()
                self._busy.add(key)
                self._tasks.start(self._work(key), str(key))
                continue
            pause_s = self._due[0][0] - loop.time() if self._due else None
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _work(self, key: ObjectKey) -> None:
        after_s: float | None = None
        try:
            after_s = await self._reconcile(key)
        finally:
            self._busy.discard(key)
            self._free.release()
        if key in self._again:
            self._again.discard(key)
            after_s = 0.0
        if after_s is None:
            after_s = self._resync_s * random.uniform(0.9, 1.1)
        self.enqueue(key, after_s)

    async def _reconcile(self, key: ObjectKey) -> float | None:
        obj = self._latest.get(key)
        reconcile = self._reconcilers.get(key.kind)
        if obj is None or reconcile is None:
            return None
        self.reconciles[key.kind] += 1
        try:
            async with asyncio.timeout(RECONCILE_S_MAX):
                after_s = await reconcile(obj)
        except Exception as error:
            self.failures[key.kind] += 1
            self._failed[key] += 1
            expected = isinstance(error, KubeError | TimeoutError)
            log.warning(
                "%s: reconcile failed, will be retried: %s",
                key,
                error or type(error).__name__,
                exc_info=not expected,
            )
            return backoff_s(self._failed[key], PAUSE_FIRST_S, PAUSE_MAX_S, random)
        self._failed.pop(key, None)
        return after_s


def _written(obj: Object) -> tuple[object, ...]:
    """The parts of an object that others write; the status is the operator's own."""
    metadata = obj.get("metadata", {})
    fields = ("uid", "generation", "labels", "annotations", "deletionTimestamp", "finalizers")
    return tuple(metadata.get(name) for name in fields)
