"""A connection as the producer registry sees it, and producers on it, for tests of access modes."""

import asyncio
from itertools import count

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.core.errors import MagnetarError
from magnetar.wire.events import SendRun


class RecordingSink:
    """Records what producers receive; the test decides whether the peer answers a ping."""

    address = "/127.0.0.1:1"
    client_version = "test"

    def __init__(self) -> None:
        self.pings: list[asyncio.Future[bool]] = []
        self.ready: list[Producer] = []
        self.refused: list[tuple[Producer, MagnetarError]] = []
        self.sent_away: list[Producer] = []

    async def is_alive(self) -> bool:
        ping: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.pings.append(ping)
        return await ping

    def producer_ready(self, producer: Producer) -> None:
        self.ready.append(producer)

    def producer_refused(self, producer: Producer, error: MagnetarError) -> None:
        self.refused.append((producer, error))

    def close_producer(self, producer: Producer, destination: BrokerRecord | None = None) -> None:
        self.sent_away.append(producer)

    def publishing(self, size_bytes: int) -> None:
        raise AssertionError("the registry publishes nothing")

    def pause_reading(self) -> None:
        raise AssertionError("the registry holds nothing")

    def resume_reading(self) -> None:
        raise AssertionError("the registry holds nothing")

    def send_receipts(
        self,
        producer: Producer,
        run: SendRun,
        ledger_id: int,
        first_entry_id: int,
        *,
        stored: bool = True,
    ) -> None:
        raise AssertionError("the registry publishes nothing")

    def send_errors(self, producer: Producer, run: SendRun, error: MagnetarError) -> None:
        raise AssertionError("the registry publishes nothing")


_numbers = count()


def new_producer(
    sink: RecordingSink,
    name: str = "",
    mode: AccessMode = AccessMode.SHARED,
    *,
    producer_id: int | None = None,
    epoch: int = 0,
    topic_epoch: int | None = None,
) -> Producer:
    """A producer that has not been added anywhere; its name is its own unless given."""
    number = next(_numbers)
    return Producer(
        number if producer_id is None else producer_id,
        name or f"producer-{number}",
        sink,
        epoch=epoch,
        generated_name=not name,
        access_mode=mode,
        topic_epoch=topic_epoch,
        request_id=number,
        connected_since_ms=0,
    )
