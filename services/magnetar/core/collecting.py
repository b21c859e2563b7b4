"""Keeps the garbage collector's pauses short in a process that holds very many objects for long.

A topic is some seventy objects that live as long as the topic is served. Python's collector looks
through all of them again whenever their number has grown by a quarter: with a hundred thousand
topics that takes seconds, in which nothing else runs and no lease is renewed. So what has survived
a pass that took longer than PASS_S_MAX is set aside (`gc.freeze`): later passes leave it out.

What is set aside and then let go of is garbage that nobody finds, where it refers to itself, as
closed topics do. `let_go` counts; once more was let go of than is left, all is looked through once.
So garbage at most doubles the memory, and a long pass comes only when at least half is garbage.
"""

import gc
import time
from typing import Final

PASS_S_MAX: Final = 0.05
LET_GO_MIN: Final = 10_000
"""Fewer topics than that are not worth a long pass."""


class Collecting:
    """See the module's text. One per process: `begin` once it serves."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._begun = False
        self._let_go = 0
        self.frozen = 0
        """How often something was set aside."""

    def begin(self) -> None:
        """From now on. Idempotent."""
        if not self._begun:
            self._begun = True
            gc.callbacks.append(self._passed)

    def _passed(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._began_s = time.perf_counter()
        elif time.perf_counter() - self._began_s > PASS_S_MAX:
            gc.freeze()
            self.frozen += 1

    def let_go(self, count: int, left: int) -> None:
        """So many topics were closed, and so many are left."""
        self._let_go += count
        if self.frozen and self._let_go > max(LET_GO_MIN, left):
            self._let_go = 0
            gc.unfreeze()


collecting: Final = Collecting()
