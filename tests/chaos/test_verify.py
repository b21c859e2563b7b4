"""The checker of the campaign catches what it is for: one that never complains proves nothing."""

from collections.abc import Callable

import pytest
from tests.chaos.verify import Fault, Life, Observations, TopicRecord, felt, violations


def good() -> TopicRecord:
    stored = [((7, entry, -1), entry) for entry in range(5)]
    return TopicRecord(
        receipts={number: at for at, number in stored},
        receipt_times=[float(number) for number in range(5)],
        got=list(range(5)),
        sent=5,
        stored=stored,
        sent_at={number: number + 0.1 for number in range(5)},
        received_at={number: number + 0.2 for number in range(5)},
        lives={
            1: Life(since=0.0, anew_at=-1.0, over=True),
            2: Life(since=3.0, anew_at=2.5, got={3: (7, 3), 4: (7, 4)}),
        },
    )


def test_a_good_record_breaks_nothing() -> None:
    assert violations(Observations({"t": good()})) == []


def test_messages_that_came_twice_break_nothing() -> None:
    record = good()
    record.stored.append(((8, 0, -1), 3))
    record.got += [3, 4]
    assert violations(Observations({"t": record})) == []


def _lose(record: TopicRecord) -> None:
    del record.stored[2]


def _swap_stored(record: TopicRecord) -> None:
    record.stored[1:3] = [((7, 1, -1), 2), ((7, 2, -1), 1)]


def _swap_got(record: TopicRecord) -> None:
    record.got[1:3] = [2, 1]


def _forget(record: TopicRecord) -> None:
    record.got.remove(3)


def _invent(record: TopicRecord) -> None:
    record.stored.append(((8, 0, -1), 9))


def _go_back(record: TopicRecord) -> None:
    record.stored.append(((6, 0, -1), 4))


def _other_place(record: TopicRecord) -> None:
    record.receipts[2] = (7, 9, -1)


def _keep_from_subscription(record: TopicRecord) -> None:
    del record.lives[2].got[4]


def _serve_deleted(record: TopicRecord) -> None:
    record.lives[2].got[1] = (7, 1)


def _refuse_deletion(record: TopicRecord) -> None:
    record.broken.append("deletion-of-life-2-not-found")


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (_lose, "lost"),
        (_swap_stored, "behind a later"),
        (_swap_got, "delivered behind"),
        (_forget, "never delivered"),
        (_invent, "never sent"),
        (_go_back, "do not grow"),
        (_other_place, "names"),
        (_keep_from_subscription, "life 2: 1 messages never delivered"),
        (_serve_deleted, "made anew, got 1"),
        (_refuse_deletion, "deletion-of-life-2"),
    ],
)
def test_each_broken_promise_is_reported(damage: Callable[[TopicRecord], None], word: str) -> None:
    record = good()
    damage(record)
    assert any(word in text for text in violations(Observations({"t": record})))


def test_a_pause_is_felt_from_the_fault_to_the_next_receipt() -> None:
    record = TopicRecord(receipt_times=[1.0, 2.0, 2.5, 7.0, 7.1])
    result = felt(Fault("kill", "broker-1", 3.0, 6.0), Observations({"t": record}), until=20.0)
    assert (result.pause_s, result.after_healing_s) == (4.0, 1.0)
