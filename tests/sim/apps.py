"""An application with our own client, `magnetar.client`, beside the raw clients of a run.

One process produces numbers under a fixed name and without a timeout, and reads them on two
subscriptions, whose acks have receipts. What the client promises, checked at once or at the end:

- every number that was sent gets a receipt, once all is healed, and comes to each subscription, in
  the producer's order: a number comes first after all smaller ones have come;
- a message whose ack has its receipt is not delivered again. Copies that the broker sent before it
  had the ack may be in the client's queue then, so this is judged as messages arrive;
- where topics deduplicate, a number has one message id, whatever broke on the way;
- the client leaves no task behind when it is closed.

The client draws its back-off from the run's seed, and has the clock of its own host.
"""

import asyncio
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from tests.sim.brokers import BROKER_PORT
from tests.sim.clocks import SimClock
from tests.sim.loop import Process

from magnetar.client import (
    BatchReceive,
    Client,
    Consumer,
    Message,
    MessageId,
    SubscriptionType,
    assemble,
)
from magnetar.client.errors import AlreadyClosed, ClientError
from magnetar.client.interceptors import ConsumerInterceptor

if TYPE_CHECKING:
    from tests.sim.world import World

TOPIC: Final = "persistent://public/default/app"
HOST: Final = "app"
SUBSCRIPTIONS: Final = {
    "exclusive": SubscriptionType.EXCLUSIVE,
    "shared": SubscriptionType.SHARED,
}
RECEIPTS: Final[Any] = {"ack_receipt": True, "batch_index_ack": True}
TOGETHER: Final = BatchReceive(messages_max=5, timeout_s=0.05)
AGAIN_S: Final = 0.2
"""Between two attempts to open what was refused or not answered."""
OPTIONS: Final[Any] = {"operation_timeout_s": 10.0, "connect_timeout_s": 4.0, "backoff_max_s": 2.0}


Place = tuple[int, int, int]
"""The ledger, the entry, and the index in its batch."""


class Subscription(ConsumerInterceptor):
    """What one subscription got."""

    def __init__(self, name: str, violated: Callable[[str], None]) -> None:
        self.name = name
        self._violated = violated
        self.got: set[int] = set()
        self.acked: set[Place] = set()
        """The messages whose ack has its receipt."""

    def before_consume(self, message: Message[Any]) -> Message[Any]:
        """A message has arrived."""
        place = place_of(message.id)
        if place in self.acked:
            self._violated(
                f"{TOPIC}/{self.name}: {message.data.decode()} at {place} arrived at the app after "
                "the receipt of its ack"
            )
        return message


class App:
    """See the module's text."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._plan = world.plan.app
        self.process = Process(world.loop, HOST, HOST)
        self._rng = Random(world.plan.seed ^ 0xA99)
        violated = world.history.violated
        self.subscriptions = [Subscription(name, violated) for name in SUBSCRIPTIONS]
        self._places: dict[int, Place] = {}
        self._sent = 0
        self._receipts = 0
        self._attached: asyncio.Queue[str] = asyncio.Queue()
        """The names of subscriptions that exist."""
        self._client: Client | None = None
        self._closed = False
        simulate_clients(world, self._rng)

    async def start(self) -> None:
        """Begins to work."""
        self.process.start(self._run(), "app")

    def missing(self) -> str:
        """What has not come yet; empty once all has."""
        if self._receipts < self._plan.messages:
            return f"the app has {self._receipts} receipts of {self._plan.messages}"
        for subscription in self.subscriptions:
            if lacks := set(range(self._sent)) - subscription.got:
                return f"{TOPIC}/{subscription.name}: {min(lacks)} has not come to the app"
        return ""

    async def close(self) -> None:
        """Closes the client, and looks for what it has left."""
        if self._client is not None:
            await self.process.start(self._client.close(), "close")
        await asyncio.sleep(AGAIN_S)
        left = [task for task in self.process.tasks if not task.done()]
        if left:
            self._world.history.violated(f"the closed client of the app has left {left}")

    async def _run(self) -> None:
        urls = ",".join(f"{broker.name}:{BROKER_PORT}" for broker in self._world.brokers)
        self._client = client = Client(f"pulsar://{urls}", **OPTIONS)
        for subscription in self.subscriptions:
            self.process.start(self._consume(client, subscription), f"app {subscription.name}")
        for _ in self.subscriptions:
            await self._attached.get()
        producer = await self._opened(lambda: client.producer(TOPIC, name="app", send_timeout_s=0))
        receipts: list[asyncio.Future[Any]] = []
        for number in range(self._plan.messages):
            future = producer.send_nowait(b"%d" % number)
            future.add_done_callback(lambda done: self._receipted(done))
            receipts.append(future)
            self._sent = number + 1
            await asyncio.sleep(self._rng.expovariate(1 / self._plan.pace_s))

    def _receipted(self, done: "asyncio.Future[Any]") -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            self._world.history.violated(f"a message of the app has failed: {error!r}")
        self._receipts += 1

    async def _opened(self, opening: Any) -> Any:
        while True:
            try:
                return await opening()
            except ClientError:
                await asyncio.sleep(AGAIN_S)

    async def _consume(self, client: Client, subscription: Subscription) -> None:
        kind = SUBSCRIPTIONS[subscription.name]
        consumer: Consumer[bytes] = await self._opened(
            lambda: client.consumer(
                TOPIC, subscription.name, type=kind, interceptors=[subscription], **RECEIPTS
            )
        )
        self._attached.put_nowait(subscription.name)
        while True:
            try:
                messages = await consumer.receive_many(TOGETHER)
            except AlreadyClosed:
                return  # the run is over
            for message in messages:
                self._received(subscription, int(message.data), place_of(message.id))
            try:
                await consumer.ack_many(messages)
            except (ClientError, TimeoutError):
                continue  # they come again, unless the broker has the acks
            subscription.acked.update(place_of(message.id) for message in messages)

    def _received(self, subscription: Subscription, number: int, place: Place) -> None:
        violated = self._world.history.violated
        where = f"{TOPIC}/{subscription.name}: {number}"
        if number and number not in subscription.got and number - 1 not in subscription.got:
            violated(f"{where} came to the app before {number - 1}")
        subscription.got.add(number)
        known = self._places.setdefault(number, place)
        if known != place and self._world.plan.deduplicates:
            violated(f"{where} is stored at {known} and at {place}")
        self._world.watching.counts["the app got a message"] += 1


def simulate_clients(world: "World", rng: Random) -> None:
    """Clients draw from `rng`, and have the clock of the run."""
    setattr(assemble, "random", SimpleNamespace(Random=lambda: rng))  # noqa: B010
    setattr(assemble, "SystemClock", lambda: SimClock(world.loop))  # noqa: B010


def place_of(message_id: MessageId) -> Place:
    """The place of a message in its topic."""
    return message_id.ledger_id, message_id.entry_id, message_id.batch_index
