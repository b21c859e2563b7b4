"""What the blocking and the asyncio classes of the official client tell in the same way."""

from magnetar.client import sync


class ProducerFacts:
    """The facts of a producer."""

    _producer: "sync.Producer[bytes]"

    def topic(self) -> str:
        """The full name of the topic."""
        return self._producer.topic

    def producer_name(self) -> str:
        """The name by which the broker knows the producer."""
        return self._producer.name

    def last_sequence_id(self) -> int:
        """The highest sequence id that was stored; -1 before the first."""
        return self._producer.last_sequence_id

    def is_connected(self) -> bool:
        """Whether the broker knows the producer now."""
        return self._producer.connected


class ConsumerFacts:
    """The facts of a consumer."""

    _consumer: "sync.Consumer[bytes]"
    _topic: str

    def topic(self) -> str:
        """The full name of the topic; several names are joined by commas."""
        return self._topic

    def subscription_name(self) -> str:
        """The name of the subscription."""
        return self._consumer.subscription

    def consumer_name(self) -> str:
        """The name of the consumer."""
        return self._consumer.options.name


class ReaderFacts:
    """The facts of a reader."""

    _reader: "sync.Reader[bytes]"
    _topic: str

    def topic(self) -> str:
        """The full name of the topic."""
        return self._topic

    def is_connected(self) -> bool:
        """Whether the broker knows the reader now."""
        return self._reader.connected
