"""Messages held for a producer above its rate: bounds, order, and complete release."""

import asyncio
from collections.abc import Iterable

import pytest
from tests.unit.broker.producer_doubles import RecordingSink, new_producer
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.flaky_store import LoopClock

from magnetar.broker.rates.dispatch_rate import (
    BACKLOG_ENTRIES_MIN,
    ENTRIES_AT_ONCE_MAX,
    DispatchThrottle,
)
from magnetar.broker.rates.held_sends import (
    BROKER_HELD_BYTES_LOW,
    BROKER_HELD_BYTES_MAX,
    HELD_BYTES_LOW,
    HELD_BYTES_MAX,
    HELD_ENTRIES_LOW,
    HELD_ENTRIES_MAX,
    HeldBudget,
)
from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.rates.publish_rate import PublishGate
from magnetar.broker.rates.token_bucket import TokenBucket
from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.broker.topic.counters import TopicCounters
from magnetar.broker.topic.producer import Producer
from magnetar.broker.topic.transactions.admission import Admission
from magnetar.core.errors import MagnetarError
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry
from magnetar.wire.events import SendRun


class Sink(RecordingSink):
    """A connection: whether it is read from, and which messages were refused."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.published_bytes = 0
        self.errors: list[tuple[int, str]] = []

    def publishing(self, size_bytes: int) -> None:
        self.published_bytes += size_bytes

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def send_errors(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        self.errors += [(each, str(error)) for each in run.sequence_ids]


class Topic:
    """A topic that stores at once; `serving` is under the test's hand."""

    def __init__(self) -> None:
        self.counters = TopicCounters()
        self.budget = HeldBudget()
        self.gate: PublishGate | None = PublishGate(self, self.budget)
        self.serving = True
        self.stored: list[int] = []

    def admission(self, run: SendRun) -> Admission:
        raise AssertionError(f"no message of {run.txn} is sent here")

    def publish(self, producer: Producer, run: SendRun) -> None:
        self.stored += run.sequence_ids

    def disconnect_producer(self, producer: Producer) -> None:
        raise AssertionError(f"no message of {producer.name} is refused for now")


def run_of(ids: Iterable[int], size: int = 10, messages: int = 1) -> SendRun:
    ids = list(ids)
    entries = [bytes(size)] * len(ids)
    return SendRun(1, ids, ids, [messages] * len(ids), entries, size * len(ids))


def rated(rate: float, size_bytes: float = 0) -> tuple[Topic, PublishGate, Producer, Sink]:
    topic, sink = Topic(), Sink()
    gate = topic.gate
    assert gate is not None
    gate.set_rate(rate, size_bytes, LoopClock())
    return topic, gate, new_producer(sink), sink


# -- budgets


@pytest.mark.parametrize(
    ("own_bytes", "entries", "all_bytes", "full"),
    [
        (HELD_BYTES_MAX, HELD_ENTRIES_MAX, BROKER_HELD_BYTES_MAX, False),
        (HELD_BYTES_MAX + 1, 0, 0, True),
        (0, HELD_ENTRIES_MAX + 1, 0, True),
        (0, 0, BROKER_HELD_BYTES_MAX + 1, True),
    ],
)
def test_held_messages_are_bounded(
    own_bytes: int, entries: int, all_bytes: int, full: bool
) -> None:
    budget = HeldBudget()
    budget.bytes = all_bytes
    assert budget.is_full(own_bytes, entries) is full


@pytest.mark.parametrize(
    ("own_bytes", "entries", "all_bytes", "room"),
    [
        (HELD_BYTES_LOW, HELD_ENTRIES_LOW, BROKER_HELD_BYTES_LOW, True),
        (HELD_BYTES_LOW + 1, 0, 0, False),
        (0, HELD_ENTRIES_LOW + 1, 0, False),
        (0, 0, BROKER_HELD_BYTES_LOW + 1, False),
    ],
)
def test_reading_resumes_below_the_low_marks(
    own_bytes: int, entries: int, all_bytes: int, room: bool
) -> None:
    budget = HeldBudget()
    budget.bytes = all_bytes
    assert budget.has_room(own_bytes, entries) is room
    assert HELD_BYTES_LOW < HELD_BYTES_MAX
    assert HELD_ENTRIES_LOW < HELD_ENTRIES_MAX


