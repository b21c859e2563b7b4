"""Key_Shared consumers that come and go, over their own wire, and note the history they see.

Each topic has a few consumers of one Key_Shared subscription. They ack with receipts after a while,
leave with messages that they hold, and come back. Runs as a process of its own, which nobody kills.
A line on stdin calms them: they stay. A second one ends them.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.chaos.recording import Histories, by_wire
from tests.sim.client import PASSING, Client, Refused, Wire
from tests.sim.recording import Recording

from magnetar.core.tasks import TaskSet
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import messages_of
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command

SUBSCRIPTION: Final = "keyed"
CONSUMERS: Final = 3
PERMITS: Final = 100
STAYS_S: Final = 4.0
AGAIN_S: Final = (0.1, 1.0)
ACK_S: Final = (0.0, 0.3)
QUIET_S: Final = 5.0
"""All consumers are attached and nothing comes: what was due has come."""
SETTLE_TIMEOUT_S: Final = 150.0
KEY_SHARED: Final = 3
EARLIEST: Final = 1


class KeyedConsumer:
    """One consumer; `run` until cancelled."""

    def __init__(
        self, client: Client, recording: Recording, topic: str, name: str, rng: random.Random
    ) -> None:
        self.number = 0
        self.calm = asyncio.Event()
        self._client, self._recording, self._topic, self._name = client, recording, topic, name
        self._rng = rng
        self._gone = asyncio.Event()
        self._wire: Wire | None = None
        self._used = 0
        self._attached, self._heard_at = False, 0.0
        self._acks = TaskSet(f"{topic} {name}")
        self._new_session()

    def _new_session(self) -> None:
        where = (self._name, self._topic, SUBSCRIPTION)
        self._session = self._recording.session(*where, KEY_SHARED, EARLIEST)

    async def run(self) -> None:
        while True:
            with contextlib.suppress(Refused, *PASSING):
                wire = await self._client.broker_of(self._topic)
                await self._subscribe(wire)
                await self._stay()
            self._leave()
            await asyncio.sleep(self._rng.uniform(*AGAIN_S))

    async def _subscribe(self, wire: Wire) -> None:
        self.number = next(self._client.ids)
        wire.consumers[self.number] = self
        self._wire, self._used = wire, 0
        self._gone.clear()
        command = pb.CommandSubscribe(
            topic=self._topic,
            subscription=SUBSCRIPTION,
            subType=pb.CommandSubscribe.Key_Shared,
            consumer_id=self.number,
            consumer_name=self._name,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        self._new_session()
        await self._session.subscribe(wire, command, None)
        self._attached, self._heard_at = True, time.monotonic()
        self._flow(PERMITS)

    def _flow(self, permits: int) -> None:
        if self._wire is not None:
            command = pb.CommandFlow(consumer_id=self.number, messagePermits=permits)
            self._wire.write(encode_command(CommandType.FLOW, command))

    async def _stay(self) -> None:
        """Until the broker sends it away, or for a while unless all is calm."""
        stays = asyncio.ensure_future(self._gone.wait())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rng.expovariate(1 / STAYS_S)):
                await asyncio.shield(stays)
        if self.calm.is_set():
            await stays
        stays.cancel()

    def _leave(self) -> None:
        wire, self._wire = self._wire, None
        self._attached = False
        self._session.closed()
        if wire is not None and wire.consumers.pop(self.number, None) is not None:
            command = pb.CommandCloseConsumer(consumer_id=self.number, request_id=1 << 40)
            wire.write(encode_command(CommandType.CLOSE_CONSUMER, command))

    async def _ack(self, wire: Wire, number: int, position: tuple[int, int]) -> None:
        session = self._session
        await asyncio.sleep(self._rng.uniform(*ACK_S))
        if wire.gone or wire.consumers.get(number) is not self:
            return
        command = pb.CommandAck(consumer_id=number, ack_type=pb.CommandAck.Individual)
        command.message_id.add(ledgerId=position[0], entryId=position[1])
        with contextlib.suppress(Refused, *PASSING):
            await session.ack(wire, command)

    @property
    def quiet_s(self) -> float:
        """For how long nothing has come to the attached consumer; 0 without a broker."""
        return time.monotonic() - self._heard_at if self._attached else 0.0

    async def stop(self) -> None:
        await self._acks.stop()

    # -- called by the connection

    def detached(self, redirect: str) -> None:
        self._wire, self._attached = None, False
        self._session.closed()
        self._gone.set()

    def command(self, kind: int, message: Any, payload: bytes | None) -> None:
        assert payload is not None
        self._heard_at = time.monotonic()
        metadata, messages = messages_of(payload)
        self._session.received(message, metadata, messages)
        self._used += len(messages)
        if self._used >= PERMITS // 2:
            self._flow(self._used)
            self._used = 0
        if self._wire is not None:
            position = (message.message_id.ledgerId, message.message_id.entryId)
            self._acks.start(self._ack(self._wire, self.number, position), name="ack")


async def consume(services: list[str], topics: list[str], histories: Histories) -> None:
    """Until two lines have come on stdin, and then nothing for a while."""
    rng = random.Random()
    addresses = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in services)]
    recordings = {topic: by_wire(histories.of(topic)) for topic in topics}
    consumers = [
        KeyedConsumer(
            Client(addresses, rng.randrange),
            recordings[topic],
            topic,
            f"keyed-{number}",
            random.Random(rng.random()),
        )
        for topic in topics
        for number in range(CONSUMERS)
    ]
    tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
    await asyncio.to_thread(sys.stdin.readline)
    for consumer in consumers:
        consumer.calm.set()
    await asyncio.to_thread(sys.stdin.readline)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while min(one.quiet_s for one in consumers) < QUIET_S:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)
    for topic, recording in recordings.items():
        recording.drained(topic, SUBSCRIPTION)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    for consumer in consumers:
        await consumer.stop()
    for error in ended:
        if not isinstance(error, asyncio.CancelledError):
            raise RuntimeError("a consumer ended before its time") from error


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--services", nargs="+", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--topics", nargs="+", required=True)
    args = parser.parse_args()
    with Histories(args.out, args.topics) as histories:
        asyncio.run(consume(args.services, args.topics, histories))


if __name__ == "__main__":
    main()
