"""Each setting of transactions, by the name that operators use: it reaches the broker and acts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import pytest
from tests.unit.broker.topic.stage import Stage as BrokerStage
from tests.unit.broker.topic.stage import request, run_of, stage
from tests.unit.broker.transactions.stage import Connection
from tests.unit.ledger.stage import turns

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.transactions.coordinator import Caller, Coordinator
from magnetar.broker.transactions.service import Transactions
from magnetar.core.errors import TransactionCoordinatorNotFound, TransactionNotFound
from magnetar.core.tasks import TaskSet
from magnetar.settings.load import load_standalone
from magnetar.transactions.model import Outcome, SubscriptionInTxn, TxnId

TIMEOUT_MS = 60_000


@dataclass(slots=True)
class Rig:
    """A broker with the settings, and one of its coordinators."""

    broker: BrokerStage
    transactions: Transactions
    coordinator: Coordinator
    tasks: TaskSet

    def caller(self) -> Caller:
        return Caller(None, super_user=False, connection=Connection())

    async def acking(self, *locals_: str) -> tuple[TxnId, list[PersistentTopic]]:
        """A transaction that has acked a message in each topic."""
        txn = await self.coordinator.begin(None, TIMEOUT_MS)
        topics = [await self.broker.topic(local) for local in locals_]
        used = [SubscriptionInTxn(str(topic.name), "s") for topic in topics]
        await self.coordinator.add(txn.least, self.caller(), (), used)
        for topic in topics:
            subscription, consumer, _ = await self.broker.attach(topic, request())
            producer, sink = await self.broker.producer(topic)
            topic.publish(producer, run_of(producer, "m"))
            while not sink.receipts:
                await turns(1)
            ((_, ledger, first),) = sink.receipts
            answers: list[object] = []
            subscription.ack_in_transaction(
                consumer, txn, [(ledger, first, None, 0)], False, answers.append
            )
            while not answers:
                await turns(1)
            assert answers == [None]
        return txn, topics


@asynccontextmanager
async def rig(**environ: object) -> AsyncIterator[Rig]:
    """Starts a broker with settings as they stand in the environment of a container."""
    given = {"PULSAR_PREFIX_transactionCoordinatorEnabled": "true"}
    given |= {name: str(value) for name, value in environ.items()}
    loaded = load_standalone({}, given)
    assert not loaded.warnings
    tasks = TaskSet("test")
    async with stage(**asdict(loaded.settings.transactions)) as broker:
        transactions = broker.service.transactions
        assert transactions is not None
        coordinator = await transactions.coordinators.get(0)
        yield Rig(broker, transactions, coordinator, tasks)
        await tasks.stop()


async def test_the_maximum_of_open_transactions() -> None:
    async with rig(PULSAR_PREFIX_maxActiveTransactionsPerCoordinator=2) as on:
        for _ in range(2):
            await on.coordinator.begin(None, TIMEOUT_MS)
        with pytest.raises(TransactionCoordinatorNotFound, match="has 2 open transactions"):
            await on.coordinator.begin(None, TIMEOUT_MS)


@pytest.mark.parametrize("retention_s", [0, 5])
async def test_the_retention_of_outcomes(retention_s: int) -> None:
    async with rig(MAGNETAR_TRANSACTION_OUTCOME_RETENTION_S=retention_s) as on:
        txn = await on.coordinator.begin(None, TIMEOUT_MS)
        await on.coordinator.end(txn.least, on.caller(), Outcome.COMMIT)
        if retention_s:
            on.broker.clock.advance(retention_s * 1000 - 1)
            on.coordinator.tick()
            await on.coordinator.end(txn.least, on.caller(), Outcome.COMMIT)
            on.broker.clock.advance(1)
        on.coordinator.tick()
        with pytest.raises(TransactionNotFound):
            await on.coordinator.end(txn.least, on.caller(), Outcome.COMMIT)


async def test_the_time_that_a_participant_may_take() -> None:
    async with rig(PULSAR_PREFIX_transactionBufferClientOperationTimeoutInMills=100) as on:
        txn, (topic,) = await on.acking("t")
        on.broker.bookie.hold = True
        on.tasks.start(on.coordinator.end(txn.least, on.caller(), Outcome.COMMIT), "end")
        assert on.transactions.notifier.timeout_s == 0.1
        while not on.transactions.notifier.retries:
            await turns(1)
        on.broker.bookie.release()
        while on.coordinator.active_count:
            await turns(1)
        assert topic.subscriptions["s"].backlog == 0


@pytest.mark.parametrize("at_once", [1, 2])
async def test_the_number_of_participants_at_a_time(at_once: int) -> None:
    async with rig(PULSAR_PREFIX_transactionBufferClientMaxConcurrentRequests=at_once) as on:
        txn, topics = await on.acking("t", "u", "v")
        on.broker.bookie.hold = True
        on.tasks.start(on.coordinator.end(txn.least, on.caller(), Outcome.ABORT), "end")
        await turns(200)
        begun = [topic for topic in topics if not topic.subscriptions["s"].cursor.pending]
        assert len(begun) == at_once
        on.broker.bookie.release()
        while on.coordinator.active_count:
            await turns(1)
        assert not any(topic.subscriptions["s"].cursor.pending for topic in topics)


async def test_without_the_switch_there_is_no_coordinator() -> None:
    loaded = load_standalone({}, {})
    async with stage(**asdict(loaded.settings.transactions)) as broker:
        assert broker.service.transactions is None
