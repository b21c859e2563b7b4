"""The gate that limits sends to a topic: publish rate, message size, required encryption.

A topic without such policies has no gate (`topic.gate` is None), and pays one check for that.

Messages within the rate are published at once. The others are held for their producer, in order,
and published when the topic has tokens, in turn with the topic's other producers; their receipts
are sent once they are stored. Limiters that several topics share come after the topic's (`chain`).
So a slow topic delays no other producer of the connection, until too
much is held for it (`held_sends`): then the connection is not read. Pulsar holds nothing, and stops
reading the whole connection as soon as the rate is reached.

A message that breaks a rule gets its SEND_ERROR after the receipts of all earlier messages and
before those of all later ones, because clients rely on that order.

The first message of a transaction waits here too, until the topic knows whether the transaction is
open, and a topic's first delayed message, until its index exists; the producer's later messages
wait behind it.

Held messages count as one pending run of their producer, so that closing waits for them. They are
dropped if the producer is disconnected by the broker: clients resend messages without a receipt.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

from magnetar.broker.rates.chain import Limiters, blocking, take
from magnetar.broker.rates.held_sends import HeldBudget
from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.producer import Judged, Producer
from magnetar.broker.topic.transactions.admission import Admission, Undecided
from magnetar.core.clock import Clock
from magnetar.core.errors import (
    MagnetarError,
    MetadataError,
    NotAllowed,
    PersistenceError,
    ServiceNotReady,
)
from magnetar.wire.entry import parse_metadata
from magnetar.wire.events import SendRun
from magnetar.wire.framing import MalformedEntry

TOO_LARGE: Final = "Exceed maximum message size"
NOT_ENCRYPTED: Final = "Messages must be encrypted"


class Publishes(Protocol):
    """A topic, seen from its gate."""

    counters: TopicCounters
    gate: "PublishGate | None"

    @property
    def serving(self) -> bool:
        """Whether the topic accepts messages now."""

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Appends the run; its receipts are sent once it is stored."""

    def admission(self, run: SendRun) -> Admission:
        """Returns whether a message of a transaction, or with a delay, may be stored now."""

    def disconnect_producer(self, producer: Producer) -> None:
        """Detaches the producer and tells its client, which attaches again and resends."""


class PublishGate:
    """Publishes, holds or refuses the messages of a topic's producers."""

    __slots__ = (
        "_budget",
        "_held",
        "_topic",
        "blocker",
        "encryption_required",
        "limiter",
        "limiters",
        "message_bytes_max",
        "shared",
    )

    def __init__(self, topic: Publishes, budget: HeldBudget) -> None:
        self._topic = topic
        self._budget = budget
        self._held: dict[HeldSends, None] = {}
        self.limiter: RateLimiter | None = None
        """The topic's own."""
        self.shared: Limiters = ()
        """Those that the topic shares with others."""
        self.limiters: Limiters = ()
        self.blocker: RateLimiter | None = None
        """The limiter that refused the last grant."""
        self.message_bytes_max = 0
        self.encryption_required = False

    def set_rate(
        self, messages: float, size_bytes: float, clock: Clock, shared: Limiters = ()
    ) -> None:
        """Sets the topic's limits per second, 0 or less for none, and the shared limiters."""
        before, self.shared = self.limiters, shared
        if messages > 0 or size_bytes > 0:
            if self.limiter is None:
                self.limiter = RateLimiter(clock, "publishRate")
            self.limiter.set(messages, size_bytes, 1.0)
        elif self.limiter is not None:
            self.limiter.close()
            self.limiter = None
        self.limiters = shared if self.limiter is None else (self.limiter, *shared)
        gone = [limiter for limiter in before if limiter not in self.limiters]
        for limiter in gone:
            for held in self._held:
                limiter.forget(held.pump)
        if gone:
            self.resume()

    @property
    def needed(self) -> bool:
        """Whether there is a policy to enforce or a held message to publish."""
        rules = self.message_bytes_max > 0 or self.encryption_required
        return rules or bool(self.limiters) or bool(self._held)

    def resume(self) -> None:
        """Publishes held messages again: the topic has resumed, or its rate has changed."""
        for held in list(self._held):
            held.pump()

    def close(self) -> None:
        """Drops all held messages: the topic is closing, and clients resend them to its owner."""
        for held in list(self._held):
            held.drop()

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Publishes the run, as far as the rate allows, and holds the rest."""
        parts = list(self._judged(run))
        if producer.held is None:
            run, error = parts[0]
            if error is None and (granted := self.grant(run)):
                self.release(producer, run if granted == len(run.entries) else run.part(0, granted))
                parts[:1] = [] if granted == len(run.entries) else [(run.part(granted), None)]
            if not parts:
                return
        self._hold(producer, parts)

    def refuse(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        """Answers a run of one message with SEND_ERROR, in order with the other answers."""
        self._hold(producer, [(run, error)])

    def _hold(self, producer: Producer, parts: list[Judged]) -> None:
        held = producer.held
        if held is None:
            held = HeldSends(self, self._topic, producer, self._budget)
            self._held[held] = None
        held.add(parts)

    def _judged(self, run: SendRun) -> "Iterator[Judged]":
        """Splits the run into acceptable parts and single messages that break a rule."""
        largest = self.message_bytes_max
        if not self.encryption_required and (not largest or max(map(len, run.entries)) <= largest):
            yield run, None
            return
        start = 0
        for index, entry in enumerate(run.entries):
            error = self._refusal(entry)
            if error is not None:
                if index > start:
                    yield run.part(start, index), None
                yield run.part(index, index + 1), error
                start = index + 1
        if start < len(run.entries):
            yield run.part(start), None

    def _refusal(self, entry: bytes) -> MagnetarError | None:
        """Returns the error of a message that breaks a rule. Chunks are exempt from the size."""
        too_large = 0 < self.message_bytes_max < len(entry)
        if not too_large and not self.encryption_required:
            return None
        try:
            metadata = parse_metadata(entry)
        except MalformedEntry as error:
            return MetadataError(str(error))
        if self.encryption_required and not metadata.encryption_keys:
            return MetadataError(NOT_ENCRYPTED)
        if too_large and metadata.num_chunks_from_msg <= 1:
            return NotAllowed(TOO_LARGE)
        return None

    def grant(self, run: SendRun) -> int:
        """Takes tokens for the run's first messages; returns how many may be published now."""
        if run.special and self._topic.admission(run) is not None:
            return 0
        limiters = self.limiters
        if not limiters:
            return len(run.entries)
        self.blocker = blocking(limiters)
        if self.blocker is not None:
            return 0
        messages, size_bytes = sum(run.message_counts), run.size_bytes
        if all(
            messages <= limiter.messages_left() and size_bytes <= limiter.bytes_left()
            for limiter in limiters
        ):
            take(limiters, messages, size_bytes)
            return len(run.entries)
        granted = 0
        for count, entry in zip(run.message_counts, run.entries, strict=True):
            take(limiters, count, len(entry))
            granted += 1
            if any(limiter.out_of_messages or limiter.out_of_bytes for limiter in limiters):
                break
        return granted

    def release(self, producer: Producer, run: SendRun) -> None:
        """Publishes messages that got their tokens."""
        producer.sink.publishing(run.size_bytes)
        self._topic.publish(producer, run)

    def emptied(self, held: "HeldSends") -> None:
        """Removes a producer without held messages, and the gate itself if it is not needed."""
        self._held.pop(held, None)
        if not self.needed and self._topic.gate is self:
            self._topic.gate = None


