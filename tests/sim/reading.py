"""A reader that takes everything a subscription has, in order, from its first message."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tests.sim.brokers import BROKER_PORT
from tests.sim.client import PASSING, Client, Refused, Wire
from tests.sim.history import Position
from tests.sim.recording import Session
from tests.sim.workload import EXCLUSIVE, LATEST

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import messages_of
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command

if TYPE_CHECKING:
    from tests.sim.world import World

Found = tuple[Position, tuple[str, int], bytes]

PERMITS: Final = 100_000
READ_S_MAX: Final = 120.0
TAIL_S: Final = 1.0


class _Reader:
    """What comes of one subscribe."""

    def __init__(self, until: Position, session: Session) -> None:
        self.number = 1
        self.found: list[Found] = []
        self.complete = asyncio.Event()
        self.gone = asyncio.Event()
        self._until, self._session = until, session

    def command(self, kind: int, message: Any, payload: bytes | None) -> None:
        assert payload is not None
        position = (message.message_id.ledgerId, message.message_id.entryId)
        metadata, messages = messages_of(payload)
        self._session.received(message, metadata, messages)
        for index, one in enumerate(messages):
            key = (metadata.producer_name, metadata.sequence_id + index)
            self.found.append((position, key, one.payload))
        if position >= self._until:
            self.complete.set()

    def detached(self, redirect: str) -> None:
        self._session.closed()
        self.gone.set()
        self.complete.set()


async def read_all(world: "World", topic: str, subscription: str, until: Position) -> list[Found]:
    """Everything from the subscription's first message to `until`, and what follows shortly."""
    client = Client([(broker.name, BROKER_PORT) for broker in world.brokers], world.rng.randrange)
    async with asyncio.timeout(READ_S_MAX):
        while True:
            try:
                wire = await client.broker_of(topic)
                return await _read(world, wire, topic, subscription, until)
            except (Refused, *PASSING):
                await asyncio.sleep(0.3)


async def _read(
    world: "World", wire: Wire, topic: str, subscription: str, until: Position
) -> list[Found]:
    record = world.history.recording
    session = record.session("reader", topic, subscription, EXCLUSIVE, LATEST)
    reader = _Reader(until, session)
    wire.consumers[reader.number] = reader
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=subscription,
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=reader.number,
    )
    await session.subscribe(wire, command, None)
    flow = pb.CommandFlow(consumer_id=reader.number, messagePermits=PERMITS)
    wire.write(encode_command(CommandType.FLOW, flow))
    await reader.complete.wait()
    await asyncio.sleep(TAIL_S)
    if reader.gone.is_set():
        raise ConnectionError("the consumer was closed")
    record.drained(topic, subscription)
    return reader.found
