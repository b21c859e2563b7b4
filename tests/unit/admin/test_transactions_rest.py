"""The REST of transactions: what topics and subscriptions answer about those they take part in."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.unit.broker.transactions.stage import ToldParticipants

from magnetar.admin.app import create_app
from magnetar.admin.metrics.page import MetricsPage
from magnetar.admin.routers import transactions
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.transactions.coordinator import Caller
from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.transactions.model import Outcome, SubscriptionInTxn, TxnId
from magnetar.wire.entry import in_transaction, parse_metadata
from magnetar.wire.events import SendRun

from .support import Admin, Peer, entry, start_service, stop_service, topic_name

V3 = "/admin/v3/transactions"


class Connection:
    """The connection of the client that begins and ends transactions."""


CALLER = Caller(None, super_user=True, connection=Connection())


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    service = await start_service(compose(BrokerSettings, transactions=True))
    page = MetricsPage(service)
    transport = httpx.ASGITransport(create_app(service, page))
    async with httpx.AsyncClient(transport=transport, base_url=service.http_url) as http:
        yield Admin(service, page, http)
    await stop_service(service)


async def json_of(admin: Admin, path: str, status: int = 200) -> Any:
    response = await admin.call("GET", V3 + path)
    assert response.status_code == status, response.text
    return response.json()


async def begun(admin: Admin) -> TxnId:
    """Begins a transaction that topic `a` and its subscription `s` take part in."""
    assert admin.service.transactions is not None
    assert await admin.service.transactions.coordinator_count() == 16
    coordinator = await admin.service.transactions.coordinators.get(0)
    txn = await coordinator.begin(None, 60_000)
    topic = str(topic_name("a"))
    used = [SubscriptionInTxn(topic, "s")]
    await coordinator.add(txn.least, CALLER, topics=[topic], subscriptions=used)
    return txn


async def publish(admin: Admin, topic: PersistentTopic, txn: TxnId) -> Position:
    """Publishes a message of the transaction."""
    producer = await admin.producer()
    peer = producer.sink
    assert isinstance(peer, Peer)
    plain = entry(b"m", 1)
    data = in_transaction(plain, parse_metadata(plain), *txn)
    run = SendRun(producer.producer_id, [1], [1], [1], [data], len(data), txn)
    gate = topic.gate_of(run)
    assert gate is not None
    gate.publish(producer, run)
    await peer.receipted.wait()
    return topic.managed_ledger.last_confirmed


async def ended(admin: Admin, txn: TxnId, outcome: Outcome) -> None:
    assert admin.service.transactions is not None
    coordinator = await admin.service.transactions.coordinators.get(txn.most)
    await coordinator.end(txn.least, CALLER, outcome)


async def test_the_transactions_of_a_topic(admin: Admin) -> None:
    topic = await admin.topic()
    stats = await json_of(admin, "/transactionBufferStats/t1/n1/a?lowWaterMarks=true")
    assert (stats["state"], stats["lowWaterMarks"], stats["ongoingTxnSize"]) == ("None", {}, 0)
    txn = await begun(admin)
    shown = f"/transactionInBufferStats/t1/n1/a/{txn.most}"
    assert await json_of(admin, f"{shown}/{txn.least}") == {"aborted": False}
    await json_of(admin, f"{shown}/99", 404)
    at = await publish(admin, topic, txn)
    found = await json_of(admin, f"/transactionInBufferStats/t1/n1/a/{txn.most}/{txn.least}")
    assert found == {"startPosition": str(at), "aborted": False}
    stats = await json_of(admin, "/transactionBufferStats/t1/n1/a")
    assert (stats["state"], stats["ongoingTxnSize"]) == ("Ready", 1)
    assert None not in stats.values()
    assert "lowWaterMarks" not in stats
    assert stats["maxReadPosition"] != str(at)
    await ended(admin, txn, Outcome.ABORT)
    stats = await json_of(admin, "/transactionBufferStats/t1/n1/a")
    assert (stats["ongoingTxnSize"], stats["totalAbortedTransactions"]) == (0, 1)
    assert stats["maxReadPosition"] == str(at)
    assert await json_of(admin, f"{shown}/{txn.least}") == {"aborted": True}


@pytest.mark.parametrize("cumulative", [False, True])
async def test_the_transactions_of_a_subscription(admin: Admin, cumulative: bool) -> None:
    consumer = await admin.consumer("s", SubType.Exclusive)
    (at, behind) = await admin.publish([b"1", b"2"])
    topic = await admin.topic()
    subscription = topic.subscriptions["s"]
    path = f"/positionStatsInPendingAck/t1/n1/a/s/{at.ledger_id}"
    assert await json_of(admin, f"{path}/{at.entry_id}") == {"state": "NotInPendingAck"}
    assert await json_of(admin, f"{path}/99") == {"state": "InvalidPosition"}
    txn = await begun(admin)
    shown = f"/transactionInPendingAckStats/t1/n1/a/s/{txn.most}/{txn.least}"
    assert await json_of(admin, shown) == {}
    answers: list[MagnetarError | None] = []
    subscription.transactions.ack(
        consumer,
        txn,
        [(at.ledger_id, at.entry_id, None, 0)],
        cumulative=cumulative,
        on_done=answers.append,
    )
    while not answers:
        await subscription.cursor.flush()
    assert answers == [None]
    assert await json_of(admin, shown) == ({"cumulativeAckPosition": str(at)} if cumulative else {})
    assert await json_of(admin, f"{path}/{at.entry_id}") == {"state": "PendingAck"}
    assert await json_of(admin, f"{path}/{behind.entry_id}") == {"state": "NotInPendingAck"}
    stats = await json_of(admin, "/pendingAckStats/t1/n1/a/s")
    assert (stats["state"], stats["ongoingTxnSize"]) == ("Ready", 1)
    await ended(admin, txn, Outcome.COMMIT)
    assert await json_of(admin, f"{path}/{at.entry_id}") == {"state": "MarkDelete"}
    assert await json_of(admin, shown) == {}
    await json_of(admin, f"/transactionInPendingAckStats/t1/n1/a/s/{txn.most}/99", 404)
    await json_of(admin, "/pendingAckStats/t1/n1/a/nobody", 404)


async def test_a_transaction_has_what_its_participants_know_of_it(admin: Admin) -> None:
    topic, name = await admin.topic(), str(topic_name("a"))
    txn = await begun(admin)
    shown = f"/transactionMetadata/{txn.most}/{txn.least}"
    found = await json_of(admin, shown)
    assert found["producedPartitions"] == {name: {"aborted": False}}
    assert found["ackedPartitions"] == {name: {"s": {}}}
    consumer = await admin.consumer("s", SubType.Exclusive)
    (at,) = await admin.publish([b"1"])
    first = await publish(admin, topic, txn)
    answers: list[MagnetarError | None] = []
    topic.subscriptions["s"].transactions.ack(
        consumer, txn, [(*at, None, 0)], cumulative=True, on_done=answers.append
    )
    while not answers:
        await topic.subscriptions["s"].cursor.flush()
    found = await json_of(admin, shown)
    assert found["producedPartitions"] == {name: {"startPosition": str(first), "aborted": False}}
    assert found["ackedPartitions"] == {name: {"s": {"cumulativeAckPosition": str(at)}}}
    assert (found["txnId"], found["status"]) == (str(txn), "OPEN")
    await ended(admin, txn, Outcome.ABORT)
    await json_of(admin, shown, 404)


@pytest.mark.parametrize("path", ["transactionBufferInternalStats", "pendingAckInternalStats"])
async def test_statistics_of_a_log_that_does_not_exist_are_refused(admin: Admin, path: str) -> None:
    await admin.topic()
    tail = "/s" if path.startswith("pending") else ""
    response = await admin.call("GET", f"{V3}/{path}/t1/n1/a{tail}")
    assert response.status_code == 405
    assert "managed ledger" in response.text


async def test_an_abort_that_a_participant_delays_is_answered_in_time_and_completes(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ANSWER_TIMEOUT_S", 0.05)
    txn = await begun(admin)
    assert admin.service.transactions is not None
    notifier: Any = admin.service.transactions.notifier
    notifier._participants = held = ToldParticipants()
    held.holding = True
    path = f"{V3}/abortTransaction/{txn.most}/{txn.least}"
    late = await admin.call("POST", path)
    assert late.status_code == 503
    assert f"Transaction {txn} is not aborted everywhere" in late.json()["reason"]
    shown = await json_of(admin, f"/transactionMetadata/{txn.most}/{txn.least}")
    assert shown["status"] == "ABORTING"
    held.holding = False
    for each in held.held:
        each.set_result(None)
    await admin.done("POST", path)
    await json_of(admin, f"/transactionMetadata/{txn.most}/{txn.least}", 404)


async def test_every_route_answers_503_while_transactions_are_off(admin: Admin) -> None:
    admin.service.transactions = None
    for path in (
        "/coordinators",
        "/coordinatorStats",
        "/slowTransactions/1",
        "/transactionMetadata/0/0",
        "/transactionBufferStats/t1/n1/a",
        "/transactionInBufferStats/t1/n1/a/0/0",
        "/pendingAckStats/t1/n1/a/s",
        "/transactionInPendingAckStats/t1/n1/a/s/0/0",
        "/positionStatsInPendingAck/t1/n1/a/s/0/0",
        "/coordinatorInternalStats/0",
        "/transactionBufferInternalStats/t1/n1/a",
        "/pendingAckInternalStats/t1/n1/a/s",
    ):
        await json_of(admin, path, 503)
    for path in ("/abortTransaction/0/0", "/transactionCoordinator/replicas"):
        assert (await admin.call("POST", V3 + path, 17)).status_code == 503
