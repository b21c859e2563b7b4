"""What the tests of our own client share: a client of the server under test, receiving, silence."""

import asyncio
from typing import Any, TypeVar

from magnetar.client import Consumer, Message
from magnetar.client.errors import OperationTimeout

DEADLINE_S = 30.0
SILENCE_S = 0.3

T = TypeVar("T")


async def take(consumer: Consumer[T], count: int, *, ack: bool = False) -> list[Message[T]]:
    """Receives exactly `count` messages before one deadline."""
    messages: list[Message[T]] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(messages) < count:
            message = await consumer.receive()
            messages.append(message)
            if ack:
                await consumer.ack(message)
    return messages


async def assert_silent(consumer: Consumer[Any]) -> None:
    """Nothing arrives for a while."""
    try:
        message = await consumer.receive(SILENCE_S)
    except OperationTimeout:
        return
    raise AssertionError(f"{message} arrived")


def values(messages: list[Message[T]]) -> list[T]:
    return [message.value for message in messages]