class HeldSends:
    """One producer's held messages, in order; exists only while there are any."""

    __slots__ = (
        "_budget", "_bytes", "_entries", "_gate", "_paused", "_producer", "_queue", "_topic",
    )  # fmt: skip

    def __init__(
        self, gate: PublishGate, topic: Publishes, producer: Producer, budget: HeldBudget
    ) -> None:
        self._gate = gate
        self._topic = topic
        self._producer = producer
        self._budget = budget
        self._queue: deque[Judged] = deque()
        self._bytes = self._entries = 0
        self._paused = False
        producer.hold(self)

    def add(self, parts: "list[Judged]") -> None:
        """Appends to the queue; publishes at once as far as allowed if the queue was empty."""
        first = not self._queue
        for run, error in parts:
            self._queue.append((run, error))
            self._count(run.size_bytes, len(run.entries))
        if first:
            self.pump()
        # A pause without a held message would never end: only held messages end it.
        held = bool(self._queue)
        if held and not self._paused and self._budget.is_full(self._bytes, self._entries):
            self._paused = True
            self._producer.sink.pause_reading()

    def pump(self) -> None:
        """Publishes as many messages as allowed now; waits with the limiter for the rest."""
        producer, gate = self._producer, self._gate
        while self._queue:
            if not self._topic.serving:
                return  # `resume` calls it again
            run, error = self._queue[0]
            if error is None and run.special:
                admission = self._topic.admission(run)
                if isinstance(admission, Undecided):
                    return  # `resume` calls it again
                if admission is not None and len(run.entries) > 1:
                    self._split()
                    continue
                if (error := admission) is not None:
                    self._queue[0] = (run, error)
            if error is not None:
                if producer.pending_runs > 1:
                    return  # `answered` calls it again with each receipt
                self._take(1)
                producer.sink.publishing(run.size_bytes)
                producer.sink.send_errors(producer, run, error)
                if isinstance(error, PersistenceError | ServiceNotReady):
                    # The client sends it again: the messages behind it must not overtake it.
                    self._topic.disconnect_producer(producer)
                    return
                continue
            granted = gate.grant(run)
            if not granted:
                if gate.blocker is not None:
                    self._topic.counters.publish_limited_times += 1
                    gate.blocker.wait(self.pump)
                return
            gate.release(producer, self._take(granted))
        self._end()

    def answered(self) -> None:
        """Sends a refusal that waited for the receipts of earlier messages."""
        if self._queue and self._queue[0][1] is not None:
            self.pump()

    def drop(self) -> None:
        """Drops all held messages."""
        self._queue.clear()
        self._count(-self._bytes, -self._entries)
        self._end()

    def _split(self) -> None:
        """Judges the messages of the first run one by one: some may be acceptable."""
        run, error = self._queue.popleft()
        singles = [run.part(index, index + 1) for index in range(len(run.entries))]
        self._queue.extendleft((single, error) for single in reversed(singles))

    def _take(self, count: int) -> SendRun:
        """Removes and returns the first messages of the queue."""
        run, error = self._queue.popleft()
        if count < len(run.entries):
            self._queue.appendleft((run.part(count), error))
            run = run.part(0, count)
        self._count(-run.size_bytes, -count)
        return run

    def _count(self, size_bytes: int, entries: int) -> None:
        self._bytes += size_bytes
        self._entries += entries
        self._budget.bytes += size_bytes
        if self._paused and (not self._queue or self._budget.has_room(self._bytes, self._entries)):
            self._paused = False
            self._producer.sink.resume_reading()

    def _end(self) -> None:
        for limiter in self._gate.limiters:
            limiter.forget(self.pump)
        self._gate.emptied(self)
        self._producer.held_ended(self)
