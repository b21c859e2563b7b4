"""What happens to a run of messages once its append to the log is complete."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.broker.topic.producer import Producer, PublishRun
from magnetar.core.errors import MagnetarError, TopicTerminated

if TYPE_CHECKING:
    from magnetar.broker.topic.persistent import PersistentTopic


@dataclass(slots=True)
class PublishCompletion:
    """Answers one run once its append has succeeded or failed."""

    topic: "PersistentTopic"
    producer: Producer
    run: PublishRun
    started: float = 0.0

    def __post_init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, ledger_id: int, first_entry_id: int, error: MagnetarError | None) -> None:
        producer, run, topic = self.producer, self.run, self.topic
        producer.pending_runs -= 1
        if error is not None:
            if isinstance(error, TopicTerminated):
                # Nobody gets a SEND_ERROR, after which Go's client would sit out its send timeout:
                # they are sent away, and told why when they come back.
                topic.producers.close_all()
                producer.sink.send_errors(producer, run, error)
            else:
                producer.sink.send_errors(producer, run, error)
                topic.publish_failed(error)
            if producer.on_answered is not None:
                producer.on_answered()
            return
        messages = sum(run.message_counts)
        topic.counters.last_published_ms = topic.now_ms()
        producer.messages_in += messages
        producer.bytes_in += run.size_bytes
        topic.counters.published(
            run.entries, messages, run.size_bytes, time.monotonic() - self.started
        )
        producer.sink.send_receipts(producer, run, ledger_id, first_entry_id)
        if producer.on_answered is not None:
            producer.on_answered()
