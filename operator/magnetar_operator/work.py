"""A queue of objects that need a look: one look at an object at a time, many objects at once.

Watches put keys in, with the object as it was last seen; a worker calls the kind's reconciler,
whose answer says when to look again (by default after the resync interval, so that drift is found).
A key that is put in while it is worked at is looked at once more after that. What fails is tried
again with a growing pause and jitter.

Bounds: as many keys as there are objects, `workers` looks at once, PAUSE_MAX_S between attempts.
"""

import asyncio
import heapq
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from magnetar.core.tasks import TaskSet
from magnetar_operator.api_kinds import Object
from magnetar_operator.kube import KubeError

PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 120.0
LOOK_S_MAX: Final = 600.0
"""No look at one object may take longer."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


Reconcile = Callable[[Object], Awaitable[float | None]]
"""Looks at the object and acts; answers after how many seconds it wants to look again (None: after
the resync interval). Raises what makes it try again."""


class Work:
    """See the module's text. `start`, then `stop`."""

    def __init__(self, workers: int, resync_s: float) -> None:
        self._workers = workers
        self._resync_s = resync_s
        self._reconcilers: dict[str, Reconcile] = {}
        self._latest: dict[Key, Object] = {}
        self._due: list[tuple[float, Key]] = []
        self._due_at: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._failed: Counter[Key] = Counter()
        self._wake = asyncio.Event()
        self._free = asyncio.Semaphore(workers)
        self._tasks = TaskSet("operator work")
        self.looks: Counter[str] = Counter()
        """By kind."""
        self.failures: Counter[str] = Counter()

    def register(self, kind: str, reconcile: Reconcile) -> None:
        """Who looks at objects of this kind."""
        self._reconcilers[kind] = reconcile

    def start(self) -> None:
        self._tasks.start(self._dispatch(), "dispatch")

    async def stop(self) -> None:
        """Cuts off what is under way: every look can be broken off anywhere."""
        await self._tasks.stop()

    # -- what watches say ------------------------------------------------------------------------

    def seen(self, key: Key, one: Object) -> None:
        """The object is so now: look at it, unless only what is told of it has changed."""
        before, self._latest[key] = self._latest.get(key), one
        if before is not None and _wanted(before) == _wanted(one):
            return
        self._failed.pop(key, None)
        self.look(key)

    def gone(self, key: Key) -> None:
        """The object is no more; nothing is done because of it."""
        for known in (self._latest, self._due_at, self._failed):
            known.pop(key, None)
        self._again.discard(key)

    def look(self, key: Key, after_s: float = 0.0) -> None:
        """Looks at it by then at the latest."""
        if key not in self._latest:
            return
        if key in self._busy:
            if after_s <= 0:
                self._again.add(key)
            return
        at = asyncio.get_running_loop().time() + after_s
        known = self._due_at.get(key)
        if known is None or at < known:
            self._due_at[key] = at
            heapq.heappush(self._due, (at, key))
            self._wake.set()

    def latest(self, key: Key) -> Object | None:
        """As it was last seen."""
        return self._latest.get(key)

    def all_of(self, kind: str, namespace: str | None = None) -> list[Object]:
        """Of a kind, as last seen."""
        return [
            one
            for key, one in self._latest.items()
            if key.kind == kind and namespace in (None, key.namespace)
        ]

    @property
    def waiting(self) -> int:
        """Keys that are due and not being looked at."""
        now = asyncio.get_running_loop().time()
        return sum(at <= now for at in self._due_at.values())

    # -- the workers -----------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if self._due and self._due[0][0] <= loop.time():
                at, key = heapq.heappop(self._due)
                if self._due_at.get(key) != at:
                    continue  # it was put in anew for another time, or is gone
                del self._due_at[key]
                await self._free.acquire()
                self._busy.add(key)
                self._tasks.start(self._one(key), str(key))
                continue
            pause_s = self._due[0][0] - loop.time() if self._due else None
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _one(self, key: Key) -> None:
        after_s: float | None = None
        try:
            after_s = await self._look(key)
        finally:
            self._busy.discard(key)
            self._free.release()
        if key in self._again:
            self._again.discard(key)
            after_s = 0.0
        if after_s is None:
            after_s = self._resync_s * random.uniform(0.9, 1.1)
        self.look(key, after_s)

    async def _look(self, key: Key) -> float | None:
        one = self._latest.get(key)
        reconcile = self._reconcilers.get(key.kind)
        if one is None or reconcile is None:
            return None
        self.looks[key.kind] += 1
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                after_s = await reconcile(one)
        except Exception as error:
            self.failures[key.kind] += 1
            self._failed[key] += 1
            expected = isinstance(error, KubeError | TimeoutError)
            log.warning("%s: %s", key, error or type(error).__name__, exc_info=not expected)
            exponent = min(self._failed[key] - 1, 20)
            pause_s: float = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0**exponent)
            return pause_s * random.uniform(0.5, 1.0)
        self._failed.pop(key, None)
        return after_s


def _wanted(one: Object) -> tuple[object, ...]:
    """What somebody may have asked for; the status is the operator's own word."""
    metadata = one.get("metadata", {})
    fields = ("uid", "generation", "labels", "annotations", "deletionTimestamp", "finalizers")
    return tuple(metadata.get(each) for each in fields)
