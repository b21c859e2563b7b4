"""A worker that puts failed work off, and gives it up after some attempts.

Work that fails goes to the retry letter topic and comes again after a pause. After `ATTEMPTS` more
deliveries it is a dead letter, which an operator reads, or moves back (`magnetar redrive`).
"""

import logging
from collections.abc import Awaitable, Callable

from magnetar.client import Client, DeadLetterPolicy, InitialPosition, Message, SubscriptionType

ATTEMPTS = 3
PAUSE_S = 30.0

log = logging.getLogger("worker")


class GiveUp(Exception):
    """Work that no further attempt can do."""


async def work(
    url: str,
    topic: str,
    handle: Callable[[Message[bytes]], Awaitable[None]],
    *,
    pause_s: float = PAUSE_S,
) -> None:
    """Handles the messages of a topic until it is cancelled."""
    async with (
        Client(url) as client,
        client.consumer(
            topic,
            "worker",
            type=SubscriptionType.SHARED,
            initial_position=InitialPosition.EARLIEST,
            retry_enabled=True,
            dead_letter=DeadLetterPolicy(max_redeliver_count=ATTEMPTS, initial_subscription="dlq"),
        ) as consumer,
    ):
        async for message in consumer:
            try:
                await handle(message)
            except GiveUp as reason:
                log.warning("%s is dropped: %s", message.id, reason)
            except Exception:
                log.exception("%s is put off", message.id)
                await consumer.reconsume_later(message, pause_s)
                continue
            await consumer.ack(message)
