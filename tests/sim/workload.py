"""Producers and consumers of the simulation: they do as official clients do, and note it all.

A producer numbers its messages, sends them alone or in batches, and after every loss of its
connection sends again, in order, what has no receipt. A consumer acks entry by entry, with a
receipt or without, now or later, and begins anew wherever its topic went.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.history.events import Outcome
from tests.sim.client import ACTIVE_CONSUMER_CHANGE, PASSING, Client, Refused, Wire
from tests.sim.clocks import WALL_MS_AT_START
from tests.sim.history import History, Position, SubscriptionHistory, TopicHistory
from tests.sim.keyed_order import KeyedOrder
from tests.sim.plan import DelayPlan
from tests.sim.recording import Session

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import build_batch, messages_of
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command, encode_send

BACKOFF_S: Final = (0.05, 0.8)
PERMITS: Final = 64
SEND_TIMEOUT_S: Final = 15.0
NO_LEDGER: Final = (1 << 64) - 1
"""In the receipt of a message that is stored already."""
ACK_ERRORS: Final = (Refused, *PASSING)

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
LATEST, EARLIEST = range(2)


CUTS_S: Final = (0.0005, 0.003, 0.02, 0.3, 1.5)
"""About how long after a command its client closes the connection, where it does."""
REST_S: Final = (2.0, 8.0)
KEYS: Final = 7
DELAY_S_MAX: Final = 40.0
HOARDED_S_MAX: Final = 6.0
"""How long an ack is kept for the closing of its topic."""


@dataclass(slots=True)
class Habits:
    """What clients of a run do that those of other runs do not; `calm` when all has healed."""

    cut_chance: float = 0.0
    rest_chance: float = 0.0
    hoard_chance: float = 0.0
    again_chance: float = 0.0
    """The chance that an ack without a receipt is followed by the same ack with one."""
    error_s_max: float = 0.0  # a producer sends on for so long after a SEND_ERROR
    delays: DelayPlan = field(default_factory=DelayPlan)
    calm: bool = False
    on_ack_receipt: Callable[[str], None] = lambda _: None
    """Called with the topic when the receipt of an ack, or of a commit of acks, has come."""

    def cut_s(self, rng: Random) -> float | None:
        """When to close the connection on which a command is under way; None: not at all."""
        if self.calm or not self.cut_chance or rng.random() >= self.cut_chance:
            return None
        return rng.choice(CUTS_S) * rng.uniform(0.2, 1.5)


def key_of(sequence: int) -> str:
    """The key of a batch, by its first message."""
    return str(sequence % KEYS)


@dataclass(slots=True)
class Unit:
    """One SEND: the sequence ids of its messages."""

    sequences: range
    payloads: list[bytes]
    deliver_at: float = 0.0
    """In seconds of the run; 0: at once."""


class Producer:
    """See the module's text; `run` until `finished` and everything is receipted."""

    def __init__(
        self,
        client: Client,
        history: History,
        topic: str,
        name: str,
        rng: Random,
        *,
        messages: int,
        pace_s: float,
        size_bytes: int,
        habits: Habits,
    ) -> None:
        self.topic, self.name = topic, name
        self._habits = habits
        self.number = 0
        self._client, self._history, self._rng = client, history, rng
        self._log = history.topic(topic)
        self._left, self._pace_s, self._size = messages, pace_s, size_bytes
        self._next = 0
        self._unreceipted: deque[Unit] = deque()
        self._awaited: deque[Unit] = deque()
        """Sent on this connection and not receipted."""
        self._wire: Wire | None = None
        self._changed = asyncio.Event()
        self._redirect = ""
        self._oldest_at = 0.0
        self.attached = 0

    @property
    def done(self) -> bool:
        return not self._left and not self._unreceipted

    async def run(self) -> None:
        rng = self._rng
        while not self.done:
            try:
                wire = await self._client.broker_of(self.topic)
                await self._attach(wire)
                await self._produce()
            except (Refused, *PASSING):
                pass
            self._leave()
            await asyncio.sleep(rng.uniform(*BACKOFF_S))

    async def _attach(self, wire: Wire) -> None:
        self.number = next(self._client.ids)
        command = pb.CommandProducer(
            topic=self.topic, producer_id=self.number, producer_name=self.name
        )
        wire.producers[self.number] = self
        self._wire = wire
        self._awaited.clear()
        self._changed.clear()
        await wire.request(CommandType.PRODUCER, command, cut_s=self._habits.cut_s(self._rng))
        self.attached += 1
        self._oldest_at = asyncio.get_running_loop().time()
        for unit in self._unreceipted:
            self._send(unit)

    def _leave(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None and wire.producers.pop(self.number, None) is not None:
            # The broker did not close it: it may believe that the producer is attached.
            command = pb.CommandCloseProducer(producer_id=self.number, request_id=1 << 40)
            wire.write(encode_command(CommandType.CLOSE_PRODUCER, command))

    async def _produce(self) -> None:
        loop, rng = asyncio.get_running_loop(), self._rng
        while self._wire is not None and not self.done:
            if self._left and len(self._unreceipted) < 32:
                for _ in range(rng.choice((1, 1, 2, 5))):
                    self._new()
                await asyncio.sleep(rng.expovariate(1.0) * self._pace_s + self._rest_s())
                continue
            self._changed.clear()
            try:
                async with asyncio.timeout(1.0):
                    await self._changed.wait()
            except TimeoutError:
                if self._awaited and loop.time() - self._oldest_at > SEND_TIMEOUT_S:
                    return

    def _rest_s(self) -> float:
        habits = self._habits
        if habits.calm or not habits.rest_chance or self._rng.random() >= habits.rest_chance:
            return 0.0
        return self._rng.uniform(*REST_S)

    def _new(self) -> None:
        if not self._left:
            return
        count = min(self._rng.choice((1, 1, 1, 4, 10)), self._left)
        sequences = range(self._next, self._next + count)
        self._next += count
        self._left -= count
        payloads = []
        deliver_at = self._deliver_at()
        key = key_of(sequences[0])
        for index, sequence in enumerate(sequences):
            head = f"{self.name}|{sequence}|".encode()
            payload = head + self._rng.randbytes(self._rng.randint(1, self._size))
            payloads.append(payload)
            now = self._history.now()
            how = (self.name, sequence, payload, now)
            self._log.add(*how, key=key, index=index, deliver_at=deliver_at)
        unit = Unit(sequences, payloads, deliver_at)
        self._unreceipted.append(unit)
        self._send(unit)

    def _deliver_at(self) -> float:
        delays = self._habits.delays
        if not delays.chance or self._rng.random() >= delays.chance:
            return 0.0
        return self._history.now() + min(self._rng.expovariate(1 / delays.delay_s), DELAY_S_MAX)

    def _send(self, unit: Unit) -> None:
        wire = self._wire
        if wire is None:
            return
        for sequence in unit.sequences:
            self._log.sent[self.name, sequence].sends += 1
        if not self._awaited:
            self._oldest_at = asyncio.get_running_loop().time()
        self._awaited.append(unit)
        first, last = unit.sequences[0], unit.sequences[-1]
        metadata = pb.MessageMetadata(
            producer_name=self.name, sequence_id=first, publish_time=1_800_000_000_000
        )
        metadata.partition_key = key_of(first)
        if unit.deliver_at:
            metadata.deliver_at_time = WALL_MS_AT_START + int(unit.deliver_at * 1000)
        command = pb.CommandSend(producer_id=self.number, sequence_id=first)
        payload = unit.payloads[0]
        if first != last:
            count = len(unit.payloads)
            metadata.num_messages_in_batch = command.num_messages = count
            command.highest_sequence_id = metadata.highest_sequence_id = last
            payload = build_batch((pb.SingleMessageMetadata(), one) for one in unit.payloads)
        wire.write(encode_send(command, metadata, payload))

    # -- called by the connection ----------------------------------------------------------

    def command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind == CommandType.SEND_ERROR:
            if self._wire is not None:
                self._wire.abort_within(self._habits.error_s_max, self._rng)
            return
        position = (message.message_id.ledgerId, message.message_id.entryId)
        if not self._awaited or self._awaited[0].sequences[0] != message.sequence_id:
            self._history.violated(
                f"{self.topic}: receipt of {self.name}:{message.sequence_id} at {position} "
                f"is not that of the next message"
            )
            return
        unit = self._awaited.popleft()
        assert self._unreceipted[0] is unit
        self._unreceipted.popleft()
        self._oldest_at = asyncio.get_running_loop().time()
        if position[0] == NO_LEDGER:
            self._history.deduplicated(self._log, self.name, unit.sequences)
        else:
            self._history.receipted(self._log, self.name, unit.sequences, position)
            key = key_of(unit.sequences[0])
            self._log.published(key, position, delayed=unit.deliver_at > 0)
        self._changed.set()

    def detached(self, redirect: str) -> None:
        self._wire = None
        self._redirect = redirect
        self._changed.set()


class Consumer:
    """See the module's text; `run` until cancelled."""

    def __init__(
        self,
        client: Client,
        history: History,
        topic: str,
        subscription: str,
        kind: int,
        rng: Random,
        habits: Habits,
        *,
        acks: bool = True,
    ) -> None:
        self.topic, self.kind = topic, kind
        self.number = 0
        self.subscription = subscription
        self.initial = EARLIEST
        self._serving = False
        self._habits = habits
        self._hurry: asyncio.Future[float] | None = None
        self.subscribed = asyncio.Event()
        self._client, self._history, self._rng = client, history, rng
        self._log: TopicHistory = history.topic(topic)
        self._of: SubscriptionHistory = self._log.subscription(subscription)
        self._acks = acks
        if kind == KEY_SHARED and self._of.keyed is None:
            self._of.keyed = KeyedOrder(f"{topic}/{subscription}", history.violated)
        self._wire: Wire | None = None
        self._gone = asyncio.Event()
        self._subscribed_at = 0.0
        self._used = 0
        self._last: Position = (-1, -1)
        self._acked_here: set[Position] = set()
        """Acks that have their receipt on this attachment."""
        self._acking: set[asyncio.Task[None]] = set()
        self.name = f"{subscription}-{rng.randrange(1 << 30):x}"
        self._session = self._new_session()

    async def run(self) -> None:
        while True:
            try:
                wire = await self._client.broker_of(self.topic)
                await self._attach(wire)
                await self._gone.wait()
            except (Refused, *PASSING):
                pass
            await self._leave()
            await asyncio.sleep(self._rng.uniform(*BACKOFF_S))

    async def _attach(self, wire: Wire) -> None:
        self.number = next(self._client.ids)
        self._gone.clear()
        wire.consumers[self.number] = self
        self._wire, self._serving = wire, False
        self._used = 0
        self._last = (-1, -1)
        self._acked_here.clear()
        self._subscribed_at = asyncio.get_running_loop().time()
        command = pb.CommandSubscribe(
            topic=self.topic,
            subscription=self.subscription,
            subType=self.kind,  # type: ignore[arg-type]
            consumer_id=self.number,
            consumer_name=self.name,
            initialPosition=self.initial,  # type: ignore[arg-type]
        )
        self._session = self._new_session()
        cut_s = self._habits.cut_s(self._rng)
        await self._session.subscribe(wire, command, cut_s, self._promised)
        self._attached()
        self._flow(PERMITS)

    def _new_session(self) -> Session:
        record = self._history.recording
        return record.session(self.name, self.topic, self.subscription, self.kind, self.initial)

    def _promised(self) -> bool:
        """Whether the SUCCESS that has come promises that the subscription exists."""
        return True

    def _attached(self) -> None:
        """Records that the subscription exists: the broker has answered."""
        self.subscribed.set()
        self._serving = True

    async def _leave(self) -> None:
        wire, self._wire = self._wire, None
        self._session.closed()
        if wire is not None and wire.consumers.pop(self.number, None) is not None:
            command = pb.CommandCloseConsumer(consumer_id=self.number, request_id=1 << 40)
            wire.write(encode_command(CommandType.CLOSE_CONSUMER, command))

    @property
    def serving(self) -> bool:
        """Whether the broker has it attached, as far as it knows."""
        return self._wire is not None and self._serving

    async def leave(self) -> None:
        """Goes, in order, as a client that is closed."""
        for task in self._acking:
            task.cancel()
        await self._leave()

    def _flow(self, permits: int) -> None:
        if self._wire is not None:
            command = pb.CommandFlow(consumer_id=self.number, messagePermits=permits)
            self._wire.write(encode_command(CommandType.FLOW, command))

    # -- called by the connection ----------------------------------------------------------

    def detached(self, redirect: str) -> None:
        self._wire = None
        self._session.closed()
        self._gone.set()

    def command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind == ACTIVE_CONSUMER_CHANGE:
            self._last = (-1, -1)  # unacked messages are redelivered to the active consumer
            return
        assert payload is not None
        position = (message.message_id.ledgerId, message.message_id.entryId)
        metadata, messages = messages_of(payload)
        self._session.received(message, metadata, messages)
        first = metadata.sequence_id
        if position in self._acked_here:
            self._history.violated(
                f"{self.topic}/{self._of.name}: {position} came after the receipt of its ack, to "
                f"the consumer that acked it"
            )
        if self.kind in (SHARED, KEY_SHARED) and metadata.deliver_at_time:
            self._history.delays.delivered(self._of, metadata, position)
        elif self._of.keyed is not None:
            self._of.keyed.delivered(metadata.partition_key, position, (self.name, self.number))
        for index, one in enumerate(messages):
            key = (metadata.producer_name, first + index)
            self._history.delivered(
                self._log, self._of, key, one.payload, position, self._subscribed_at
            )
        if self.kind in (EXCLUSIVE, FAILOVER):
            if position <= self._last:
                self._history.violated(
                    f"{self.topic}/{self._of.name}: {position} came after {self._last}"
                )
            self._last = position
        self._used += len(messages)
        if self._used >= PERMITS // 2:
            self._flow(self._used)
            self._used = 0
        if self._acks:
            self._ack_somehow(position)

    def _ack_somehow(self, position: Position) -> None:
        wire, number = self._wire, self.number
        if wire is None:
            return
        way = self._rng.random()
        if way < 0.3:
            self._ack_unanswered(wire, number, position)
            return
        delay_s = 0.0 if way < 0.8 else self._rng.uniform(0.0, 1.5)
        habits, hoards = self._habits, False
        if habits.again_chance and self._rng.random() < habits.again_chance:
            self._ack_unanswered(wire, number, position)
            delay_s = 0.0
        if habits.hoard_chance and not habits.calm:
            hoards = self._rng.random() < habits.hoard_chance
        task = asyncio.get_running_loop().create_task(
            self._ack(wire, number, position, delay_s, hoards), name="ack"
        )
        self._acking.add(task)
        task.add_done_callback(self._acking.discard)

    def ack_early(self, position: Position) -> None:
        """Acks, now and then, a delayed message that it did not receive."""
        wire = self._wire
        if wire is None or not self.serving or self.kind not in (SHARED, KEY_SHARED):
            return
        if self._rng.random() < self._habits.delays.early_acks:
            self._of.acked_early.add(position)
            acking = self._ack(wire, self.number, position, 0.0, False)
            task = asyncio.get_running_loop().create_task(acking, name="early ack")
            self._acking.add(task)
            task.add_done_callback(self._acking.discard)

    def _ack_unanswered(self, wire: Wire, number: int, position: Position) -> None:
        command = self._ack_command(number, position)
        wire.write(encode_command(CommandType.ACK, command))
        self._session.acked(command, Outcome.UNKNOWN, self._history.now())

    def _ack_command(self, number: int, position: Position) -> pb.CommandAck:
        kind = pb.CommandAck.Individual
        if self.kind in (EXCLUSIVE, FAILOVER) and self._rng.random() < 0.3:
            kind = pb.CommandAck.Cumulative
        self._of.ack_sent(position, cumulative=kind == pb.CommandAck.Cumulative)
        command = pb.CommandAck(consumer_id=number, ack_type=kind)
        command.message_id.add(ledgerId=position[0], entryId=position[1])
        return command

    async def _ack(
        self, wire: Wire, number: int, position: Position, delay_s: float, hoards: bool
    ) -> None:
        await (self._hoard() if hoards else asyncio.sleep(delay_s))
        if wire.gone or number not in wire.consumers:
            return
        of, undone = self._of, self._of.undone
        try:
            command = self._ack_command(number, position)
            answer = await self._session.ack(wire, command)
        except ACK_ERRORS:
            return
        if not answer.HasField("error") and undone == of.undone:
            if self.kind in (SHARED, KEY_SHARED) and wire is self._wire and number == self.number:
                self._acked_here.add(position)
            of.acked.setdefault(position, self._history.now())
            self._ack_receipted(of)
            self._habits.on_ack_receipt(self.topic)

    def _ack_receipted(self, of: SubscriptionHistory) -> None:
        """An ack of that subscription has its receipt."""

    async def _hoard(self) -> None:
        """Waits until the topic is being closed, for so long."""
        if self._hurry is None:
            self._hurry = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(HOARDED_S_MAX):
                within_s = await asyncio.shield(self._hurry)
        except TimeoutError:
            return
        await asyncio.sleep(self._rng.uniform(0.0, within_s))

    def provoke(self) -> None:
        """The store answers badly from now on: a good moment to delete things."""

    def hurry(self, within_s: float) -> None:
        """Acks that wait for the closing of the topic are sent within that time."""
        hurry, self._hurry = self._hurry, None
        if hurry is not None and not hurry.done():
            hurry.set_result(within_s)
