"""The subscription whose dead letters are moved, on this broker: what is acked, and acks."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.redrive.letters import Letter, Skip
from magnetar.broker.subscription.api import AckPosition, OnDone
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import ConsumerSpec, SubType
from magnetar.core.clock import Clock
from magnetar.core.errors import (
    Conflict,
    MagnetarError,
    ServiceNotReady,
    TransactionConflict,
)
from magnetar.core.futures import settle
from magnetar.core.ids import Position
from magnetar.transactions.model import TxnId


class _NoConnection:
    """The connection of the redrive, which is in this process and takes no deliveries."""

    writable = False
    address = "redrive"
    client_version = ""
    protocol_version = 0

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], epoch: int | None) -> None:
        """Never called: the redrive is no consumer of the dispatcher."""

    def active_consumer_change(self, consumer_id: int, *, active: bool) -> None:
        """Never called, as `deliver`."""

    def end_of_topic(self, consumer_id: int) -> None:
        """Never called, as `deliver`."""

    def close_consumer(self, consumer_id: int, destination: BrokerRecord | None = None) -> None:
        """Never called, as `deliver`."""

    async def is_alive(self) -> bool:
        return True


class DeadLetters:
    """Acks the letters that are moved, unless a consumer or another transaction has them."""

    def __init__(self, subscription: PersistentSubscription, clock: Clock) -> None:
        self.subscription = subscription
        spec = ConsumerSpec(0, "redrive", SubType.Shared)
        self._acker = Consumer(spec, _NoConnection(), clock)
        self._acker.attached = True

    def check(self) -> None:
        """Raises ServiceNotReady or Conflict if nothing can be moved from here (any more)."""
        subscription = self.subscription
        if subscription.closed or subscription.suspended:
            raise ServiceNotReady(
                f"Topic {subscription.topic} is being closed or moved, or subscription "
                f"{subscription.name} was deleted. Start the redrive again: it continues"
            )
        sub_type = subscription.type
        if subscription.consumers and (sub_type is None or not sub_type.individual_only):
            raise Conflict(
                f"Subscription {subscription.name} has a consumer of the type "
                f"{'None' if sub_type is None else sub_type.name}, which may hold any of its "
                "messages: close it, or use Shared or Key_Shared"
            )

    def is_done(self, position: Position) -> bool:
        """Whether the whole entry is acked."""
        return self.subscription.cursor.is_acked(*position)

    def withheld(self, position: Position) -> bool:
        """Whether the entry is acked in an open transaction as a whole."""
        cursor = self.subscription.cursor
        pending = cursor.pending
        return pending is not None and pending.withholds(*position)

    def standing(self, letter: Letter) -> Skip | bool:
        """Returns whether a letter can be moved now, else why not; False if it is acked."""
        subscription, key = self.subscription, letter.position
        cursor = subscription.cursor
        if cursor.is_acked(*key):
            return False
        if self.withheld(key):
            return Skip.IN_TRANSACTION
        left = cursor.remaining_batch(*key)
        if left is not None and not left >> letter.index & 1:
            pending = None if cursor.pending is None else cursor.pending.left_of(key, None)
            withheld = pending is not None and not pending >> letter.index & 1
            return Skip.IN_TRANSACTION if withheld else False
        if any(consumer.held(*key) for consumer in subscription.consumers):
            return Skip.HELD
        return True

    async def join(self, txn: TxnId) -> None:
        """Makes the transaction known here, so that `take` needs no wait.

        The coordinator must have the subscription already. The caller sets a deadline.
        """
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ack(txn, (), lambda error: settle(joined, error))
        await joined

    def take(self, txn: TxnId, letters: Iterable[Letter]) -> tuple[list[Letter], Counter[Skip]]:
        """Acks letters in a transaction that was joined; returns those that were not taken yet.

        No consumer can get a letter between the check and the ack: there is no wait. `durable`
        returns once the acks are stored.
        """
        self.check()
        taken, skipped = [], Counter[Skip]()
        for letter in letters:
            standing = self.standing(letter)
            if isinstance(standing, Skip):
                skipped[standing] += 1
            elif standing:
                error = self._ack_one(txn, letter)
                if error is None:
                    taken.append(letter)
                elif isinstance(error, TransactionConflict):
                    skipped[Skip.IN_TRANSACTION] += 1
                else:
                    raise error
        return taken, skipped

    async def durable(self) -> None:
        """Returns once all acks are stored."""
        await self.subscription.cursor.flush()

    def _ack_one(self, txn: TxnId, letter: Letter) -> MagnetarError | None:
        """Returns why the ack was refused, None if it is pending."""
        refusals: list[MagnetarError] = []
        acking = True

        def done(error: MagnetarError | None) -> None:
            if acking and error is not None:
                refusals.append(error)

        left = letter.left
        size = letter.batch_size if left else 0
        self._ack(txn, ((*letter.position, left or None, size),), done)
        acking = False
        return refusals[0] if refusals else None

    def _ack(self, txn: TxnId, positions: Sequence[AckPosition], done: OnDone) -> None:
        transactions = self.subscription.transactions
        transactions.ack(self._acker, txn, positions, cumulative=False, on_done=done)
