"""A consumer over its own wire that notes the history it sees, and acks with receipts."""

import asyncio
import contextlib
import random
import time
from typing import Any, Final
from urllib.parse import urlsplit

from tests.history.events import Kind
from tests.sim.client import ACTIVE_CONSUMER_CHANGE, PASSING, Client, Refused, Wire
from tests.sim.recording import KINDS, Recording

from magnetar.core.tasks import TaskSet
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import messages_of
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command

PERMITS: Final = 100
STAYS_S: Final = 4.0
AGAIN_S: Final = (0.1, 1.0)
ACK_S: Final = (0.0, 0.3)
EARLIEST: Final = 1


def addresses_of(services: list[str]) -> list[tuple[str, int]]:
    """`host:port` as pairs."""
    urls = [urlsplit(f"//{service}") for service in services]
    return [(str(url.hostname), int(url.port or 0)) for url in urls]


class WireConsumer:
    """Attaches, stays for a while, does something (`act`) and attaches again.

    `run` until cancelled; once `calm` is set it stays.
    """

    def __init__(
        self,
        client: Client,
        recording: Recording,
        topic: str,
        subscription: str,
        kind: Kind,
        name: str,
        rng: random.Random,
    ) -> None:
        self.number = 0
        self.topic, self.subscription = topic, subscription
        self.calm = asyncio.Event()
        self.recording, self.rng = recording, rng
        self._client, self._kind, self._name = client, KINDS.index(kind), name
        self._gone = asyncio.Event()
        self._wire: Wire | None = None
        self._used = 0
        self._attached, self._heard_at = False, 0.0
        self._acks = TaskSet(f"{topic} {name}")
        self._new_session()

    def _new_session(self) -> None:
        where = (self._name, self.topic, self.subscription)
        self.session = self.recording.session(*where, self._kind, EARLIEST)

    async def run(self) -> None:
        while True:
            with contextlib.suppress(Refused, *PASSING):
                wire = await self._client.broker_of(self.topic)
                await self._subscribe(wire)
                if await self._stayed():
                    await self.act(wire)
            self.leave()
            await asyncio.sleep(self.rng.uniform(*AGAIN_S))

    async def act(self, wire: Wire) -> None:
        """What the consumer does before it leaves. May raise as `Wire.request` does."""

    async def stop(self) -> None:
        await self._acks.stop()

    @property
    def quiet_s(self) -> float:
        """For how long nothing has come to the attached consumer; 0 without a broker."""
        return time.monotonic() - self._heard_at if self._attached else 0.0

    async def _subscribe(self, wire: Wire) -> None:
        self.number = next(self._client.ids)
        wire.consumers[self.number] = self
        self._wire, self._used = wire, 0
        self._gone.clear()
        command = pb.CommandSubscribe(
            topic=self.topic,
            subscription=self.subscription,
            subType=self._kind,  # type: ignore[arg-type]
            consumer_id=self.number,
            consumer_name=self._name,
            initialPosition=EARLIEST,  # type: ignore[arg-type]
        )
        self._new_session()
        await self.session.subscribe(wire, command, None)
        self._attached, self._heard_at = True, time.monotonic()
        self._flow(PERMITS)

    def _flow(self, permits: int) -> None:
        if self._wire is not None:
            command = pb.CommandFlow(consumer_id=self.number, messagePermits=permits)
            self._wire.write(encode_command(CommandType.FLOW, command))

    async def _stayed(self) -> bool:
        """Whether the consumer still has its broker after a while; without an end once calm."""
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait([gone], timeout=self.rng.expovariate(1 / STAYS_S))
            if self.calm.is_set():
                await gone
            return not gone.done()
        finally:
            gone.cancel()

    def leave(self) -> None:
        """Closes the consumer, with what it holds."""
        wire, self._wire = self._wire, None
        self._attached = False
        self.session.closed()
        if wire is not None and wire.consumers.pop(self.number, None) is not None:
            command = pb.CommandCloseConsumer(consumer_id=self.number, request_id=1 << 40)
            wire.write(encode_command(CommandType.CLOSE_CONSUMER, command))

    async def _ack(self, wire: Wire, number: int, position: tuple[int, int]) -> None:
        session = self.session
        await asyncio.sleep(self.rng.uniform(*ACK_S))
        if wire.gone or wire.consumers.get(number) is not self:
            return
        command = pb.CommandAck(consumer_id=number, ack_type=pb.CommandAck.Individual)
        command.message_id.add(ledgerId=position[0], entryId=position[1])
        with contextlib.suppress(Refused, *PASSING):
            await session.ack(wire, command)

    # -- called by the connection

    def detached(self, redirect: str) -> None:
        self._wire, self._attached = None, False
        self.session.closed()
        self._gone.set()

    def command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind == ACTIVE_CONSUMER_CHANGE:
            return
        assert payload is not None
        self._heard_at = time.monotonic()
        metadata, messages = messages_of(payload)
        self.session.received(message, metadata, messages)
        self._used += len(messages)
        if self._used >= PERMITS // 2:
            self._flow(self._used)
            self._used = 0
        if self._wire is not None:
            position = (message.message_id.ledgerId, message.message_id.entryId)
            self._acks.start(self._ack(self._wire, self.number, position), name="ack")
