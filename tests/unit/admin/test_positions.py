"""Positions in a topic with several ledgers, partitions, batches and ack holes."""

import pytest

from magnetar.admin.routers import backlog
from magnetar.compaction.records import (
    CompactionRecord,
    CompactionRequest,
    compaction_key,
    request_key,
)
from magnetar.core.ids import Position
from magnetar.metadata.records import encode
from magnetar.offload.stores import StoreSpec

from .support import Admin, append, entry

TOPIC = "~/persistent/t1/n1/a"
SUB = TOPIC + "/subscription/s"
EARLIEST = {"ledgerId": -1, "entryId": -1}
LEDGERS = (3, 1, 2)
"""Returns the number of entries of each ledger."""


def body_of(position: Position, **more: object) -> dict[str, object]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id, **more}


async def fill(admin: Admin, local: str = "a") -> list[Position]:
    """Publishes m0 to m5 to three ledgers, which another subscription retains."""
    topic = await admin.topic(local)
    await admin.done("PUT", f"~/persistent/t1/n1/{local}/subscription/keeps", EARLIEST)
    actual: list[Position] = []
    for count in LEDGERS:
        if actual:
            await topic.managed_ledger.roll_over()
        for _ in range(count):
            number = len(actual)
            actual.append(await append(topic, entry(b"m%d" % number, number)))
    assert len({item.ledger_id for item in actual}) == len(LEDGERS)
    return actual


async def peeked(admin: Admin, nth: int = 1, sub: str = SUB) -> bytes | None:
    answer = await admin.call("GET", f"{sub}/position/{nth}")
    return answer.content if answer.status_code == 200 else None


async def test_messages_are_counted_through_all_ledgers(admin: Admin) -> None:
    await fill(admin)
    total = sum(LEDGERS)
    for nth in range(1, total + 1):
        path = f"{TOPIC}/examinemessage?messagePosition={nth}&initialPosition="
        assert (await admin.done("GET", path + "earliest")).content == b"m%d" % (nth - 1)
        assert (await admin.done("GET", path + "latest")).content == b"m%d" % (total - nth)
        # A missing subscription reads the same as a new one.
        assert await peeked(admin, nth) == b"m%d" % (nth - 1)
    assert await peeked(admin, total + 1) is None
    assert (await admin.done("GET", TOPIC + "/examinemessage")).content == b"m5"


async def test_a_reset_reaches_what_only_the_compacted_topic_has(admin: Admin) -> None:
    """Without a consumer: one with `read_compacted` attaches afterwards."""
    topic = await admin.topic()
    ids = await fill(admin)
    await admin.done("PUT", SUB)
    await topic.managed_ledger.truncate()
    cursor = topic.subscriptions["s"].cursor
    await admin.done("POST", SUB + "/resetcursor", EARLIEST)
    assert cursor.mark_delete == topic.managed_ledger.first_position
    record = CompactionRecord(
        horizon=ids[-1],
        log_created_ms=topic.managed_ledger.created_ms,
        attempt="1",
        store=StoreSpec("filesystem", "/nowhere"),
        compacted_ms=1,
    )
    name, store = topic.managed_ledger.name, admin.service.store
    await store.put(compaction_key(name), encode(record))
    await store.put(request_key(name), encode(CompactionRequest(1)))
    await admin.done("POST", SUB + "/resetcursor", EARLIEST)
    assert cursor.mark_delete < ids[0]
    await admin.done("POST", SUB + "/resetcursor", body_of(ids[1]))
    assert cursor.mark_delete == ids[0]
    await admin.done("POST", SUB + "/resetcursor", body_of(ids[0], isExcluded=True))
    assert cursor.mark_delete == ids[0]


async def test_a_peek_skips_acknowledged_messages(admin: Admin) -> None:
    topic = await admin.topic()
    await admin.done("PUT", SUB)
    ids = await fill(admin)
    cursor = topic.subscriptions["s"].cursor
    for number in (0, 2, 3):
        cursor.ack(*ids[number])
    actual = [await peeked(admin, nth) for nth in range(1, 5)]
    assert actual == [b"m1", b"m4", b"m5", None]


