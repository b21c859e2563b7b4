"""Keeps the garbage collector's passes short in a process that holds very many objects for long.

A topic is some seventy objects that live as long as the topic is served. Python's collector walks
all of them again whenever their number has grown by a quarter: with a hundred thousand topics that
takes seconds, in which nothing else runs and no lease is renewed. So what has survived a pass that
took longer than PASS_S_MAX is set aside (`gc.freeze`), and later passes leave it out.

A frozen object that refers to itself is never freed once it is dropped. Two rules bound that:

- Components break their reference cycles when they close, so that reference counts free them.
  tests/unit/broker/test_churn.py holds them to it.
- Components report their end (`closed`). One that is alive afterwards is garbage that waits for a
  pass, or is about to be freed. Once these are many, and more than the live ones could fill, the
  next pass includes everything (`gc.unfreeze`).

So garbage at most doubles the memory, and a long pass comes only when at least half is garbage.
"""

import gc
import time
import weakref
from typing import Final

PASS_S_MAX: Final = 0.05
CLOSED_ALIVE_MAX: Final = 10_000
"""Fewer closed components than that are not worth a long pass."""
OBJECTS_PER_COMPONENT: Final = 70
"""About as many objects go with a topic; with a session or a subscription go fewer."""


class Collecting:
    """The garbage collector's policy of one process: call `begin` once it serves."""

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
        """Components that closed and are not freed yet."""
        return len(self._closed)

    def closed(self, component: object) -> None:
        """Reports that `component` has closed; it needs a `__weakref__`."""
        self._closed.add(component)
        if self.frozen and len(self._closed) > self._closed_alive_max:
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


collecting: Final = Collecting()
