"""What `explain` says while transactions are recovered, on a broker whose store or bookie fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.memory_bookie import MemoryBookie
from tests.support.raw_client import RawClient
from tests.support.transactional import SHARED, TransactionalClient
from tests.unit.ledger.stage import turns

from magnetar.bookie.api import BookieError, StoredEntry
from magnetar.broker.explain.gather.message import MessageId
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.clock import SystemClock
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.documents.explain import Finding
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import MetadataUnavailable, Record
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.transactions import records

NAME = parse_topic("persistent://public/default/t")
TOPIC = str(NAME)
CODE = "transaction_recovery"
WAIT_S = 30.0


class Store(MemoryStore):
    """A metadata store that refuses reads of the records of transactions, or never answers them."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.refuses = False
        self.delays = False
        self.waiting = 0

    async def get(self, key: str) -> Record | None:
        if key.startswith(records.PREFIX) and key.count("/") == 3:
            if self.refuses:
                raise MetadataUnavailable("no leader")
            if self.delays:
                self.waiting += 1
                await asyncio.Event().wait()
        return await super().get(key)


class Bookie(MemoryBookie):
    """A bookie that cannot read, while `failing`."""

    failing = False

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        if self.failing:
            raise BookieError("the disk does not answer")
        return await super().read_entries(ledger_id, first, last, bytes_max=bytes_max, fence=fence)


@dataclass(slots=True)
class Rig:
    """A broker, its store and bookie, and a client."""

    service: BrokerService
    store: Store
    bookie: Bookie
    client: TransactionalClient

    async def reloaded(self) -> PersistentTopic:
        await self.service.topics.unload(NAME)
        topic = await self.service.topics.get_or_open(NAME, create=False)
        assert isinstance(topic, PersistentTopic)
        return topic

    async def consumer(self) -> tuple[RawClient, int]:
        """A waiting consumer: without one, that is the first reason."""
        connection = await self.client.at(TOPIC)
        consumer = await connection.consumer(TOPIC, "s", kind=SHARED)
        connection.flow(consumer, 10)
        return connection, consumer

    async def found(self, topic: PersistentTopic, at: Position | None = None) -> Finding:
        explainer = self.service.diagnosis.explainer
        if at is None:
            return (await explainer.subscription(topic, "s")).findings[0]
        return (await explainer.message(topic, "s", MessageId(at))).findings[0]

    async def failed(self, topic: PersistentTopic, at: Position | None = None) -> Finding:
        """Returns the finding once an attempt of the recovery has failed."""
        async with asyncio.timeout(WAIT_S):
            while not (found := await self.found(topic, at)).evidence.get("failed_attempts"):
                await turns(1)
        return found


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    store, bookie = Store(), Bookie()
    settings = compose(BrokerSettings, transactions=True)
    async with (
        running_broker(settings, store, bookie) as (service, port),
        TransactionalClient((HOST, port)) as client,
    ):
        yield Rig(service, store, bookie, client)


@pytest.mark.parametrize("trouble", ["refuses", "delays"])
async def test_a_store_without_answers_is_the_reason_with_its_error_and_its_times(
    monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """The transaction has acked a message and sent one; it may have ended by now."""
    monkeypatch.setattr(records, "READ_TIMEOUT_S", 0.05)
    async with rig() as on:
        client = on.client
        await client.receive(TOPIC, 0)
        await client.send(TOPIC, None, b"acked")
        txn = await client.begin()
        await client.add(txn, TOPIC)
        await client.add_subscription(txn, TOPIC, "s")
        connection, consumer, taken = await client.receive(TOPIC, 1)
        await client.ack(connection, consumer, txn, taken)
        await client.send(TOPIC, txn, b"in it")
        setattr(on.store, trouble, True)
        topic = await on.reloaded()
        connection, consumer = await on.consumer()
        error = "no leader" if trouble == "refuses" else "could not be read in time"
        acked = Position(taken[0].ledger_id, taken[0].entry_id)
        for at in (acked, topic.managed_ledger.last_confirmed):
            found = await on.failed(topic, at)
            assert found.code == CODE
            assert found.since is not None
            evidence = found.evidence
            assert evidence["transaction"] == "(0,0)"
            assert error in str(evidence["error"])
            assert error in found.summary
            assert cast("int", evidence["failed_attempts"]) >= 1
            assert evidence["last_failure"] is not None
            assert "cannot be read" in found.summary
            assert "metadata store" in found.next_step.text
            # Nobody knows whether it is open: an abort is no remedy.
            assert "abort" not in found.next_step.command
        assert (await on.failed(topic)).code == CODE
        setattr(on.store, trouble, False)
        await client.end(txn, commit=True)
        assert (await connection.receive(consumer)).payload == b"in it"
        assert (await on.found(topic)).code == "in_flight"
        assert (await on.found(topic, acked)).code == "already_acknowledged"


async def test_a_record_that_can_be_read_again_says_that_the_transaction_is_open() -> None:
    async with rig() as on:
        txn = await on.client.begin()
        await on.client.add(txn, TOPIC)
        await on.client.receive(TOPIC, 0)
        await on.client.send(TOPIC, txn, b"in it")
        on.store.refuses = True
        topic = await on.reloaded()
        await on.consumer()
        at = topic.managed_ledger.last_confirmed
        assert (await on.failed(topic, at)).code == CODE
        on.store.refuses = False
        found = await on.found(topic, at)
        assert found.code == "transaction_open"
        assert found.evidence["state"] == "OPEN"
        assert "abort-transaction" in found.next_step.command


async def test_entries_that_cannot_be_read_are_the_reason_with_their_ledger_and_bookies() -> None:
    async with rig() as on:
        txn = await on.client.begin()
        await on.client.add(txn, TOPIC)
        await on.client.receive(TOPIC, 0)
        await on.client.send(TOPIC, txn, b"in it")
        await on.service.topics.unload(NAME)
        on.bookie.failing = True
        topic = await on.service.topics.get_or_open(NAME, create=False)
        assert isinstance(topic, PersistentTopic)
        last = topic.managed_ledger.last_confirmed
        connection, consumer = await on.consumer()
        found = await on.failed(topic)
        assert found.code == CODE
        assert found.since is not None
        assert found.evidence["position"] == str(last)
        assert found.evidence["ensemble"] == ["memory"]
        assert found.evidence["error"]
        assert str(found.evidence["error"]) in found.summary
        assert found.next_step.command == f"magnetar ledger check {last.ledger_id}"
        on.bookie.failing = False
        await on.client.end(txn, commit=True)
        assert (await connection.receive(consumer)).payload == b"in it"
        assert (await on.found(topic)).code == "in_flight"


async def test_a_recovery_without_failures_says_since_when_it_runs() -> None:
    async with rig() as on:
        txn = await on.client.begin()
        await on.client.add(txn, TOPIC)
        await on.client.receive(TOPIC, 0)
        await on.client.send(TOPIC, txn, b"in it")
        on.store.delays = True
        topic = await on.reloaded()
        await on.consumer()
        at = topic.managed_ledger.last_confirmed
        async with asyncio.timeout(WAIT_S):
            while topic.transactions.lookups is None or not on.store.waiting:
                await turns(1)
        on.store.delays = False  # for what explain itself reads; the broker's read waits
        on.store.refuses = True
        found = await on.found(topic, at)
        assert (found.code, found.evidence["failed_attempts"]) == (CODE, 0)
        assert found.since is not None
        assert found.evidence["error"] is None
        on.store.refuses = False
        await on.client.end(txn, commit=False)
        assert (await on.found(topic, at)).code == "transaction_aborted"