def test_a_producer_with_too_much_held_is_not_read_from_until_there_is_room() -> None:
    async def scenario() -> None:
        topic, gate, producer, sink = rated(1)
        gate.publish(producer, run_of(range(HELD_ENTRIES_MAX + 1)))
        assert (topic.stored, sink.reading) == ([0], True), "as much as may be is held"
        gate.publish(producer, run_of([9_999]))
        assert not sink.reading
        assert topic.budget.bytes == 10 * (HELD_ENTRIES_MAX + 1)
        gate.set_rate(0, 0, LoopClock())
        await asyncio.sleep(1)
        assert topic.stored == [*range(HELD_ENTRIES_MAX + 1), 9_999]
        assert (sink.reading, topic.budget.bytes, producer.held) == (True, 0, None)
        assert sink.published_bytes == 10 * (HELD_ENTRIES_MAX + 2)
        assert topic.gate is None, "a topic without a rate has no gate"

    virtual(scenario())


# -- the gate


def test_messages_within_the_rate_are_published_at_once_and_the_rest_in_order() -> None:
    async def scenario() -> None:
        topic, gate, producer, sink = rated(4)
        gate.publish(producer, run_of(range(8)))
        assert topic.stored == [0, 1], "half of what a period brings"
        assert producer.pending_runs == 1
        gate.publish(producer, run_of([8, 9]))
        await asyncio.sleep(1.01)
        assert topic.stored == list(range(6))
        await asyncio.sleep(1)
        assert topic.stored == list(range(10))
        assert (producer.pending_runs, producer.held, topic.budget.bytes) == (0, None, 0)
        assert topic.counters.publish_limited_times > 0
        assert sink.published_bytes == 100

    virtual(scenario())


def test_a_whole_run_that_fits_goes_in_one_piece_and_bytes_count_too() -> None:
    async def scenario() -> None:
        topic, gate, producer, _ = rated(0, 100)
        gate.publish(producer, run_of(range(5)))
        assert topic.stored == list(range(5)), "50 bytes are what the burst has"
        gate.publish(producer, run_of([5]))
        assert len(topic.stored) == 5
        await asyncio.sleep(1)
        assert len(topic.stored) == 6
        topic, gate, producer, _ = rated(10)
        gate.publish(producer, run_of([0, 1], messages=4))
        assert topic.stored == [0, 1], "the second takes the bucket into debt"
        gate.publish(producer, run_of([2]))
        await asyncio.sleep(0.2)
        assert topic.stored == [0, 1]
        await asyncio.sleep(0.3)
        assert topic.stored == [0, 1, 2]

    virtual(scenario())


def test_held_messages_wait_for_a_suspended_topic_and_are_dropped_by_a_closing_one() -> None:
    async def scenario() -> None:
        topic, gate, producer, sink = rated(2)
        gate.publish(producer, run_of(range(HELD_ENTRIES_MAX + 9)))
        assert not sink.reading
        topic.serving = False
        await asyncio.sleep(5)
        assert topic.stored == [0]
        topic.serving = True
        gate.resume()
        await asyncio.sleep(0)
        assert topic.stored[:2] == [0, 1]
        stored = list(topic.stored)
        gate.close()
        assert (topic.budget.bytes, producer.held, producer.pending_runs) == (0, None, 0)
        assert sink.reading
        await asyncio.sleep(5)
        assert topic.stored == stored
        assert gate.limiter is not None
        assert gate.limiter.waiting == 0

    virtual(scenario())


