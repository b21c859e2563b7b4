"""Producers send, repeat, reconnect and restart while a topic crashes, in any order.

The model is a client as the official ones are: it sends every message without a receipt again, in
order, after each reconnection, and it reconnects after an error. At the end every message that it
counts as sent is stored, none is stored twice, and each producer's messages have its order.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.broker.topic.dedup_stage import attach, crashed, entry, run_of_entries, stored
from tests.unit.broker.topic.stage import ProducerSink, stage
from tests.unit.ledger.stage import turns

from magnetar.broker.topic.producer import Producer
from magnetar.wire.entry import parse_metadata

NAMES = ("a", "b")
TURNS = 80
ROUNDS_MAX = 50
"""Reconnections until everything has its receipt: far more than any schedule needs."""

T = TypeVar("T")


@dataclass
class Client:
    """One producing application with a fixed name."""

    name: str
    producer: Producer | None = None
    sink: ProducerSink = field(default_factory=ProducerSink)
    next_id: int = 0
    life: int = 0
    pending: list[bytes] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    confirmed: dict[int, bytes | None] = field(default_factory=dict)
    """The first id of each receipted entry, and the entry if the receipt has its position."""
    seen: int = 0

    @property
    def attached(self) -> bool:
        return self.producer is not None and not self.producer.closed

    def heard(self) -> None:
        """Takes the receipts that have come since the last call."""
        receipts, self.seen = self.sink.receipts[self.seen :], len(self.sink.receipts)
        for numbers, ledger_id, _ in receipts:
            for number in numbers:
                if self.pending and parse_metadata(self.pending[0]).sequence_id == number:
                    data = self.pending.pop(0)
                    self.confirmed[number] = data if ledger_id >= 0 else None


class DeduplicationMachine(RuleBasedStateMachine):
    """A topic with deduplication, its bookie, and two clients."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clients = [Client(name) for name in NAMES]

    @initialize(every=st.sampled_from((1, 2, 5, 1000)))
    def begin(self, every: int) -> None:
        self.stage = stage(
            deduplication=True,
            retention_minutes=-1,
            retention_size_mb=-1,
            deduplication_snapshot_entries=every,
        )
        self.s = self.run(self.stage.__aenter__())
        self.topic = self.run(self.s.topic())

    def do(self, action: Callable[[], object]) -> None:
        """Calls `action` on the loop's thread of a running loop, as the broker's callers do."""

        async def called() -> None:
            action()

        self.run(called())

    def run(self, awaited: Awaitable[T]) -> T:
        async def limited() -> T:
            async with asyncio.timeout(20):
                return await awaited

        return self.loop.run_until_complete(limited())

    def settle(self) -> None:
        self.run(turns(TURNS))
        for client in self.clients:
            client.heard()
            if client.sink.errors and client.producer is not None:
                self.leave(client)

    def leave(self, client: Client) -> None:
        assert client.producer is not None
        producer, client.producer = client.producer, None
        if not producer.closed:
            self.do(lambda: self.topic.remove_producer(producer))

    def publish(self, client: Client, entries: list[bytes]) -> None:
        assert client.producer is not None
        if client.producer.ready and entries:
            producer = client.producer
            self.do(lambda: self.topic.publish(producer, run_of_entries(producer, entries)))

    @rule(client=st.sampled_from(range(2)), sizes=st.lists(st.integers(1, 3), max_size=3))
    def send(self, client: int, sizes: list[int]) -> None:
        sender = self.clients[client]
        entries = []
        for size in sizes:
            first, last = sender.next_id, sender.next_id + size - 1
            sender.next_id += size
            text = f"{sender.name}/{sender.life}/{first}"
            entries.append(entry(sender.name, first, last if size > 1 else None, text=text))
        sender.pending += entries
        sender.sent += entries
        if sender.attached:
            self.publish(sender, entries)

    @precondition(lambda self: any(client.sent for client in self.clients))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """An application sends a message a second time by itself."""
        sender = data.draw(st.sampled_from([client for client in self.clients if client.sent]))
        again = data.draw(st.sampled_from(sender.sent))
        if sender.attached:
            self.publish(sender, [again])

    @rule()
    def go_on(self) -> None:
        self.settle()

    @rule(client=st.sampled_from(range(2)))
    def reconnect(self, client: int) -> None:
        self.release()
        sender = self.clients[client]
        self.come_back(sender)
        self.publish(sender, list(sender.pending))

    def come_back(self, client: Client) -> None:
        if client.producer is not None:
            self.leave(client)
        client.producer, client.sink = self.run(attach(self.topic, client.name))
        client.seen = 0

    @rule(client=st.sampled_from(range(2)))
    def restart(self, client: int) -> None:
        """The application loses its messages without a receipt, and continues after the last id."""
        self.release()
        sender = self.clients[client]
        self.come_back(sender)
        assert sender.producer is not None
        sender.pending.clear()
        # It may repeat what has a receipt. What it lost, it numbers anew.
        confirmed = sender.confirmed.values()
        sender.sent = [data for data in sender.sent if data in confirmed]
        sender.life += 1
        sender.next_id = sender.producer.last_sequence_id + 1
        assert sender.next_id > max(sender.confirmed, default=-1)

    @rule()
    def hold(self) -> None:
        self.s.bookie.hold = True

    @rule()
    def release(self) -> None:
        self.do(self.s.bookie.release)
        self.settle()

    @rule()
    def refuse(self) -> None:
        """All appends in flight fail, and the clients are disconnected."""
        self.s.bookie.refuse = lambda _ledger, _ids: True
        self.release()
        self.s.bookie.refuse = lambda _ledger, _ids: False

    @rule(answered=st.booleans())
    def crash(self, answered: bool) -> None:
        if answered:
            self.release()
        self.s.bookie.held.clear()
        self.s.bookie.hold = False
        self.topic = self.run(crashed(self.s, self.topic))
        for client in self.clients:
            client.heard()
            client.producer = None

    @rule()
    def unload(self) -> None:
        self.release()
        self.run(self.s.service.topics.unload(self.topic.name))
        self.topic = self.run(self.s.topic())
        for client in self.clients:
            client.heard()
            client.producer = None

    @rule()
    def snapshot(self) -> None:
        if self.topic.deduplication is not None:
            self.do(self.topic.deduplication.snapshots.take)

    @rule()
    def roll(self) -> None:
        self.release()
        self.run(self.topic.managed_ledger.roll_over())

    def teardown(self) -> None:
        if not hasattr(self, "s"):
            self.loop.close()
            return
        try:
            self.release()
            for _ in range(ROUNDS_MAX):
                self.settle()
                waiting = [client for client in self.clients if client.pending]
                if not waiting:
                    break
                for client in waiting:
                    self.come_back(client)
                    self.publish(client, list(client.pending))
            assert not any(client.pending for client in self.clients)
            self.check(self.run(stored(self.topic)))
        finally:
            self.run(self.stage.__aexit__(None, None, None))
            self.loop.close()

    def check(self, entries: list[tuple[str, int, str]]) -> None:
        for client in self.clients:
            firsts = [first for name, first, _ in entries if name == client.name]
            assert firsts == sorted(set(firsts)), f"twice or out of order: {firsts}"
            texts = {first: text for name, first, text in entries if name == client.name}
            for first, data in client.confirmed.items():
                assert first in texts, f"{client.name}:{first} is lost"
                if data is not None:
                    assert data.endswith(texts[first].encode())


TestDeduplication = DeduplicationMachine.TestCase
TestDeduplication.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
