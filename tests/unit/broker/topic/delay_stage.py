"""Topics with delayed messages on a clock that only moves on request."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.unit.broker.topic.stage import ProducerSink, Sink, Stage, request, stage
from tests.unit.ledger.stage import turns

from magnetar.broker.session.refusal import checked_parts
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.delayed.delayed_delivery import DelayedDelivery
from magnetar.broker.topic.delayed.schedule import Schedule
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.names import parse_topic
from magnetar.policies.admission import DELAYED_DELIVERY
from magnetar.transactions.model import TxnId
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry, payload_of
from magnetar.wire.events import SendRun

HOUR_MS = 3_600_000


def delayed_entry(text: str, deliver_at_ms: int, published_ms: int, *, batch: int = 0) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=published_ms)
    metadata.partition_key = text
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    if batch:
        metadata.num_messages_in_batch = batch
    return build_entry(metadata, text.encode())


async def answered(sink: ProducerSink, messages: int) -> None:
    """Waits until that many messages have a receipt or an error."""
    for _ in range(2_000):
        receipts = sum(len(ids) for ids, *_ in sink.receipts)
        if receipts + sum(len(ids) for ids, _ in sink.errors) >= messages:
            return
        await turns(1)
    raise AssertionError(f"{messages} answers did not come: {sink.told}")


class DelayStage:
    """A stage, and the topics on it."""

    def __init__(self, s: Stage) -> None:
        self.s = s

    async def topic(self, local: str = "t") -> PersistentTopic:
        return await self.s.topic(local)

    async def send(
        self,
        topic: PersistentTopic,
        *messages: tuple[str, int],
        txn: TxnId | None = None,
        batch: int = 0,
    ) -> list[tuple[int, int]]:
        """Sends texts with their delays in ms, as the session does; returns the positions."""
        producer, sink = await self.s.producer(topic)
        now_ms = self.s.clock.now_ms()
        run = SendRun(producer.producer_id, [], [], [], [], 0, txn)
        for number, (text, delay_ms) in enumerate(messages):
            deliver_at_ms = now_ms + delay_ms if delay_ms else 0
            run.entries.append(delayed_entry(text, deliver_at_ms, now_ms, batch=batch))
            run.sequence_ids.append(number)
            run.highest_sequence_ids.append(number)
            run.message_counts.append(max(batch, 1))
        for part, _ in checked_parts(run):
            gate = topic.gate
            if gate is None and part.special:
                gate = topic.gate_of(part)
            if gate is None:
                topic.publish(producer, part)
            else:
                gate.publish(producer, part)
        await answered(sink, len(messages))
        topic.remove_producer(producer)
        if sink.errors:
            raise sink.errors[0][1]
        await turns(20)
        return [
            (ledger_id, first_entry_id + index)
            for ids, ledger_id, first_entry_id in sink.receipts
            for index in range(len(ids))
        ]

    async def consume(
        self,
        topic: PersistentTopic,
        name: str = "s",
        sub_type: SubType = SubType.Shared,
        permits: int = 1000,
    ) -> tuple[PersistentSubscription, Consumer, Sink]:
        return await self.s.attach(topic, request(name, sub_type=sub_type), permits=permits)

    async def pass_ms(self, topic: PersistentTopic, passed_ms: int) -> None:
        """Moves the clock, and lets the topic notice that as its timer does."""
        self.s.clock.advance(passed_ms)
        if topic.delays is not None:
            topic.delays.tick()
        await turns(60)

    async def reopened(self, topic: PersistentTopic, *, crash: bool = False) -> PersistentTopic:
        """The topic as its next owner opens it, after a clean end or a crash."""
        if crash:
            self.s.service.open_topics.abandon(lambda _topic: True)
        else:
            await self.s.service.topics.unload(topic.name)
        opened = await self.s.service.topics.get_or_open(parse_topic(topic.full_name), create=False)
        assert isinstance(opened, PersistentTopic)
        await turns(40)
        return opened

    async def policy(self, topic: PersistentTopic, **value: Any) -> None:
        whole = {"active": True, "tickTime": 1_000, "maxDeliveryDelayInMillis": 0} | value
        await self.s.set(DELAYED_DELIVERY, whole, topic)
        await turns(60)


def texts(sink: Sink) -> list[str]:
    """What the connection got."""
    return [payload_of(delivery.entry.data).decode() for delivery in sink.delivered]


def delays_of(topic: PersistentTopic) -> DelayedDelivery:
    assert topic.delays is not None
    return topic.delays


def schedule_of(topic: PersistentTopic) -> Schedule:
    schedule = delays_of(topic).schedule
    assert schedule is not None
    return schedule


def acked(subscription: PersistentSubscription, positions: Iterable[tuple[int, int]]) -> None:
    for position in positions:
        subscription.cursor.ack(*position)


@asynccontextmanager
async def delay_stage(**settings: Any) -> AsyncIterator[DelayStage]:
    async with stage(**{"failover_delay_ms": 0, "delayed_delivery_strict": True, **settings}) as s:
        yield DelayStage(s)