def test_a_message_of_exactly_the_largest_size_is_taken_and_a_larger_one_refused() -> None:
    async def scenario() -> None:
        topic, sink = Topic(), Sink()
        gate, producer = topic.gate, new_producer(sink)
        assert gate is not None
        plain = build_entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"x")
        chunk = build_entry(
            MessageMetadata(
                producer_name="p", sequence_id=1, publish_time=1, num_chunks_from_msg=2
            ),
            b"x" * 50,
        )
        gate.message_bytes_max = len(plain)
        assert gate.needed
        larger = plain + b"x"
        ids = [0, 1, 2, 3, 4]
        entries = [plain, larger, plain, chunk, larger]
        run = SendRun(1, ids, ids, [1] * 5, entries, sum(map(len, entries)))
        gate.publish(producer, run)
        assert topic.stored == [0, 2, 3]
        assert sink.errors == [
            (1, "Exceed maximum message size"),
            (4, "Exceed maximum message size"),
        ]
        gate.publish(producer, SendRun(1, [5], [5], [1], [plain], len(plain)))
        assert topic.stored == [0, 2, 3, 5]
        gate.message_bytes_max, gate.encryption_required = 0, True
        gate.publish(producer, SendRun(1, [6, 7], [6, 7], [1, 1], [plain, b""], len(plain)))
        assert [each for each, _ in sink.errors[2:]] == [6, 7]
        assert sink.errors[2][1] == "Messages must be encrypted"
        gate.encryption_required = False
        assert not gate.needed

    virtual(scenario())


def test_a_gate_that_was_replaced_leaves_the_new_one_alone() -> None:
    async def scenario() -> None:
        topic, gate, producer, _ = rated(1)
        gate.publish(producer, run_of(range(3)))
        other = topic.gate = PublishGate(topic, topic.budget)
        gate.set_rate(0, 0, LoopClock())
        await asyncio.sleep(1)
        assert topic.stored == [0, 1, 2]
        assert topic.gate is other

    virtual(scenario())


# -- dispatching


class Cursor:
    backlog = BACKLOG_ENTRIES_MIN


def throttle(*, tailing: bool = True) -> tuple[DispatchThrottle, list[int], Cursor]:
    woken: list[int] = []
    cursor = Cursor()
    made = DispatchThrottle(cursor, lambda: woken.append(1), tailing=tailing)  # type: ignore[arg-type]
    return made, woken, cursor


def limiter(rate: float, size_bytes: float = 0) -> RateLimiter:
    made = RateLimiter(LoopClock())
    made.set(rate, size_bytes, 1.0)
    return made


def test_the_number_of_entries_follows_both_rates_and_recent_sizes() -> None:
    async def scenario() -> None:
        throttled, _, _ = throttle()
        assert not throttled.needed
        throttled.set_limiters(None, limiter(400))
        assert throttled.needed
        assert throttled.entries_max(100) == 1, "the first goes alone"
        throttled.took(1, 4, 10)
        assert throttled.entries_max(100) == 49, "196 of 200 tokens, 4 each"
        throttled.set_limiters(limiter(0, 400), throttled.topic)
        assert throttled.entries_max(100) == 20, "200 bytes, 10 each"
        throttled.took(1, 4, 30)
        assert throttled.entries_max(100) == 8, "170 bytes, 20 each"
        assert throttled.entries_max(3) == 3
        throttled.took(1, 4, 120)
        assert throttled.entries_max(2) == 1, "50 bytes, 70 each"
        throttled.set_limiters(None, limiter(10_000))
        assert throttled.entries_max(100) == ENTRIES_AT_ONCE_MAX
        assert throttled.entries_max(2) == 2

    virtual(scenario())


