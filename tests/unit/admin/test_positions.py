"""Positions in a topic of several ledgers, partitions, batches and holes: each finds its own."""

import pytest

from magnetar.admin.routers import backlog
from magnetar.core.ids import Position

from .support import Admin, append, entry

TOPIC = "~/persistent/t1/n1/a"
SUB = TOPIC + "/subscription/s"
EARLIEST = {"ledgerId": -1, "entryId": -1}
LEDGERS = (3, 1, 2)
"""Entries of each ledger of the topic."""


def body_of(position: Position, **more: object) -> dict[str, object]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id, **more}


async def fill(admin: Admin, local: str = "a") -> list[Position]:
    """Messages m0 to m5 in three ledgers, which another subscription keeps."""
    topic = await admin.topic(local)
    await admin.done("PUT", f"~/persistent/t1/n1/{local}/subscription/keeps", EARLIEST)
    found: list[Position] = []
    for count in LEDGERS:
        if found:
            await topic.managed_ledger.roll_over()
        for _ in range(count):
            number = len(found)
            found.append(await append(topic, entry(b"m%d" % number, number)))
    assert len({each.ledger_id for each in found}) == len(LEDGERS)
    return found


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
        # A subscription that is not there sees what a new one would.
        assert await peeked(admin, nth) == b"m%d" % (nth - 1)
    assert await peeked(admin, total + 1) is None
    assert (await admin.done("GET", TOPIC + "/examinemessage")).content == b"m5"


async def test_a_peek_passes_over_what_is_acknowledged(admin: Admin) -> None:
    topic = await admin.topic()
    await admin.done("PUT", SUB)
    ids = await fill(admin)
    cursor = topic.subscriptions["s"].cursor
    for number in (0, 2, 3):
        cursor.ack(*ids[number])
    found = [await peeked(admin, nth) for nth in range(1, 5)]
    assert found == [b"m1", b"m4", b"m5", None]


async def test_the_backlog_from_a_message_has_all_that_follows_in_every_ledger(
    admin: Admin,
) -> None:
    ids = await fill(admin)
    size = len(entry(b"m0", 1))
    starts = [EARLIEST, *map(body_of, ids)]
    found = [(await admin.call("PUT", TOPIC + "/backlogSize", each)).json() for each in starts]
    assert found == [left * size for left in (6, 6, 5, 4, 3, 2, 1)]


async def test_an_analysis_counts_what_is_not_acknowledged(admin: Admin) -> None:
    topic = await admin.topic()
    await admin.done("PUT", SUB)
    ids = await fill(admin)
    batch = await append(topic, entry(b"three", 6, num_messages_in_batch=3))
    marker = await append(topic, entry(b"", 7, marker_type=3))
    cursor = topic.subscriptions["s"].cursor
    cursor.ack(*ids[0])
    cursor.ack(*ids[4])

    async def analyzed(start: object) -> tuple[int, ...]:
        found = (await admin.done("POST", SUB + "/analyzeBacklog", start)).json()
        assert not found["aborted"]
        assert found["lastMessageId"] == str(marker)
        return found["entries"], found["messages"], found["markerMessages"]

    assert await analyzed(EARLIEST) == (6, 7, 1)
    assert await analyzed(body_of(ids[0])) == (6, 7, 1)
    assert await analyzed(body_of(ids[2])) == (5, 6, 1)
    assert await analyzed(body_of(batch)) == (2, 3, 1)


async def test_an_analysis_says_that_it_stopped_short(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "READ_ENTRIES", 2)
    await admin.topic()
    await admin.done("PUT", SUB)
    ids = await fill(admin)
    for scanned, counted, aborted in ((2, 2, True), (6, 6, False), (7, 6, False)):
        monkeypatch.setattr(backlog, "SCANNED_ENTRIES_MAX", scanned)
        found = (await admin.done("POST", SUB + "/analyzeBacklog")).json()
        assert (found["entries"], found["aborted"]) == (counted, aborted)
    monkeypatch.setattr(backlog, "SCANNED_ENTRIES_MAX", 2)
    rest = (await admin.done("POST", SUB + "/analyzeBacklog", body_of(ids[4]))).json()
    assert (rest["entries"], rest["aborted"]) == (2, False)
    # What is acknowledged is not read again, wherever the client would begin.
    await admin.done("POST", SUB + "/skip/4")
    for start in (EARLIEST, body_of(ids[1])):
        rest = (await admin.done("POST", SUB + "/analyzeBacklog", start)).json()
        assert (rest["entries"], rest["aborted"]) == (2, False)


async def test_a_subscription_begins_where_its_creator_says(admin: Admin) -> None:
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
    found = [await peeked(admin, sub=SUB + str(number)) for number in range(len(starts))]
    assert found == [next_is for _, next_is in starts]


async def test_a_subscription_skips_as_many_as_it_is_told(admin: Admin) -> None:
    await admin.topic()
    await admin.done("PUT", SUB)
    await fill(admin)
    for count, next_is in ((0, b"m0"), (-1, b"m0"), (1, b"m1"), (3, b"m4"), (2, None)):
        await admin.done("POST", f"{SUB}/skip/{count}")
        assert await peeked(admin) == next_is


async def test_expiry_up_to_a_message_takes_it_unless_it_is_excluded(admin: Admin) -> None:
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


async def test_a_reset_behind_the_last_of_a_ledger_begins_with_the_next_ledger(
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
        for found in ("/lastMessageId", "/messageid/1"):
            document = (await admin.done("GET", path + found)).json()
            assert document["partitionIndex"] == index
        sub = path + "/subscription/s"
        await admin.done("PUT", sub, EARLIEST)
        for partition in {-1, 0, 1, 2} - {index}:
            given = body_of(last, partitionIndex=partition)
            assert (await admin.call("POST", sub + "/expireMessages", given)).status_code == 412
        await admin.done("POST", sub + "/expireMessages", body_of(last, partitionIndex=index))
        assert await peeked(admin, sub=sub) is None
    told = (await admin.done("POST", "~/persistent/t1/n1/p/terminate/partitions")).json()
    assert {key: (end["ledgerId"], end["entryId"]) for key, end in told.items()} == ends


async def test_the_earliest_time_of_a_backlog_is_that_of_the_subscription_furthest_behind(
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
        each = [
            stats["subscriptions"][name]["earliestMsgPublishTimeInBacklog"]
            for name in ("behind", "s", "done")
        ]
        assert (stats["earliestMsgPublishTimeInBacklogs"], *each) == times
        size = len(entry(b"m0", 1))
        # The backlog of a topic is that of whoever is furthest behind, not the sum.
        assert stats["backlogSize"] == 6 * size
