"""Open, aborted and acknowledging transactions, named with owner and coordinator."""

from dataclasses import replace
from typing import Any

import msgspec
from tests.unit.broker.topic.delay_stage import DelayStage
from tests.unit.broker.topic.test_txn_acks import attached
from tests.unit.broker.topic.txn_stage import T1, TxnStage, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.broker.explain.gather.message import MessageId
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.ids import Position
from magnetar.documents.explain import Finding
from magnetar.transactions.model import Outcome, TxnState


async def explained(
    t: TxnStage, topic: PersistentTopic, at: Position | None = None
) -> list[Finding]:
    explainer: Any = t.s.service.diagnosis.explainer
    explainer._parts = replace(explainer._parts, records=t.records)
    if at is None:
        answer = await explainer.subscription(topic, "s")
    else:
        answer = await explainer.message(topic, "s", MessageId(at))
    findings: list[Finding] = answer.findings
    return findings


async def first(t: TxnStage, topic: PersistentTopic, at: Position | None = None) -> Finding:
    return (await explained(t, topic, at))[0]


async def delayed(t: TxnStage, topic: PersistentTopic) -> Position:
    (position,) = await DelayStage(t.s).send(topic, ("late", 3_600_000))
    return Position(*position)


async def codes(t: TxnStage, topic: PersistentTopic, at: Position | None = None) -> list[str]:
    return [found.code for found in await explained(t, topic, at)]


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


async def test_a_delayed_message_behind_an_open_transaction_has_both_reasons() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        before = await delayed(t, topic)
        await t.sent(topic, T1, "in it")
        await turns(50)
        at = topic.managed_ledger.last_confirmed
        late = await delayed(t, topic)
        (plain,) = await t.s.publish(topic, "neither")
        await turns(50)
        assert await codes(t, topic) == ["transaction_open", "delayed_until"]
        assert await codes(t, topic, late) == ["transaction_open", "delayed_until"]
        # What holds only other messages back is no reason.
        assert await codes(t, topic, before) == ["delayed_until"]
        assert await codes(t, topic, at) == ["transaction_open"]
        assert await codes(t, topic, Position(*plain)) == ["transaction_open"]
        await topic.transactions.end_transaction(T1, Outcome.COMMIT)
        await turns(50)
        assert await codes(t, topic, late) == ["delayed_until"]
        assert await codes(t, topic, at) == ["in_flight"]


async def test_entries_behind_an_open_transaction_are_not_called_in_flight() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await attached(t, topic, SubType.Exclusive)
        t.records.open(T1, topic)
        (delivered,) = await t.s.publish(topic, "delivered")
        await t.sent(topic, T1, "in it")
        await t.s.publish(topic, "behind it")
        await turns(50)
        answer = await explained(t, topic)
        assert [each.code for each in answer] == ["transaction_open", "in_flight"]
        assert "has not acknowledged 1 entries" in answer[1].summary
        assert await codes(t, topic, Position(*delivered)) == ["in_flight"]


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
