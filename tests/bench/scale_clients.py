"""Clients of very many topics over raw connections, with a bound on concurrent topics.

Each topic gets the commands of an official client: look-up, subscription or producer, one message.
The clients retry requests that the server refuses temporarily.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.raw_client import RawClient, Refused

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

CONNECTIONS = 8
TRIES_MAX = 200
RETRY_S = 0.1
PAYLOAD = b"x" * 100
SUBSCRIPTION = "one"


class ScaleClient(RawClient):
    """Waits for the receipt of each producer's first message by a future of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first_receipts: dict[int, asyncio.Future[None]] = {}

    def _command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind == CommandType.SEND_RECEIPT:
            future = self.first_receipts.pop(message.producer_id, None)
            if future is not None and not future.done():
                future.set_result(None)
        elif kind in (CommandType.SEND_ERROR, CommandType.CLOSE_PRODUCER):
            future = self.first_receipts.pop(message.producer_id, None)
            if future is not None and not future.done():
                future.set_exception(ConnectionError("the producer was closed"))
        else:
            super()._command(kind, message, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for future in self.first_receipts.values():
            if not future.done():
                future.set_exception(ConnectionError("connection lost"))

    async def look_up(self, topic: str) -> None:
        """Looks the topic up; raises Refused if this broker does not serve it."""
        command = pb.CommandLookupTopic(topic=topic, authoritative=True)
        answer = await self.request(CommandType.LOOKUP, command)
        if answer.response == pb.CommandLookupTopicResponse.Failed:
            raise Refused(answer.error, answer.message)

    async def serve(self, topic: str, *, subscribe: bool) -> None:
        """Publishes one message by a new producer; returns after its receipt."""
        await self.look_up(topic)
        if subscribe:
            consumer_id = await self.consumer(topic, SUBSCRIPTION)
            command = pb.CommandCloseConsumer(consumer_id=consumer_id)
            await self.request(CommandType.CLOSE_CONSUMER, command)
        producer_id = await self.producer(topic)
        receipt = asyncio.get_running_loop().create_future()
        self.first_receipts[producer_id] = receipt
        self.send(producer_id, 0, PAYLOAD)
        async with asyncio.timeout(60):
            await receipt


@dataclass
class Served:
    """The times of all topics."""

    seconds: float = 0.0
    retries: int = 0
    failures: list[str] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    """Seconds from the start to the receipt of each topic, ascending."""
    waits: list[float] = field(default_factory=list)
    """Seconds of each topic from its first request to its receipt."""

    def share(self, share: float) -> float:
        """Returns the seconds until this share of the topics was served."""
        return self.at[min(int(len(self.at) * share), len(self.at) - 1)] if self.at else 0.0

    def wait(self, share: float) -> float:
        """Returns a quantile of the seconds that one topic took."""
        waits = sorted(self.waits)
        return waits[min(int(len(waits) * share), len(waits) - 1)] if waits else 0.0


async def serve_all(
    address: tuple[str, int],
    topics: Iterable[str],
    *,
    at_once: int,
    subscribe: bool = False,
    started: float | None = None,
    seconds_max: float | None = None,
) -> tuple[Served, list[ScaleClient]]:
    """Publishes a message to every topic; connections and producers stay open."""
    started = time.monotonic() if started is None else started
    clients = [await ScaleClient.connect(*address) for _ in range(CONNECTIONS)]
    served, waiting = Served(), deque(topics)
    turns = itertools.cycle(clients)

    async def worker() -> None:
        while waiting and (seconds_max is None or time.monotonic() - started < seconds_max):
            topic = waiting.popleft()
            client = next(turns)
            begun = time.monotonic()
            reason = ""
            for _ in range(TRIES_MAX):
                try:
                    await client.serve(topic, subscribe=subscribe)  # type: ignore[attr-defined]
                    break
                except (Refused, ConnectionError, TimeoutError) as error:
                    served.retries += 1
                    reason = f"{topic}: {type(error).__name__} {error}"
                    if client.lost.is_set():
                        break
                    await asyncio.sleep(RETRY_S)
            else:
                served.failures.append(reason)
                continue
            now = time.monotonic()
            served.at.append(now - started)
            served.waits.append(now - begun)

    await asyncio.gather(*(worker() for _ in range(at_once)))
    served.seconds = time.monotonic() - started
    return served, clients  # type: ignore[return-value]
