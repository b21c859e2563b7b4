"""A terminated topic: its consumers hear of the end once everything is acknowledged."""

import pytest
from tests.unit.broker.topic.stage import request, stage
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.spec import SubType


@pytest.mark.parametrize(
    ("sub_type", "cumulative"),
    [
        (SubType.Exclusive, False),
        (SubType.Exclusive, True),
        (SubType.Shared, False),
        (SubType.Key_Shared, False),
    ],
)
@pytest.mark.parametrize("receipt", [True, False], ids=["with a receipt", "without"])
async def test_consumers_hear_of_the_end_with_the_last_ack_and_once(
    sub_type: SubType, cumulative: bool, receipt: bool
) -> None:
    async with stage() as s:
        topic = await s.topic()
        subscription, consumer, sink = await s.attach(topic, request(sub_type=sub_type))
        places = await s.publish(topic, "a", "b", "c")
        await turns(50)
        assert sink.texts == ["a", "b", "c"]
        await topic.terminate()
        answers: list[object] = []
        for end, ledger_id, entry_id in zip((0, 0, 1), *zip(*places, strict=True), strict=True):
            subscription.ack(
                consumer,
                [(ledger_id, entry_id, None, 0)],
                cumulative,
                answers.append if receipt else None,
            )
            assert sink.ended == end
        await turns(100)
        assert answers == ([None] * 3 if receipt else [])
        subscription.ack(consumer, [(*places[-1], None, 0)])
        subscription.ack_one(consumer, *places[-1])
        await turns(20)
        assert sink.ended == 1
