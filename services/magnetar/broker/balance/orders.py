"""Orders: how the leader makes a bundle's owner move or split it, through the metadata store.

The leader writes `/balance/orders/{broker}/{bundle}` on condition that it still leads. The broker
follows its orders, carries each out within ORDER_TIMEOUT_S, and writes the result into the order.
The leader reads results and deletes the orders; it also deletes orders of dead brokers and those
without a result for ORDER_LOST_S. There are no direct calls: a broker or leader may die at any
time, and the next leader deletes the remaining orders.

Carrying out an order twice does no harm, because a broker moves only bundles that it owns. A broker
refuses orders that are older than its process.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, Protocol

import msgspec

from magnetar.broker.balance.leader import Leadership
from magnetar.broker.balance.model import (
    ORDERS_PREFIX,
    Decision,
    Move,
    Order,
    Split,
    decode_order,
    order_key,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.follower import Follower
from magnetar.metadata.records import encode
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    Delete,
    MetadataStore,
    Operation,
    Put,
    Record,
    StoreClosed,
)

ORDER_TIMEOUT_S: Final = 60.0
ORDER_LOST_S: Final = 180.0
"""An order without a result for this long is deleted."""
ORDERS_AT_ONCE_MAX: Final = 4
OPERATIONS_MAX: Final = 100
CALL_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
TEXT_CHARACTERS_MAX: Final = 500

log = get_logger("magnetar.balance")


class Owner(Protocol):
    """The bundles of this broker, as orders change them."""

    def owns(self, bundle: str) -> bool:
        """Whether this broker owns the bundle."""

    async def unload(self, bundle: str, destination: str | None) -> None:
        """Hands the bundle over to `destination`, or to the best other broker."""

    async def split(self, bundle: str, algorithm: str, *, unload: bool) -> None:
        """Splits the bundle; with `unload`, hands over the parts afterwards."""


class OrderTaker:
    """Carries out this broker's orders."""

    def __init__(self, store: MetadataStore, broker_id: str, owner: Owner, tasks: TaskSet) -> None:
        self._store = store
        self._owner = owner
        self._tasks = tasks
        self._born = 0
        self._turn = asyncio.Semaphore(ORDERS_AT_ONCE_MAX)
        self._prefix = f"{ORDERS_PREFIX}{broker_id}/"

    async def run(self) -> None:
        """Follows the orders until the store is closed."""
        while not self._born:
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    self._born = max(await self._store.revision(), 1)
            except StoreClosed:
                return
            except (MagnetarError, TimeoutError) as error:
                log.info("orders not followed yet, retrying", error=str(error))
                await asyncio.sleep(RETRY_S)
        await Follower(self._store, self._prefix, self._changed).run()

    def _changed(self, _key: str, record: Record | None) -> None:
        if record is None:
            return
        try:
            order = decode_order(record.key, record.value)
        except MetadataError as error:
            log.warning("unreadable order ignored", error=str(error))
            return
        if order.state == "issued":
            self._tasks.start(self._execute(record, order), f"order {order.kind} {order.bundle}")

    async def _execute(self, record: Record, order: Order) -> None:
        async with self._turn:
            state, result = "done", ""
            try:
                await self._apply(record, order)
            except TimeoutError:
                state, result = "failed", f"not done within {ORDER_TIMEOUT_S:.0f} s"
            except MagnetarError as error:
                state, result = "failed", error.message[:TEXT_CHARACTERS_MAX]
            except Exception as error:
                log.exception("order failed", bundle=order.bundle)
                state, result = "failed", repr(error)[:TEXT_CHARACTERS_MAX]
            log.info(
                "order executed", kind=order.kind, bundle=order.bundle, state=state, result=result
            )
            answered = msgspec.structs.replace(order, state=state, result=result)
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await self._store.put(record.key, encode(answered), expected=record.revision)
            except (MagnetarError, TimeoutError) as error:
                # The leader has deleted the order, or will.
                log.info("result not written", bundle=order.bundle, error=str(error))

    async def _apply(self, record: Record, order: Order) -> None:
        if record.revision <= self._born:
            raise MagnetarError("it was given to an earlier process of this broker")
        if not self._owner.owns(order.bundle):
            raise MagnetarError("the bundle is not owned here")
        async with asyncio.timeout(ORDER_TIMEOUT_S):
            if order.kind == "unload":
                await self._owner.unload(order.bundle, order.destination)
            else:
                await self._owner.split(order.bundle, order.algorithm, unload=order.unload_parts)


class OrderIssuer:
    """Issues the leader's orders and collects their results."""

    def __init__(self, store: MetadataStore, leadership: Leadership, clock: Clock) -> None:
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._seen: dict[str, float] = {}

    async def issue(self, decisions: Sequence[Decision], *, unload_parts: bool) -> int:
        """Writes the orders for the decisions; returns their number."""
        written = 0
        for decision in decisions:
            order = self._order(decision, unload_parts=unload_parts)
            if order is None:
                continue
            assert isinstance(decision, Move | Split)  # noqa: S101 - `_order` returned an order
            key = order_key(decision.source, order.bundle)
            operations: list[Operation] = [
                self._leadership.check(),
                Put(key, encode(order), ABSENT),
            ]
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await self._store.transact(operations)
            except BadRevision as error:
                log.info("order not issued", bundle=order.bundle, error=str(error))
                continue
            written += 1
        return written

    def _order(self, decision: Decision, *, unload_parts: bool) -> Order | None:
        now_ms = self._clock.now_ms()
        match decision:
            case Move(bundle=bundle, target=target):
                return Order(kind="unload", bundle=bundle, issued_ms=now_ms, destination=target)
            case Split(bundle=bundle, algorithm=algorithm):
                return Order(
                    kind="split",
                    bundle=bundle,
                    issued_ms=now_ms,
                    algorithm=algorithm,
                    unload_parts=unload_parts,
                )
        return None

    async def collect(self, living: Collection[str]) -> tuple[list[Order], list[Order]]:
        """Returns (finished, pending) orders; deletes the finished, lost and orphaned ones."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            records = await self._store.list(ORDERS_PREFIX)
        now_s = self._clock.monotonic()
        finished: list[Order] = []
        under_way: list[Order] = []
        removed: list[Record] = []
        for record in records:
            try:
                order = decode_order(record.key, record.value)
            except MetadataError:
                removed.append(record)
                continue
            since_s = self._seen.setdefault(record.key, now_s)
            broker = record.key.removeprefix(ORDERS_PREFIX).partition("/")[0]
            if order.state == "issued" and broker not in living:
                order = msgspec.structs.replace(order, state="failed", result=f"{broker} is gone")
            elif order.state == "issued" and now_s - since_s > ORDER_LOST_S:
                order = msgspec.structs.replace(order, state="failed", result="no result came")
            if order.state == "issued":
                under_way.append(order)
            else:
                finished.append(order)
                removed.append(record)
        keys = {record.key for record in records}
        self._seen = {key: at for key, at in self._seen.items() if key in keys}
        await self._remove(removed)
        return finished, under_way

    async def _remove(self, records: Sequence[Record]) -> None:
        for start in range(0, len(records), OPERATIONS_MAX):
            batch = records[start : start + OPERATIONS_MAX]
            check: Check = self._leadership.check()
            operations: list[Operation] = [check]
            operations += [Delete(record.key) for record in batch]
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._store.transact(operations)
            for record in batch:
                self._seen.pop(record.key, None)