def test_a_throttled_dispatcher_is_counted_and_woken_once_tokens_accumulate() -> None:
    async def scenario() -> None:
        throttled, woken, cursor = throttle()
        throttled.set_limiters(limiter(100), limiter(0, 1_000))
        assert throttled.own is not None
        assert throttled.topic is not None
        assert throttled.entries_max(10) == 1
        throttled.took(1, 1, 2_000)
        cursor.backlog = 0
        assert throttled.entries_max(10) == 0
        assert throttled.own.waiting == throttled.topic.waiting == 0, "nothing to hand over"
        cursor.backlog = 1
        assert throttled.entries_max(10) == 0
        assert (throttled.own.waiting, throttled.topic.waiting) == (0, 1)
        throttled.took(1, 100, 0)
        assert throttled.entries_max(10) == 0
        assert throttled.own.waiting == 1
        stats = SubscriptionStats()
        throttled.fill_stats(stats)
        assert stats.dispatch_throttled_msg_events_by_subscription_limit == 1
        assert stats.dispatch_throttled_bytes_events_by_topic_limit == 1
        assert stats.dispatch_throttled_bytes_events_by_subscription_limit == 0
        assert stats.dispatch_throttled_msg_events_by_topic_limit == 0
        await asyncio.sleep(10)
        assert woken
        throttled.took(1, 100_000, 0)
        assert throttled.entries_max(10) == 0
        count = len(woken)
        throttled.close()
        assert throttled.own.waiting == throttled.topic.waiting == 0
        await asyncio.sleep(100)
        assert len(woken) == count

    virtual(scenario())


@pytest.mark.parametrize(
    ("tailing", "backlog", "free"),
    [
        (False, BACKLOG_ENTRIES_MIN - 1, True),
        (False, BACKLOG_ENTRIES_MIN, False),
        (True, 0, False),
    ],
)
def test_tailing_consumers_are_not_throttled_if_so_configured(
    tailing: bool, backlog: int, free: bool
) -> None:
    async def scenario() -> None:
        throttled, _, cursor = throttle(tailing=tailing)
        own, cursor.backlog = limiter(10), backlog
        throttled.set_limiters(own, None)
        assert throttled.entries_max(100) == (100 if free else 1)
        throttled.took(1, 3, 10)
        assert own.messages_left() == (5 if free else 2)

    virtual(scenario())


# -- buckets


def test_a_bucket_fills_to_its_burst_and_returns_the_wait() -> None:
    bucket = TokenBucket(10, 2.0, 100.0)
    assert (bucket.rate, bucket.burst, bucket.tokens) == (5, 5, 5)
    bucket.take(7)
    assert (bucket.tokens, bucket.ready) == (-2, False)
    assert bucket.wait_s(1) == pytest.approx(0.6)
    assert bucket.wait_s(100) == pytest.approx(7 / 5), "no more than the burst ever comes"
    assert bucket.refill(100.5) == pytest.approx(0.5)
    assert not bucket.ready
    bucket.refill(100.6)
    assert bucket.ready
    assert bucket.refill(99) == pytest.approx(bucket.tokens)
    assert bucket.refill(99.2) == pytest.approx(2, abs=1e-5)
    assert bucket.refill(1_000) == 5
    assert bucket.wait_s(5) == 0


def test_a_debt_takes_no_longer_by_a_slower_rate_and_a_burst_shrinks_with_it() -> None:
    bucket = TokenBucket(10, 1.0, 0.0)
    bucket.take(25)
    bucket.set_rate(5, 1.0, 0.0)
    assert bucket.tokens == -10
    bucket.set_rate(10, 1.0, 0.0)
    assert bucket.tokens == -10, "a faster rate pays sooner"
    bucket = TokenBucket(10, 1.0, 0.0)
    bucket.set_rate(4, 1.0, 0.0)
    assert (bucket.tokens, bucket.burst, bucket.rate) == (2, 2, 4)
    bucket.set_rate(1, 1.0, 0.0)
    assert (bucket.tokens, bucket.burst) == (1, 1)
    bucket.take(0.5)
    bucket.set_rate(0.5, 1.0, 0.0)
    assert bucket.tokens == 0.5, "what is there stays"
