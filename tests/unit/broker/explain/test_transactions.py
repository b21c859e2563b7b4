"""Open, aborted and acknowledging transactions, named with owner and coordinator."""

from dataclasses import replace
from typing import Any

import msgspec
from tests.unit.broker.topic.test_txn_acks import attached
from tests.unit.broker.topic.txn_stage import T1, TxnStage, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.broker.explain.gather.message import MessageId
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.ids import Position
from magnetar.documents.explain import Finding
from magnetar.transactions.model import Outcome, TxnState


async def first(t: TxnStage, topic: PersistentTopic, at: Position | None = None) -> Finding:
    explainer: Any = t.s.service.diagnosis.explainer
    explainer._parts = replace(explainer._parts, records=t.records)
    if at is None:
        answer = await explainer.subscription(topic, "s")
    else:
        answer = await explainer.message(topic, "s", MessageId(at))
    found = answer.findings[0]
    assert isinstance(found, Finding)
    return found


def owned(t: TxnStage, role: str) -> None:
    t.records.by_id[T1] = msgspec.structs.replace(t.records.by_id[T1], owner=role)


async def test_an_open_transaction_holds_back_what_follows_it() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        owned(t, "payments")
        await t.sent(topic, T1, "in it")
        at = topic.managed_ledger.last_confirmed
        await t.s.publish(topic, "behind it")
        await turns(50)
        behind = topic.managed_ledger.last_confirmed
        for asked in (None, at, behind):
            found = await first(t, topic, asked)
            assert found.code == "transaction_open"
            assert found.evidence["owner"] == "payments"
            assert found.evidence["coordinator"] == T1.most
            assert found.evidence["first_message"] == str(at)
            assert found.since is not None
            assert "abort-transaction -m 0 -l 1" in found.next_step.command
        await topic.transactions.end_transaction(T1, Outcome.ABORT)
        await turns(50)
        assert acks.sink.texts == ["behind it"]
        assert (await first(t, topic, at)).code == "transaction_aborted"
        assert (await first(t, topic, behind)).code == "in_flight"


async def test_an_open_transaction_has_acknowledged_the_message() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        owned(t, "billing")
        (position,) = await t.s.publish(topic, "a")
        await turns(50)
        assert await acks.ack(T1, position) is None
        for asked in (None, Position(*position)):
            found = await first(t, topic, asked)
            assert found.code == "acked_in_transaction"
            assert found.evidence["owner"] == "billing"
        t.records.set(T1, TxnState.COMMITTED)
        await acks.end(T1, Outcome.COMMIT)
        assert (await first(t, topic, Position(*position))).code == "already_acknowledged"
