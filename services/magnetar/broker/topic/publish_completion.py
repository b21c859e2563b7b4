"""The answer to one run of messages, once its append has succeeded or failed."""

import time
from dataclasses import dataclass
from typing import Protocol

from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.deduplication.deduplication import Deduplication
from magnetar.broker.topic.deduplication.sequences import ProducerSequence
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.producers import ProducerRegistry
from magnetar.core.errors import MagnetarError, TopicTerminated
from magnetar.wire.events import SendRun


class PublishedTopic(Protocol):
    """The topic of a run."""

    counters: TopicCounters
    deduplication: Deduplication | None
    producers: ProducerRegistry

    def now_ms(self) -> int:
        """Returns the wall-clock time."""

    def publish_failed(self, error: MagnetarError) -> None:
        """Disconnects every producer."""


@dataclass(slots=True)
class PublishCompletion:
    """Answers one run once its append has succeeded or failed."""

    topic: PublishedTopic
    producer: Producer
    run: SendRun
    sequence: ProducerSequence | None
    """The ids of the producer, if deduplication judged the run."""
    recorded: int
    """The id that the run records once it is stored, or NONE."""
    started: float = 0.0

    def __post_init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, ledger_id: int, first_entry_id: int, error: MagnetarError | None) -> None:
        producer, run, topic = self.producer, self.run, self.topic
        producer.pending_runs -= 1
        if error is not None:
            if isinstance(error, TopicTerminated):
                # No SEND_ERROR: Go's client would then wait for its send timeout. Producers are
                # disconnected instead, and get the reason when they reconnect.
                topic.producers.close_all()
                producer.sink.send_errors(producer, run, error)
            else:
                producer.sink.send_errors(producer, run, error)
                topic.publish_failed(error)
            if self.sequence is not None:
                self.sequence.failed()
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
        if self.sequence is not None:
            self.sequence.stored(self.recorded)
        deduplication = topic.deduplication
        if deduplication is not None and not deduplication.has(producer.name, self.sequence):
            deduplication.stored_unjudged(producer, run)
        if producer.on_answered is not None:
            producer.on_answered()