async def test_the_backlog_after_a_message_includes_every_later_ledger(
    admin: Admin,
) -> None:
    ids = await fill(admin)
    size = len(entry(b"m0", 1))
    starts = [EARLIEST, *map(body_of, ids)]
    actual = [(await admin.call("PUT", TOPIC + "/backlogSize", item)).json() for item in starts]
    assert actual == [left * size for left in (6, 5, 4, 3, 2, 1, 0)]


async def test_an_analysis_counts_unacknowledged_messages(admin: Admin) -> None:
    topic = await admin.topic()
    await admin.done("PUT", SUB)
    ids = await fill(admin)
    batch = await append(topic, entry(b"three", 6, num_messages_in_batch=3))
    marker = await append(topic, entry(b"", 7, marker_type=3))
    cursor = topic.subscriptions["s"].cursor
    cursor.ack(*ids[0])
    cursor.ack(*ids[4])

    async def analyzed(start: object) -> tuple[int, ...]:
        actual = (await admin.done("POST", SUB + "/analyzeBacklog", start)).json()
        assert not actual["aborted"]
        assert actual["lastMessageId"] == str(marker)
        return actual["entries"], actual["messages"], actual["markerMessages"]

    assert await analyzed(EARLIEST) == (6, 7, 1)
    assert await analyzed(body_of(ids[0])) == (6, 7, 1)
    assert await analyzed(body_of(ids[2])) == (5, 6, 1)
    assert await analyzed(body_of(batch)) == (2, 3, 1)


async def test_an_analysis_reports_that_it_reached_its_limit(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "READ_ENTRIES", 2)
    await admin.topic()
    await admin.done("PUT", SUB)
    ids = await fill(admin)
    for scanned, counted, aborted in ((2, 2, True), (6, 6, False), (7, 6, False)):
        monkeypatch.setattr(backlog, "SCANNED_ENTRIES_MAX", scanned)
        actual = (await admin.done("POST", SUB + "/analyzeBacklog")).json()
        assert (actual["entries"], actual["aborted"]) == (counted, aborted)
    # A limit of one entry less is too short as well.
    monkeypatch.setattr(backlog, "READ_ENTRIES", 1)
    for scanned, aborted in ((5, True), (6, False)):
        monkeypatch.setattr(backlog, "SCANNED_ENTRIES_MAX", scanned)
        actual = (await admin.done("POST", SUB + "/analyzeBacklog")).json()
        assert (actual["entries"], actual["aborted"]) == (scanned, aborted)
    monkeypatch.setattr(backlog, "READ_ENTRIES", 2)
    monkeypatch.setattr(backlog, "SCANNED_ENTRIES_MAX", 2)
    rest = (await admin.done("POST", SUB + "/analyzeBacklog", body_of(ids[4]))).json()
    assert (rest["entries"], rest["aborted"]) == (2, False)
    # Acknowledged entries are not read again, from any start.
    await admin.done("POST", SUB + "/skip/4")
    for start in (EARLIEST, body_of(ids[1])):
        rest = (await admin.done("POST", SUB + "/analyzeBacklog", start)).json()
        assert (rest["entries"], rest["aborted"]) == (2, False)


async def test_a_subscription_begins_at_the_requested_position(admin: Admin) -> None:
    ids = await fill(admin)
    latest = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
    starts: list[tuple[tuple[object, ...], bytes]] = [
        ((), b"new"),
        (({},), b"new"),
        ((latest,), b"new"),
        ((EARLIEST,), b"m0"),
        *(((body_of(position),), b"m%d" % number) for number, position in enumerate(ids)),
    ]
    for number, (body, _) in enumerate(starts):
        await admin.done("PUT", SUB + str(number), *body)
    await admin.publish([b"new"])
    actual = [await peeked(admin, sub=SUB + str(number)) for number in range(len(starts))]
    assert actual == [next_is for _, next_is in starts]


