"""The garbage collection policy of a process that holds many long-lived objects.

A topic is about seventy objects that live as long as the topic is served. Python's collector walks
all of them whenever their number has grown by a quarter. With a hundred thousand topics a pass
takes seconds, during which nothing else runs and no lease is renewed. After a pass that took longer
than PASS_S_MAX, the policy therefore freezes all survivors (`gc.freeze`); later passes skip them.

The collector never frees a frozen object that is part of a reference cycle. Two rules bound that:

- Components break their reference cycles when they close, so that reference counts free them.
  tests/unit/broker/test_churn.py enforces it.
- Components report their end (`closed`). A component that is still alive afterwards is garbage that
  waits for a pass, or is about to be freed. Once the closed components outnumber the frozen ones,
  the next pass includes everything (`gc.unfreeze`).

Garbage therefore at most doubles the memory, and a long pass runs only if at least half is garbage.
"""

import gc
import time
import weakref
from typing import Final

PASS_S_MAX: Final = 0.05
CLOSED_ALIVE_MAX: Final = 10_000
"""Up to this number, closed components do not justify a long pass."""
OBJECTS_PER_COMPONENT: Final = 70
"""An estimate: a topic has about this many objects, a session or a subscription fewer."""


class GarbagePolicy:
    """The garbage collection policy of one process: call `begin` once it serves."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._begun = False
        self._closed: weakref.WeakSet[object] = weakref.WeakSet()
        self._closed_alive_max = CLOSED_ALIVE_MAX
        self.frozen = 0
        """How many passes ended in `gc.freeze`."""

    def begin(self) -> None:
        """Applies the policy from now on. Idempotent."""
        if not self._begun:
            self._begun = True
            gc.callbacks.append(self._passed)

    @property
    def closed_alive(self) -> int:
        """The number of components that have closed and are not freed yet."""
        return len(self._closed)

    def closed(self, component: object) -> None:
        """Reports that `component` has closed; it needs a `__weakref__`."""
        self._closed.add(component)
        if self.frozen and self.closed_alive > self._closed_alive_max:
            self.frozen = 0
            gc.unfreeze()

    def _passed(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._began_s = time.perf_counter()
        elif time.perf_counter() - self._began_s > PASS_S_MAX:
            gc.freeze()
            self.frozen += 1
            components = gc.get_freeze_count() // OBJECTS_PER_COMPONENT
            self._closed_alive_max = max(CLOSED_ALIVE_MAX, components)


garbage_policy: Final = GarbagePolicy()
