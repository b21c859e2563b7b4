"""What reading a log needs: the metadata store, the bookies, and who writes the newest ledger."""

from dataclasses import dataclass, field
from typing import Protocol

from magnetar.core.names import TopicName
from magnetar.jobs.log.transactions.visible import Settled
from magnetar.ledger.bookies import BookieSet
from magnetar.ledger.context import LedgerContext
from magnetar.metadata.store import MetadataStore


class Writers(Protocol):
    """Knows the brokers that write newest ledgers."""

    async def confirmed(self, topic: TopicName, ledger_id: int) -> int:
        """The last entry that the broker may serve; -1 if the ledger is not its newest."""


@dataclass(frozen=True, slots=True)
class Log:
    """The stores and settings of an open log."""

    store: MetadataStore
    bookies: BookieSet
    context: LedgerContext
    admin: Writers | None
    """Asked if the bookies do not know the newest entries to be confirmed."""
    settled: dict[TopicName, Settled] = field(default_factory=dict)
    """What earlier reads found out about the transactions of logs; may outlive this object."""
