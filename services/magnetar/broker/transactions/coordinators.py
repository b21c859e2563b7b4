"""The coordinators that this broker serves, for as long as it owns their partitions.

The owner of a partition of the assign topic serves its coordinator. A coordinator is loaded by the
first request for it, or within TICK_S when this broker owns its partition and it has transactions:
so a transaction that was ending, or past its deadline, when a broker died ends without its client.
Brokers therefore also claim the partitions of used coordinators that no broker owns.

A partition may move to another broker and back before this one has noticed the loss. What is loaded
is therefore valid for one tenure of the partition only: a coordinator of a former one does not know
what the other broker has begun and decided.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from magnetar.broker.ownership.api import Ownership
from magnetar.broker.transactions.assignment import COORDINATORS_MAX, assign_partition
from magnetar.broker.transactions.coordinator import Coordinator, Limits
from magnetar.broker.transactions.groups import GroupWriter
from magnetar.broker.transactions.participants import Notifier
from magnetar.core.backoff import Random
from magnetar.core.causes import Causes
from magnetar.core.errors import (
    MagnetarError,
    MetadataError,
    TransactionCoordinatorNotFound,
)
from magnetar.core.log import get_logger
from magnetar.core.steady_clock import SteadyClock
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import MetadataStore
from magnetar.transactions.records import PREFIX

TICK_S: Final = 0.25
"""How often deadlines, ownership and outcomes are checked."""
CLAIM_INTERVAL_S: Final = 30.0
"""How often partitions of used coordinators without an owner are claimed."""
LOAD_TIMEOUT_S: Final = 30.0
CLAIM_TIMEOUT_S: Final = 10.0

log = get_logger("magnetar.transactions")


class Coordinators:
    """Loads, finds and closes coordinators. `start` it once, then `stop` it."""

    def __init__(
        self,
        store: MetadataStore,
        ownership: Ownership,
        broker: str,
        notifier: Notifier,
        clock: SteadyClock,
        random: Random,
        limits: Limits,
    ) -> None:
        """`broker` names this process: the broker's id and the number of its start."""
        self._groups = GroupWriter(store, random)
        self._ownership = ownership
        self._broker = broker
        self._notifier = notifier
        self._clock = clock
        self._random = random
        self._limits = limits
        self._tasks = TaskSet("transaction coordinators")
        self._serving: dict[int, Coordinator] = {}
        self._tenures: dict[int, int | None] = {}
        """The tenure of its partition in which each of `_serving` was loaded."""
        self._loading: dict[int, asyncio.Task[Coordinator | MagnetarError]] = {}
        self._used: set[int] = set()
        """Coordinators that have a head in the store."""
        self._causes = Causes()
        self._stopped = False

    @property
    def serving(self) -> Mapping[int, Coordinator]:
        """The loaded coordinators by id, read-only."""
        return MappingProxyType(self._serving)

    def start(self) -> None:
        """Starts the periodic work."""
        self._tasks.start(self._run(), "tick")
        self._tasks.start(self._claim(), "claim")

    async def stop(self) -> None:
        """Closes all coordinators. The next owner continues the ends under way."""
        self._stopped = True
        await self._tasks.stop()
        for id_ in list(self._serving):
            await self._serving.pop(id_).close()
        await self._groups.stop()

    def loaded(self, id_: int) -> Coordinator | None:
        """Returns a coordinator that is loaded and served here, None if `get` must decide."""
        coordinator = self._serving.get(id_)
        if coordinator is None or not self._is_current(id_, coordinator):
            return None
        return coordinator

    def _is_current(self, id_: int, coordinator: Coordinator) -> bool:
        """Whether a loaded coordinator may answer: no other broker has served it meanwhile."""
        return (
            self._serving.get(id_) is coordinator
            and not coordinator.failed
            and self._owns(id_)
            and self._tenures[id_] == self._ownership.tenure(assign_partition(id_))
        )

    async def get(self, id_: int) -> Coordinator:
        """Returns a loaded coordinator. Raises TransactionCoordinatorNotFound if it is elsewhere.

        Clients look its partition up again and retry on that error.
        """
        if not self._owns(id_):
            raise TransactionCoordinatorNotFound(
                f"Transaction coordinator with id {id_} not found on this broker: "
                "look up its partition of the assign topic again"
            )
        if (coordinator := self.loaded(id_)) is not None:
            return coordinator
        loaded = await self._loaded(id_)
        if isinstance(loaded, MagnetarError):
            raise TransactionCoordinatorNotFound(
                f"Transaction coordinator {id_} is not loaded yet: {loaded.message}"
            )
        return loaded

    def _owns(self, id_: int) -> bool:
        return (
            not self._stopped
            and 0 <= id_ < COORDINATORS_MAX
            and self._ownership.owns(assign_partition(id_))
        )

    async def _loaded(self, id_: int) -> Coordinator | MagnetarError:
        loading = self._loading.get(id_)
        if loading is None:
            loading = self._tasks.start(self._load(id_), f"load {id_}")
            if loading is None:
                return TransactionCoordinatorNotFound("The broker is shutting down, please retry")
            self._loading[id_] = loading
            loading.add_done_callback(lambda _: self._loading.pop(id_, None))
        try:
            # Shielded: other requests wait for it, too.
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            if loading.cancelled():
                return TransactionCoordinatorNotFound("The broker is shutting down, please retry")
            raise

    async def _load(self, id_: int) -> Coordinator | MagnetarError:
        """Loads a coordinator; returns an error, since several requests may wait for this task."""
        if (former := self._serving.pop(id_, None)) is not None:
            await former.close()
        tenure = self._ownership.tenure(assign_partition(id_))
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                coordinator = await Coordinator.load(
                    id_,
                    self._groups,
                    self._broker,
                    self._notifier,
                    self._clock,
                    self._random,
                    self._limits,
                )
        except TimeoutError:
            return MetadataError(f"its records were not read in {LOAD_TIMEOUT_S:g} s")
        except MagnetarError as error:
            if self._causes.is_new(str(id_), error.message):
                log.warning("coordinator not loaded", coordinator=id_, error=error.message)
            return error
        if not self._owns(id_) or tenure != self._ownership.tenure(assign_partition(id_)):
            await coordinator.close()
            return TransactionCoordinatorNotFound(f"Coordinator {id_} moved to another broker")
        self._serving[id_], self._tenures[id_] = coordinator, tenure
        self._used.add(id_)
        log.info("transaction coordinator loaded", coordinator=id_, epoch=coordinator.epoch)
        return coordinator

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._tick()
            except Exception:
                # A bug. Without ticks, no transaction would time out.
                log.exception("tick of transaction coordinators failed")

    async def _tick(self) -> None:
        for id_, coordinator in list(self._serving.items()):
            if not self._is_current(id_, coordinator):
                if self._serving.get(id_) is coordinator:
                    del self._serving[id_]
                await coordinator.close()
            else:
                coordinator.tick()
        for id_ in self._used:
            if id_ not in self._serving and id_ not in self._loading and self._owns(id_):
                self._tasks.start(self._loaded(id_), f"load used {id_}")

    async def _claim(self) -> None:
        """Finds the used coordinators, and has a broker claim each partition that has no owner."""
        while True:
            try:
                async with asyncio.timeout(CLAIM_TIMEOUT_S):
                    heads = await self._groups.store.children(PREFIX)
                    self._used.update(int(head) for head in heads if head.isdecimal())
                for id_ in sorted(self._used):
                    if not self._owns(id_):
                        async with asyncio.timeout(CLAIM_TIMEOUT_S):
                            # A look-up of an owned partition reads memory only.
                            await self._ownership.locate(assign_partition(id_), authoritative=False)
            except (MagnetarError, TimeoutError) as error:
                if self._causes.is_new("claim", str(error)):
                    log.info("coordinators not claimed", error=str(error))
            except Exception:
                log.exception("claim of transaction coordinators failed")
            await asyncio.sleep(CLAIM_INTERVAL_S * self._random.uniform(0.5, 1.0))
