"""The partition of a message, as Pulsar's Java client chooses it. Pure."""

from magnetar.core.hashing import java_string_hash, murmur3_32
from magnetar_spark.sink.rows import Message
from magnetar_spark.sink.settings import ProducerSettings


class Router:
    """Chooses partitions for the messages of one task."""

    def __init__(self, settings: ProducerSettings, first: int) -> None:
        """`first` is the partition of the first message without a key, modulo their number."""
        self._settings = settings
        self._first = first
        self._turns: dict[str, int] = {}

    def partition(self, message: Message, partitions: int) -> int:
        """Returns the partition: by the hash of the key, or in turn.

        Without a key, whole batches go to one partition, as the Java client sends them.
        """
        if message.key is not None:
            hashed = (
                murmur3_32(message.key.encode())
                if self._settings.murmur_hash
                else java_string_hash(message.key)
            )
            return hashed % partitions
        if not self._settings.round_robin:
            return self._first % partitions
        return (self._first + self._turns.get(message.topic, 0)) % partitions

    def sent(self, topic: str) -> None:
        """Turns to the next partition of the topic, after a batch without keys."""
        self._turns[topic] = self._turns.get(topic, 0) + 1
