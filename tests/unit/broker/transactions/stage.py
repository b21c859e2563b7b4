"""A coordinator over a store whose writes a test holds back, and participants that it answers."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from magnetar.broker.transactions.coordinator import Caller, Coordinator, Limits
from magnetar.broker.transactions.groups import GroupWriter
from magnetar.broker.transactions.participants import Notifier
from magnetar.core.clock import SystemClock
from magnetar.core.errors import ServiceNotReady
from magnetar.core.steady_clock import SteadyClock
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataUnavailable, Operation
from magnetar.transactions.model import Outcome, TransactionRecord, TxnId
from magnetar.transactions.records import decode_record, record_key

TOPIC = "persistent://public/default/t"
OTHER = "persistent://public/default/u"
TURNS = 60


async def turns(number: int = TURNS) -> None:
    """Runs the event loop until every task waits."""
    for _ in range(number):
        await asyncio.sleep(0)


class SetClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000
        self.leap_ms = 0
        """How far the wall clock is ahead."""

    def now_ms(self) -> int:
        return self.ms + self.leap_ms

    def monotonic(self) -> float:
        return self.ms / 1000


@dataclass
class HeldWrite:
    """A transaction of the store that waits for the test."""

    land: Callable[[], Awaitable[int]]
    answer: "asyncio.Future[int]" = field(default_factory=lambda: asyncio.Future())

    async def lands(self) -> None:
        """The write reaches the store and is answered."""
        try:
            revision = await self.land()
        except Exception as error:  # noqa: BLE001 - it is the answer
            if not self.answer.done():
                self.answer.set_exception(error)
        else:
            if not self.answer.done():
                self.answer.set_result(revision)

    async def lands_unanswered(self) -> None:
        """The write reaches the store; its answer is lost."""
        with suppress(Exception):
            await self.land()
        self.is_lost()

    def is_lost(self) -> None:
        """There is no answer (yet): the write may land later, or never."""
        if not self.answer.done():
            self.answer.set_exception(MetadataUnavailable("no answer came"))


class HoldingStore(MemoryStore):
    """While `holding`, transactions wait in `held`."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.holding = False
        self.held: list[HeldWrite] = []
        self.transactions = 0

    async def transact(self, operations: Sequence[Operation]) -> int:
        self.transactions += 1
        transact = super().transact
        if not self.holding:
            return await transact(operations)
        held = HeldWrite(lambda: transact(operations))
        self.held.append(held)
        return await held.answer


class ToldParticipants:
    """Participants that note each end, and answer at once unless the test holds them back."""

    def __init__(self) -> None:
        self.told: list[tuple[str, TxnId, Outcome]] = []
        self.failing: set[str] = set()
        self.holding = False
        self.held: list[asyncio.Future[None]] = []

    def end_on_topic_at_once(self, topic: str, txn: TxnId, outcome: Outcome) -> bool:
        """Every end may wait."""
        return False

    async def end_on_topic(self, topic: str, txn: TxnId, outcome: Outcome) -> None:
        await self._told(topic, txn, outcome)

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, outcome: Outcome
    ) -> None:
        await self._told(f"{topic} {subscription}", txn, outcome)

    async def _told(self, name: str, txn: TxnId, outcome: Outcome) -> None:
        if name in self.failing:
            raise ServiceNotReady(f"{name} is being moved")
        if self.holding:
            self.held.append(future := asyncio.get_running_loop().create_future())
            await future
        self.told.append((name, txn, outcome))


class Stage:
    """A store, participants, a clock, and the coordinators that take over from each other."""

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self.store = HoldingStore()
        self.participants = ToldParticipants()
        self.set_clock = SetClock()
        self.clock = SteadyClock(self.set_clock)
        self.limits = limits
        self.connection = Connection()

    async def load(self, broker: str = "a") -> Coordinator:
        """A coordinator that has taken over."""
        rng = random.Random(1)
        notifier = Notifier(self.participants, at_once=8, timeout_s=30.0, random=rng)
        groups = GroupWriter(self.store, rng)
        return await Coordinator.load(0, groups, broker, notifier, self.clock, rng, self.limits)

    async def stored(self, txn: TxnId) -> TransactionRecord | None:
        """The record in the store."""
        record = await self.store.get(record_key(txn))
        return None if record is None else decode_record(record.key, record.value)

    def caller(
        self, role: str | None = None, connection: object | None = None, *, super_user: bool = False
    ) -> Caller:
        """A client; by default on the stage's own connection."""
        return Caller(role, super_user, connection or self.connection)


class Connection:
    """Identifies a connection."""
