"""What a blocking call hands on, and what becomes of a result whose caller was interrupted."""

from typing import TYPE_CHECKING, Any, TypeVar

from magnetar.client.message import Message
from magnetar.client.opening import Closable

if TYPE_CHECKING:
    from magnetar.client.sync.transaction import Transaction
    from magnetar.client.transaction.transaction import Transaction as AsyncTransaction

T = TypeVar("T")


def inner_of(transaction: "Transaction | None") -> "AsyncTransaction | None":
    """Returns the transaction of the asyncio client."""
    return None if transaction is None else transaction._inner


async def closed(opened: Closable) -> None:
    """Closes a producer, consumer, reader or view that has no user."""
    await opened.close()


async def aborted(transaction: "AsyncTransaction") -> None:
    """Aborts a transaction that has no user."""
    await transaction.abort()


def untaken(message: Message[Any] | None) -> None:
    """Returns a message, if there is one, to the receiver queue."""
    if message is not None:
        message.entry.source.untake(message)


def all_untaken(messages: list[Message[Any]]) -> None:
    """Returns messages to the receiver queue, in their order."""
    for message in reversed(messages):
        untaken(message)
