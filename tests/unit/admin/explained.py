"""Asks a broker in memory for explanations, and carries out the next steps that they name."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.sink import Delivery
from magnetar.broker.subscription.spec import ConsumerSpec, KeySharedSpec, SubType
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.ids import Position
from magnetar.documents.explain import Explanation, Finding

from .support import NO_BODY, Admin, Peer


class Client(Peer):
    """A connection whose deliveries can be awaited."""

    def __init__(self) -> None:
        super().__init__()
        self._delivered = asyncio.Event()

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], epoch: int | None) -> None:
        super().deliver(consumer_id, deliveries, epoch)
        self._delivered.set()

    async def got(self, count: int) -> None:
        """Returns once that many entries were delivered."""
        async with asyncio.timeout(20):
            while len(self.delivered) < count:
                self._delivered.clear()
                await self._delivered.wait()


def client_of(consumer: Consumer) -> Client:
    assert isinstance(consumer.sink, Client)
    return consumer.sink


async def explain(
    admin: Admin, subscription: str, message: Position | str | None = None, local: str = "a"
) -> Explanation:
    query = "" if message is None else f"?messageId={message}"
    path = f"~/persistent/t1/n1/{local}/subscription/{subscription}/explain{query}"
    answer = await admin.done("GET", path)
    explanation = msgspec.json.decode(answer.content, type=Explanation)
    assert explanation.findings
    assert explanation.version == 1
    return explanation


async def explain_topic(admin: Admin, local: str = "a") -> Explanation:
    answer = await admin.done("GET", f"~/persistent/t1/n1/{local}/explain")
    return msgspec.json.decode(answer.content, type=Explanation)


async def first(admin: Admin, subscription: str, message: Position | str | None = None) -> Finding:
    return (await explain(admin, subscription, message)).findings[0]


async def follow(admin: Admin, finding: Finding) -> None:
    """Sends the request of the next step."""
    step = finding.next_step
    assert step.command
    assert step.method, f"{finding.code} has no request"
    await admin.done(step.method, step.path, NO_BODY if step.body is None else step.body)


async def attach(
    admin: Admin,
    subscription: str,
    kind: SubType = SubType.Shared,
    *,
    permits: int = 1_000,
    name: str = "c",
    peer: Client | None = None,
    key_shared: KeySharedSpec | None = None,
    local: str = "a",
    **spec: Any,
) -> Consumer:
    """Attaches a consumer at the earliest message."""
    topic = await admin.topic(local)
    asked = ConsumerSpec(7, name, kind, key_shared=key_shared, **spec)
    consumer = Consumer(asked, peer or Client(), admin.service.clock)
    request = SubscribeRequest(subscription, asked, from_earliest=True)
    attached = await topic.subscribe(request, consumer)
    if permits:
        attached.flow(consumer, permits)
    return consumer
