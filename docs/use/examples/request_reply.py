"""Request and reply over topics: many servers share the requests, each caller has its own replies.

A request names the caller's reply topic and has a number; the reply has the same number. The reply
topic is not persistent: a caller that has ended waits for nothing.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from magnetar.client import Client, Consumer, InitialPosition, Producer, SubscriptionType

REPLY_TO, NUMBER = "reply-to", "number"


class Caller:
    """Sends requests and awaits their replies; any number of them at a time."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self._topic = client, topic
        namespace = topic.partition("://")[2].rpartition("/")[0]
        self._reply_to = f"non-persistent://{namespace}/replies-{uuid.uuid4().hex}"
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._replies: Consumer[bytes]
        self._requests: Producer[bytes]
        self._receiver: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._replies = await self._client.consumer(self._reply_to, "caller")
        self._requests = await self._client.producer(self._topic)
        self._receiver = asyncio.create_task(self._receive(), name="replies")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._requests.close()
        await self._replies.close()  # which ends the receiver
        await self._receiver
        for reply in self._waiting.values():
            reply.cancel()

    async def _receive(self) -> None:
        async for message in self._replies:
            reply = self._waiting.pop(message.properties.get(NUMBER, ""), None)
            if reply is not None and not reply.done():
                reply.set_result(message.value)
            await self._replies.ack(message)

    async def call(self, request: bytes, *, timeout_s: float = 10.0) -> bytes:
        """Returns the reply to a request; raises TimeoutError."""
        number = uuid.uuid4().hex
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(timeout_s):
                properties = {REPLY_TO: self._reply_to, NUMBER: number}
                await self._requests.send(request, properties=properties)
                return await reply
        finally:
            self._waiting.pop(number, None)


async def _producer(client: Client, topic: str) -> Producer[bytes]:
    return await client.producer(topic)


async def serve(
    client: Client, topic: str, answer: Callable[[bytes], Awaitable[bytes]], *, at_once: int = 16
) -> None:
    """Answers requests until it is cancelled; those that fail come again, maybe elsewhere."""
    producers: dict[str, asyncio.Future[Producer[bytes]]] = {}
    consumer = await client.consumer(
        topic,
        "servers",
        type=SubscriptionType.SHARED,
        initial_position=InitialPosition.EARLIEST,  # of requests before the first server came
    )

    async def handle(message: Any) -> None:
        reply_to = message.properties[REPLY_TO]
        reply = await answer(message.value)
        if reply_to not in producers:
            # One task for all requests of a caller that are handled at a time.
            producers[reply_to] = asyncio.ensure_future(_producer(client, reply_to))
        producer = await producers[reply_to]
        await producer.send(reply, properties={NUMBER: message.properties[NUMBER]})

    async with consumer:
        await consumer.run(handle, concurrency=at_once)
