"""The interface of a subscription, persistent or not, for sessions and topics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.transactions.model import TxnId

AckPosition = tuple[int, int, int | None, int]
"""(ledger id, entry id, ack set or None, batch size)."""
OnDone = Callable[[MagnetarError | None], None]
"""Called with None once the acknowledgment is durable, else with the error."""


class Subscription(Protocol):
    """Consumers that share one position in a topic.

    Every method that takes a consumer may be called at any time, also after the consumer was
    detached; it then does nothing, except that `ack` reports ConsumerNotFound.
    """

    name: str

    @property
    def type(self) -> SubType | None:
        """The type of the attached consumers, or of the last ones; None before the first."""

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The attached consumers."""

    @property
    def durable(self) -> bool:
        """Whether the subscription outlives its consumers."""

    @property
    def mark_delete(self) -> Position:
        """The mark-delete position; EARLIEST for a subscription that keeps none."""

    @property
    def backlog(self) -> int | None:
        """Unacknowledged entries; None for a subscription that keeps no position."""

    @property
    def backlog_bytes(self) -> int:
        """The estimated size of the backlog; 0 for a subscription that keeps no position."""

    @property
    def unused(self) -> bool:
        """Whether all statistics but the backlog are still zero."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The subscription's properties; empty if it keeps no position."""

    def set_limits(self, limits: SubscriptionLimits) -> None:
        """Replaces the limits at once; attached consumers stay."""

    async def add_consumer(self, consumer: Consumer) -> None:
        """Attaches a consumer; raises ConsumerBusy, ConsumerAssignError or ServiceNotReady."""

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detaches a consumer and redelivers its entries to others. Idempotent."""

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Adds permits of a consumer and dispatches."""

    def ack_one(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Acknowledges one whole entry, without an answer."""

    def ack(
        self,
        consumer: Consumer,
        positions: Sequence[AckPosition],
        cumulative: bool = False,
        on_done: OnDone | None = None,
    ) -> None:
        """Acknowledges entries or parts of batches; `on_done` gets every error."""

    def ack_in_transaction(
        self,
        consumer: Consumer,
        txn: TxnId,
        positions: Sequence[AckPosition],
        cumulative: bool,
        on_done: OnDone,
    ) -> None:
        """Acknowledges in a transaction; the acks count once it commits.

        `on_done` gets every error, also NotAllowed if the subscription keeps no position.
        """

    def redeliver(
        self,
        consumer: Consumer,
        positions: list[tuple[int, int]] | None = None,
        epoch: int | None = None,
    ) -> None:
        """Redelivers the given positions of a consumer, or all of its unacknowledged entries."""

    def on_writable(self, consumer: Consumer) -> None:
        """Resumes dispatch after a consumer's connection has drained."""

    async def seek(self, position: Position, ack_set: int | None = None) -> None:
        """Moves the cursor to `position`, and closes all consumers, which then reattach.

        `ack_set` has the bits of the batch that stay undelivered. Raises NotAllowed if the
        subscription keeps no position, and the metadata store's errors.
        """

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """Seeks to the first entry published at or after that time; raises as `seek` does."""

    async def clear_backlog(self) -> None:
        """Acknowledges all entries; does nothing if the subscription keeps no position."""

    def discard(self) -> None:
        """Frees a subscription that ends with its last consumer, which has just left."""

    def end(self, destination: BrokerRecord | None = None) -> None:
        """Closes all consumers, which reattach, at `destination` if given. Idempotent, final."""

    def update_rates(self) -> None:
        """Computes the rates of the last RATE_PERIOD_S; call once per period."""

    def stats(self) -> SubscriptionStats:
        """The subscription's part of `topics stats`."""
