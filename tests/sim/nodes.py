"""Nodes: each has a name, a host, a disk, and one process after another.

A node's `main` is started anew in each life, as a process is. Killed, it leaves its disk as the
page cache has it; with its power lost, as the disk may be found then. What runs in a node finds it
by no other way than its arguments.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.clocks import SimClock
from tests.sim.loop import Process, SimLoop
from tests.sim.network import Network
from tests.sim.promises import Promises
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.core.errors import MagnetarError

if TYPE_CHECKING:
    from tests.sim.admin import Admin
    from tests.sim.metadata import MetadataClient

    from magnetar.managed_ledger.factory import ManagedLedgerFactory

DATA_DIR: Final = Path("/data")
ORIGIN_S_MAX: Final = 1e6
SKEW_MS_MAX: Final = 5_000
RESTART_S: Final = 0.5
STARTS_FAIL_WITH: Final = (MagnetarError, OSError, TimeoutError)

Main = Callable[["Node"], Coroutine[Any, Any, None]]


class Node:
    """See the module's text."""

    def __init__(self, loop: SimLoop, network: Network, name: str, main: Main) -> None:
        self.loop, self.network, self.name = loop, network, name
        self.process: Process | None = None
        self.processes: list[Process] = []
        self.lives = 0
        self.disk: SimDisk | None = None
        self.index: dict[str, SimIndexStore] = {}
        self.disk_ms = 0.3
        self.service: Any = None
        """What the life's main coroutine has put up."""
        self.stop: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Ends the life in order, where that is possible."""
        self.admin: Admin | None = None
        """Takes an operator's requests to a broker."""
        self.store: MetadataClient | None = None
        self.ledgers: ManagedLedgerFactory | None = None
        """A broker's own."""
        self.ready = False
        self.failed_starts: list[str] = []
        self.wanted_down = False
        """A fault holds it down: it is not to be started again by itself."""
        self.capacity = 1 << 40
        self.promises = Promises()
        self.harmed = False
        """A fault has taken something from its disk for good."""
        self._main = main
        self.rng = Random(loop.rng.randrange(1 << 40))
        """What the life's own code draws from."""
        self._skew_ms = loop.rng.randint(-SKEW_MS_MAX, SKEW_MS_MAX)
        self.clock = SimClock(loop)
        self._ahead_ms = self._skew_ms

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """A new life."""
        self.lives += 1
        rng = self.loop.rng
        self._ahead_ms = max(self.ahead_ms, self._skew_ms)
        self.clock = SimClock(
            self.loop, origin_s=rng.uniform(0, ORIGIN_S_MAX), skew_ms=self._skew_ms
        )
        self.process = Process(self.loop, f"{self.name}#{self.lives}", self.name)
        self.processes.append(self.process)
        self.service, self.stop, self.admin, self.ready = None, None, None, False
        self.store = self.ledgers = None
        self.network.power_on(self.name)
        self._supervise(self.process)

    def _supervise(self, life: Process) -> None:
        """A process whose start fails ends, and is started again, as a supervisor does it."""

        def ended(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                if not isinstance(error, STARTS_FAIL_WITH):
                    self.loop.failures.append((life, "the start failed", error))
                self.failed_starts.append(repr(error))
                self.loop.at(self.loop.now, self.kill)
                self.loop.at(self.loop.now + RESTART_S, self._start_unless, life)

        life.start(self._main(self), "main").add_done_callback(ended, context=life.context.copy())

    def _start_unless(self, life: Process) -> None:
        if self.process is life and not self.wanted_down:
            self.start()

    def kill(self) -> None:
        """Kills the process; the host continues, with written data in its page cache."""
        if self.process is not None and self.process.alive:
            self.process.kill()
            self.network.killed(self.process)

    def power_off(self) -> None:
        """Powers the host off; its disk keeps synced data, and of the rest what the seed
        decides."""
        cut = self.disk is not None and self.disk.dead
        if self.process is None or not (self.process.alive or cut):
            return
        self.process.kill()
        self.network.lost_power(self.process)
        self.network.power_off(self.name)
        if self.disk is not None:
            self.disk.dead = True
            self.disk = self._prepared(self.disk.after_cut(self.loop.rng))

    def power_off_within(self, steps: int) -> None:
        """Powers the host off during one of the next steps of the disk."""
        if self.disk is not None:
            self.disk.cut_at = self.disk.steps + steps

    def jump_clock(self, milliseconds: int) -> None:
        self._skew_ms += milliseconds
        self.clock.skew_ms += milliseconds

    def set_clock(self) -> None:
        """Sets the wall clock, now and for later lives, to about the true time."""
        self._skew_ms = max(-SKEW_MS_MAX, min(self._skew_ms, SKEW_MS_MAX))
        self.clock.skew_ms = self._skew_ms

    @property
    def ahead_ms(self) -> int:
        """How far the wall clock of this node was ahead at most, up to now."""
        return max(self._ahead_ms, self.clock.skew_ms_max)

    # -- the disk --------------------------------------------------------------------------

    def mount(self, capacity: int) -> SimDisk:
        """The node's disk as this life finds it, with locks of former lives gone."""
        if self.disk is None:
            self.disk = self._prepared(SimDisk(capacity))
        return self.disk

    def wipe(self) -> None:
        """The disk was replaced by an empty one."""
        self.harmed = True
        if self.disk is not None:
            self.disk = self._prepared(SimDisk(self.disk.capacity))
            self.index.clear()

    def open_index(self, path: Path) -> SimIndexStore:
        """Opens the index store with the data that it had synced before."""
        assert self.disk is not None
        former = self.index.get(str(path))
        store = SimIndexStore(self.disk, path, former.synced if former is not None else None)
        self.index[str(path)] = store
        return store

    def _prepared(self, disk: SimDisk) -> SimDisk:
        disk.fault = self._step
        return disk

    def _step(self, kind: str, path: Path) -> OSError | None:
        if self.disk is not None and self.disk.steps + 1 == self.disk.cut_at:
            # In the middle of what it does now; nothing that it writes to anybody leaves.
            self.loop.at(self.loop.now, self.power_off)
            if self.process is not None:
                self.process.kill()
        if kind.endswith("sync") and self.process is not None:
            self.process.spend(self.disk_ms / 1000 * self.loop.rng.uniform(0.3, 2.0))
        return None
