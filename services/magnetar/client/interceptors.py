"""Step 2, interceptors: users' code that sees each message on its way out or in.

Subclass and override what is needed. An exception of `before_send` refuses the message; one of any
other method is logged, and the message goes on.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from magnetar.core.log import get_logger

if TYPE_CHECKING:
    from magnetar.client.message import Message
    from magnetar.client.message_id import MessageId
    from magnetar.client.producer.outgoing import OutgoingMessage


log = get_logger("magnetar.client.interceptors")


def notify(interceptors: Iterable[Any], method: str, *arguments: Any) -> None:
    """Calls a method of each interceptor; what it raises is logged."""
    for interceptor in interceptors:
        try:
            getattr(interceptor, method)(*arguments)
        except Exception as error:  # noqa: BLE001  # users' code may raise anything
            log.error("interceptor failed", method=method, error=repr(error))


class ProducerInterceptor:
    """Sees the messages of a producer."""

    def before_send(self, topic: str, message: "OutgoingMessage") -> "OutgoingMessage":
        """Returns the message to send: the same, changed or another."""
        return message

    def on_sent(
        self,
        topic: str,
        message: "OutgoingMessage",
        message_id: "MessageId | None",
        error: BaseException | None,
    ) -> None:
        """Called when the message is stored, or has failed."""

    def close(self) -> None:
        """Called when the producer is closed."""


class ConsumerInterceptor:
    """Sees the messages of a consumer."""

    def before_consume(self, message: "Message[Any]") -> "Message[Any]":
        """Returns the message to deliver: the same, changed or another."""
        return message

    def on_ack(self, topic: str, message_id: "MessageId", error: BaseException | None) -> None:
        """Called when an acknowledgment was recorded, or has failed."""

    def on_negative_ack(self, topic: str, message_id: "MessageId") -> None:
        """Called when a message was negatively acknowledged."""

    def on_ack_timeout(self, topic: str, message_id: "MessageId") -> None:
        """Called when a message is redelivered because its ack timeout has passed."""

    def close(self) -> None:
        """Called when the consumer is closed."""
