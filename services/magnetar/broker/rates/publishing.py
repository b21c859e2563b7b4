"""What sends to a topic pass through where a policy limits them: rate, size, encryption.

A topic without such policies has no gate (`topic.gate` is None), and pays one look at that.

What a rate lets through at once is published at once. What it does not is held for its producer, in
order, and goes when the topic's tokens come, in turn with the topic's other producers; receipts
come when it is stored. So one slow topic holds up no other producer of the connection, until what
is held for it is too much (`held`): then the connection is not read from. Pulsar never holds
anything, and does not read from the whole connection as soon as the rate is reached.

A message that a rule refuses gets its SEND_ERROR after the receipts of what came before it and
before those of what comes behind, since clients count on that order.

A producer that has something held counts it as one pending run, so that closing waits for it. What
is held is dropped where its producer was sent away: clients send again what has no receipt.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

from magnetar.broker.rates.held import HeldBudget
from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.producer import Judged, Producer
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError, NotAllowed
from magnetar.wire.entry import parse_metadata
from magnetar.wire.events import SendRun
from magnetar.wire.framing import MalformedEntry

TOO_LARGE: Final = "Exceed maximum message size"
NOT_ENCRYPTED: Final = "Messages must be encrypted"


class Publishes(Protocol):
    """A topic, as its gate sees it."""

    counters: TopicCounters
    gate: "PublishGate | None"

    @property
    def serving(self) -> bool:
        """Whether it takes messages now."""

    def publish(self, producer: Producer, run: SendRun) -> None: ...


class PublishGate:
    """See the module's text."""

    __slots__ = (
        "_budget",
        "_held",
        "_topic",
        "encryption_required",
        "limiter",
        "message_bytes_max",
    )

    def __init__(self, topic: Publishes, budget: HeldBudget) -> None:
        self._topic = topic
        self._budget = budget
        self._held: dict[HeldSends, None] = {}
        self.limiter: RateLimiter | None = None
        self.message_bytes_max = 0
        self.encryption_required = False

    # -- what the policies and the topic say

    def set_rate(self, messages: float, size_bytes: float, clock: Clock) -> None:
        """Per second; 0 or less is any number."""
        if messages > 0 or size_bytes > 0:
            if self.limiter is None:
                self.limiter = RateLimiter(clock)
            self.limiter.set(messages, size_bytes, 1.0)
        elif self.limiter is not None:
            self.limiter.close()
            self.limiter = None
            self.resume()

    @property
    def needed(self) -> bool:
        """Whether it has anything to limit, or still to send on."""
        rules = self.message_bytes_max > 0 or self.encryption_required
        return rules or self.limiter is not None or bool(self._held)

    def resume(self) -> None:
        """The topic takes messages again, or faster."""
        for held in list(self._held):
            held.pump()

    def close(self) -> None:
        """The topic takes nothing more: what is held is dropped, and sent again elsewhere."""
        for held in list(self._held):
            held.drop()

    # -- what producers send

    def publish(self, producer: Producer, run: SendRun) -> None:
        """Publishes the run, or as much of it as may go now, and holds the rest."""
        parts = list(self._judged(run))
        if producer.held is None:
            run, error = parts[0]
            if error is None and (granted := self.grant(run)):
                self.release(
                    producer, run if granted == len(run.entries) else _part(run, 0, granted)
                )
                parts[:1] = [] if granted == len(run.entries) else [(_part(run, granted), None)]
            if not parts:
                return
        self._hold(producer, parts)

    def refuse(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        """Answers a run of one message with SEND_ERROR, in its turn."""
        self._hold(producer, [(run, error)])

    def _hold(self, producer: Producer, parts: list[Judged]) -> None:
        held = producer.held
        if held is None:
            held = HeldSends(self, self._topic, producer, self._budget)
            self._held[held] = None
        held.add(parts)

    def _judged(self, run: SendRun) -> "Iterator[Judged]":
        """The run in parts: those to be taken, and each message that a rule refuses."""
        largest = self.message_bytes_max
        if not self.encryption_required and (not largest or max(map(len, run.entries)) <= largest):
            yield run, None
            return
        start = 0
        for index, entry in enumerate(run.entries):
            error = self._refusal(entry)
            if error is not None:
                if index > start:
                    yield _part(run, start, index), None
                yield _part(run, index, index + 1), error
                start = index + 1
        if start < len(run.entries):
            yield _part(run, start), None

    def _refusal(self, entry: bytes) -> MagnetarError | None:
        """Why a message is not taken, if so. Chunks may together be as large as they like."""
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
        """How many messages of the run, from its first, may go now; they are counted."""
        limiter = self.limiter
        if limiter is None:
            return len(run.entries)
        if not limiter.may_go():
            return 0
        messages, size_bytes = sum(run.message_counts), run.size_bytes
        if messages <= limiter.messages_left() and size_bytes <= limiter.bytes_left():
            limiter.take(messages, size_bytes)
            return len(run.entries)
        granted = 0
        for count, entry in zip(run.message_counts, run.entries, strict=True):
            limiter.take(count, len(entry))
            granted += 1
            if limiter.out_of_messages or limiter.out_of_bytes:
                break
        return granted

    def release(self, producer: Producer, run: SendRun) -> None:
        """Publishes what may go."""
        producer.sink.publishing(run.size_bytes)
        self._topic.publish(producer, run)

    def emptied(self, held: "HeldSends") -> None:
        """All that was held for a producer went, or was dropped."""
        self._held.pop(held, None)
        if not self.needed and self._topic.gate is self:
            self._topic.gate = None


class HeldSends:
    """What one producer sent and may not go yet. There is one only while there is something."""

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
        """Lines up behind what is held already."""
        first = not self._queue
        for run, error in parts:
            self._queue.append((run, error))
            self._count(run.size_bytes, len(run.entries))
        if first:
            self.pump()
        # Nothing that is held would end a pause of a producer that has nothing held.
        held = bool(self._queue)
        if held and not self._paused and self._budget.is_full(self._bytes, self._entries):
            self._paused = True
            self._producer.sink.pause_reading()

    def pump(self) -> None:
        """Sends on what may go now; lines up for the rest."""
        producer, gate = self._producer, self._gate
        while self._queue:
            if not self._topic.serving:
                return  # it is pumped when the topic goes on
            run, error = self._queue[0]
            if error is not None:
                if producer.pending_runs > 1:
                    return  # `answered` is called with each receipt
                self._take(1)
                producer.sink.publishing(run.size_bytes)
                producer.sink.send_errors(producer, run, error)
                continue
            granted = gate.grant(run)
            if not granted:
                if gate.limiter is not None:
                    self._topic.counters.publish_limited_times += 1
                    gate.limiter.wait(self.pump)
                return
            gate.release(producer, self._take(granted))
        self._end()

    def answered(self) -> None:
        """What was sent on before has its receipts: a refusal may have waited for them."""
        if self._queue and self._queue[0][1] is not None:
            self.pump()

    def drop(self) -> None:
        """Nothing of it will be published."""
        self._queue.clear()
        self._count(-self._bytes, -self._entries)
        self._end()

    def _take(self, count: int) -> SendRun:
        """The first messages of what is held."""
        run, error = self._queue.popleft()
        if count < len(run.entries):
            self._queue.appendleft((_part(run, count), error))
            run = _part(run, 0, count)
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
        if self._gate.limiter is not None:
            self._gate.limiter.forget(self.pump)
        self._gate.emptied(self)
        self._producer.held_ended(self)


def _part(run: SendRun, start: int, end: int | None = None) -> SendRun:
    """Messages `start` to `end` (exclusive) of a run."""
    entries = run.entries[start:end]
    return SendRun(
        run.producer_id,
        run.sequence_ids[start:end],
        run.highest_sequence_ids[start:end],
        run.message_counts[start:end],
        entries,
        sum(map(len, entries)),
    )