async def test_a_subscription_skips_the_requested_number(admin: Admin) -> None:
    await admin.topic()
    await admin.done("PUT", SUB)
    await fill(admin)
    for count, next_is in ((0, b"m0"), (-1, b"m0"), (1, b"m1"), (3, b"m4"), (2, None)):
        await admin.done("POST", f"{SUB}/skip/{count}")
        assert await peeked(admin) == next_is


async def test_expiry_up_to_a_message_includes_it_unless_it_is_excluded(admin: Admin) -> None:
    await admin.topic()
    await admin.done("PUT", SUB)
    ids = await fill(admin)
    left = [b"m%d" % number for number in range(len(ids))] + [None]
    for at in (0, 2, 3, 5):
        for excluded in (False, True):
            await admin.done("POST", SUB + "/resetcursor", EARLIEST)
            given = body_of(ids[at], isExcluded=excluded)
            await admin.done("POST", SUB + "/expireMessages", given)
            assert await peeked(admin) == left[at if excluded else at + 1]


async def test_a_reset_after_the_last_entry_of_a_ledger_begins_with_the_next_ledger(
    admin: Admin,
) -> None:
    await admin.topic()
    await admin.done("PUT", SUB)
    ids = await fill(admin)
    await admin.done("POST", SUB + "/resetcursor", body_of(ids[2], isExcluded=True))
    assert await peeked(admin) == b"m3"
    await admin.done("POST", SUB + "/resetcursor", {**EARLIEST, "isExcluded": True})
    assert await peeked(admin) == b"m0"
    await admin.done("POST", SUB + "/resetcursor", body_of(ids[5], excluded=True))
    assert await peeked(admin) is None


async def test_ids_of_a_partitions_messages_name_the_partition(admin: Admin) -> None:
    await admin.done("PUT", "~/persistent/t1/n1/p/partitions", 3)
    ends = {}
    for index in range(3):
        local = f"p-partition-{index}"
        path = f"~/persistent/t1/n1/{local}"
        last = (await admin.publish([b"m"] * (index + 1), local))[-1]
        ends[str(index)] = (last.ledger_id, last.entry_id)
        for actual in ("/lastMessageId", "/messageid/1"):
            document = (await admin.done("GET", path + actual)).json()
            assert document["partitionIndex"] == index
        sub = path + "/subscription/s"
        await admin.done("PUT", sub, EARLIEST)
        for partition in {-1, 0, 1, 2} - {index}:
            given = body_of(last, partitionIndex=partition)
            assert (await admin.call("POST", sub + "/expireMessages", given)).status_code == 412
        await admin.done("POST", sub + "/expireMessages", body_of(last, partitionIndex=index))
        assert await peeked(admin, sub=sub) is None
    ends_by_partition = (
        await admin.done("POST", "~/persistent/t1/n1/p/terminate/partitions")
    ).json()
    assert {
        key: (end["ledgerId"], end["entryId"]) for key, end in ends_by_partition.items()
    } == ends


async def test_the_earliest_time_of_backlogs_is_that_of_the_largest_backlog(
    admin: Admin,
) -> None:
    await admin.topic()
    for name in ("behind", "s", "done"):
        await admin.done("PUT", f"{TOPIC}/subscription/{name}")
    await fill(admin)
    await admin.done("POST", SUB + "/skip/4")
    await admin.done("POST", TOPIC + "/subscription/done/skip_all")
    began_ms = 1_700_000_000_000
    for query, times in (
        ("?getEarliestTimeInBacklog=true", (began_ms, began_ms, began_ms + 4, 0)),
        ("?getEarliestTimeInBacklog=false", (0, 0, 0, 0)),
        ("", (0, 0, 0, 0)),
    ):
        stats = (await admin.done("GET", TOPIC + "/stats" + query)).json()
        item = [
            stats["subscriptions"][name]["earliestMsgPublishTimeInBacklog"]
            for name in ("behind", "s", "done")
        ]
        assert (stats["earliestMsgPublishTimeInBacklogs"], *item) == times
        size = len(entry(b"m0", 1))
        # A topic's backlog is its largest backlog, not the sum.
        assert stats["backlogSize"] == 6 * size
