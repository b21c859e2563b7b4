"""Topics that are deleted and made again under load, and subscriptions that seek back.

Each topic has a producer, and a consumer of each kind of subscription that delivers in order or to
any consumer. Between two attachments a consumer seeks to the earliest message, unsubscribes, or
deletes the topic by the admin REST. Nobody else uses these topics.
"""

import random
import time
from typing import Final
from urllib.parse import quote

import httpx
from tests.chaos.consumer import WireConsumer
from tests.history.events import Kept, Kind, Outcome
from tests.history.storage import Writer
from tests.sim.client import Client, Wire
from tests.sim.history import History
from tests.sim.recording import Recording
from tests.sim.workload import Habits, Producer

from magnetar.wire._pb import PulsarApi_pb2 as pb

KINDS: Final = (Kind.EXCLUSIVE, Kind.SHARED, Kind.FAILOVER)
REST_TIMEOUT_S: Final = 40.0
PACE_S: Final = 0.2
SIZE_BYTES_MAX: Final = 200
MESSAGES_MAX: Final = 1 << 40
EARLIEST_ID: Final = (1 << 64) - 1
ACTIONS: Final = (*["leave"] * 5, *["seek"] * 4, *["unsubscribe"] * 2, "delete topic")


class Mover(WireConsumer):
    """The only consumer of its subscription."""

    def __init__(
        self,
        client: Client,
        recording: Recording,
        topic: str,
        kind: Kind,
        admins: list[str],
        rng: random.Random,
    ) -> None:
        super().__init__(client, recording, topic, f"moved-{kind}", kind, f"moved-{kind}", rng)
        self._admins = admins

    async def act(self, wire: Wire) -> None:
        match self.rng.choice(ACTIONS):
            case "seek":
                seek = pb.CommandSeek(consumer_id=self.number)
                seek.message_id.ledgerId = seek.message_id.entryId = EARLIEST_ID
                await self.session.seek(wire, seek, None)
            case "unsubscribe":
                unsubscribe = pb.CommandUnsubscribe(consumer_id=self.number)
                await self.session.unsubscribe(wire, unsubscribe, None)
            case "delete topic":
                await self._delete_topic()

    async def _delete_topic(self) -> None:
        begun, outcome = self.recording.now(), Outcome.UNKNOWN
        path = quote(self.topic.replace("persistent://", "/admin/v2/persistent/"))
        url = f"{self.rng.choice(self._admins)}{path}"
        try:
            async with httpx.AsyncClient(timeout=REST_TIMEOUT_S, follow_redirects=True) as client:
                answer = await client.delete(url, params={"force": "true"})
            if answer.is_success:
                outcome = Outcome.OK
        except httpx.HTTPError:
            pass
        finally:
            self.recording.topic_deleted(self.topic, outcome, begun)


class Feed(Producer):
    """Sends numbered messages, alone and in batches, until it is ended."""

    def __init__(self, client: Client, topic: str, rng: random.Random) -> None:
        self.seen = History(time.monotonic)
        super().__init__(
            client,
            self.seen,
            topic,
            f"feed of {topic}",
            rng,
            messages=MESSAGES_MAX,
            pace_s=PACE_S,
            size_bytes=SIZE_BYTES_MAX,
            habits=Habits(),
        )

    def end(self) -> None:
        """Sends nothing new; `run` returns once everything is receipted."""
        self._left = 0

    def note(self, writer: Writer) -> None:
        """Writes what was sent, and which receipts came. Raises if a receipt was wrong."""
        for event in self.seen.recording.whole(self.seen.topics.values()):
            writer.write(event)
        if self.seen.violations:
            raise AssertionError(self.seen.violations)


def movers(
    addresses: list[tuple[str, int]],
    admins: list[str],
    topic: str,
    writer: Writer,
    rng: random.Random,
) -> list[Mover]:
    """The consumers of one topic, whose retention keeps everything."""
    writer.write(Kept(topic))
    recording = Recording(time.monotonic, writer.write)
    return [
        Mover(
            Client(addresses, rng.randrange),
            recording,
            topic,
            kind,
            admins,
            random.Random(rng.random()),
        )
        for kind in KINDS
    ]
