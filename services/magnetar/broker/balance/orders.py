"""Orders: how the leader has a bundle's owner move or split it, through the metadata store.

The leader writes `/balance/orders/{broker}/{bundle}`, bound to its leadership; the broker follows
its own orders, carries each out within ORDER_TIMEOUT_S, and writes the result over the order. The
leader reads results and removes them; it also removes orders of brokers that died, and those that
have no result for too long. Nobody calls anybody: a broker or a leader may go at any moment, and
what is left of an order is removed by the next leader.

Carrying an order out twice does no harm: a bundle that is not owned here any more is not moved. An
order that was there before this process started is not carried out.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, Protocol

import msgspec

from magnetar.broker.balance.following import Following
from magnetar.broker.balance.leader import Leadership
from magnetar.broker.balance.model import (
    ORDERS_PREFIX,
    Decision,
    Move,
    Order,
    Split,
    decoded,
    encoded,
    order_key,
)
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
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
"""An order without a result for so long is taken back."""
ORDERS_AT_ONCE_MAX: Final = 4
OPERATIONS_MAX: Final = 100
CALL_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
TEXT_CHARACTERS_MAX: Final = 500

log = get_logger("magnetar.balance")


class Owner(Protocol):
    """What orders are carried out with."""

    def owns(self, bundle: str) -> bool: ...

    async def unload(self, bundle: str, destination: str | None) -> None: ...

    async def split(self, bundle: str, algorithm: str, *, unload: bool) -> None: ...


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
                log.info("orders not followed yet", error=str(error))
                await asyncio.sleep(RETRY_S)
        await Following(self._store, self._prefix, self._changed).run()

    def _changed(self, _key: str, record: Record | None) -> None:
        if record is None:
            return
        try:
            order = decoded(record.value, Order)
        except msgspec.MsgspecError as error:
            log.warning("order not understood", key=record.key, error=str(error))
            return
        if order.state == "issued":
            self._tasks.start(self._take(record, order), f"order {order.kind} {order.bundle}")

    async def _take(self, record: Record, order: Order) -> None:
        async with self._turn:
            state, result = "done", ""
            try:
                await self._carry_out(record, order)
            except TimeoutError:
                state, result = "failed", f"not done within {ORDER_TIMEOUT_S:.0f} s"
            except MagnetarError as error:
                state, result = "failed", error.message[:TEXT_CHARACTERS_MAX]
            except Exception as error:
                log.exception("order failed", bundle=order.bundle)
                state, result = "failed", repr(error)[:TEXT_CHARACTERS_MAX]
            log.info("order", kind=order.kind, bundle=order.bundle, state=state, result=result)
            answered = msgspec.structs.replace(order, state=state, result=result)
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await self._store.put(record.key, encoded(answered), expected=record.revision)
            except (MagnetarError, TimeoutError) as error:
                # The leader took it back, or will.
                log.info("result not written", bundle=order.bundle, error=str(error))

    async def _carry_out(self, record: Record, order: Order) -> None:
        if record.revision <= self._born:
            raise MagnetarError("it was given to an earlier process of this broker")
        if not self._owner.owns(order.bundle):
            raise MagnetarError("the bundle is not owned here")
        async with asyncio.timeout(ORDER_TIMEOUT_S):
            if order.kind == "unload":
                await self._owner.unload(order.bundle, order.destination)
            else:
                await self._owner.split(order.bundle, order.algorithm, unload=order.unload_parts)


class OrderGiver:
    """The leader's side."""

    def __init__(self, store: MetadataStore, leadership: Leadership, clock: Clock) -> None:
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._seen: dict[str, float] = {}

    async def give(self, decisions: Sequence[Decision], *, unload_parts: bool) -> int:
        """Writes the orders that the decisions need; returns how many were written."""
        written = 0
        for decision in decisions:
            order = self._order(decision, unload_parts=unload_parts)
            if order is None:
                continue
            assert isinstance(decision, Move | Split)  # noqa: S101 - others make no order
            key = order_key(decision.source, order.bundle)
            operations: list[Operation] = [
                self._leadership.check(),
                Put(key, encoded(order), ABSENT),
            ]
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await self._store.transact(operations)
            except BadRevision as error:
                log.info("order not given", bundle=order.bundle, error=str(error))
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
        """(finished, under way); what is finished, lost or left by a dead broker is removed."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            records = await self._store.list(ORDERS_PREFIX)
        now_s = self._clock.monotonic()
        finished: list[Order] = []
        under_way: list[Order] = []
        removed: list[Record] = []
        for record in records:
            try:
                order = decoded(record.value, Order)
            except msgspec.MsgspecError:
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
        known = {record.key for record in records}
        self._seen = {key: at for key, at in self._seen.items() if key in known}
        await self._remove(removed)
        return finished, under_way

    async def _remove(self, records: Sequence[Record]) -> None:
        for start in range(0, len(records), OPERATIONS_MAX):
            some = records[start : start + OPERATIONS_MAX]
            check: Check = self._leadership.check()
            operations: list[Operation] = [check]
            operations += [Delete(record.key) for record in some]
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._store.transact(operations)
            for record in some:
                self._seen.pop(record.key, None)
