"""Micro-batches: equal offsets give equal rows, and losses are never skipped silently."""

import pickle
from typing import Any

import msgspec
import pytest
from pyroaring import BitMap
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from tests.spark.memory_log import (
    TOPIC,
    MemoryLog,
    entries,
    partition,
    positions,
    ranges_of_stream,
)

from magnetar.bookie.api import BookieUnavailable
from magnetar.core.errors import (
    PersistenceError,
    PreconditionFailed,
    TopicNotFound,
)
from magnetar.core.ids import Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.jobs.log.ledgers import topic_log
from magnetar.jobs.log.topics import log_name
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.record import (
    WATERMARK_PROPERTY,
    LedgerItem,
    ManagedLedgerRecord,
    managed_ledger_key,
)
from magnetar.metadata.records import encode
from magnetar.transactions.model import TransactionRecord, TxnId, TxnState
from magnetar.transactions.records import record_key
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry, in_transaction
from magnetar_spark.log.admin import Admin
from magnetar_spark.log.settings import LogSettings
from magnetar_spark.source import PulsarDataSource
from magnetar_spark.stream import PulsarStreamReader
from magnetar_spark.table import schema_of

PATTERN = "public/default/.*"
PARTITIONED = "/partitioned-topics/public/default/persistent/t"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    return MemoryLog(monkeypatch)


def latest(reader: PulsarStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, ReadAllAvailable())


class Answers(Admin):
    """A broker that gives these answers, and then no longer has the ledger."""

    def __init__(self, *entry_ids: int) -> None:
        super().__init__(LogSettings("memory:", admin_url="http://127.0.0.1:1"))
        self._left = list(entry_ids)

    async def confirmed(self, topic: TopicName, ledger_id: int) -> int:
        return self._left.pop(0) if self._left else -1


def test_a_micro_batch_reads_to_its_offset_though_the_bookie_that_knew_it_is_away(
    log: MemoryLog,
) -> None:
    log.topic(log.open(5, (11, 10), (9, 8)))
    reader = log.stream()
    end = latest(reader, {TOPIC: "5:4"})
    assert end == {TOPIC: "5:9"}
    log.bookies.away = {"b0"}
    assert positions(ranges_of_stream(reader, {TOPIC: "5:4"}, end)) == entries(5, 5, 9)
    log.bookies.away = {"b0", "b1"}
    assert positions(ranges_of_stream(reader, {TOPIC: "5:4"}, end)) == entries(5, 5, 9)


def test_a_micro_batch_reads_to_what_a_broker_confirmed_and_does_not_ask_it_again(
    log: MemoryLog,
) -> None:
    log.topic(log.open(5, (11, 10), (11, 10)))
    log.admin = Answers(10)
    reader = log.stream()
    end = latest(reader, {TOPIC: "5:4"})
    assert end == {TOPIC: "5:10"}
    assert positions(ranges_of_stream(reader, {TOPIC: "5:4"}, end)) == entries(5, 5, 10)


TXN = TxnId(0, 7)


def in_txn(log: MemoryLog, state: TxnState) -> None:
    """Makes 5:8 an entry of a transaction in this state; the watermark is 5:6."""
    record = TransactionRecord(state=state, opened_ms=1, deadline_ms=2)
    log.put(record_key(TXN), encode(record))
    for disk in log.bookies.disks:
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        entry = build_entry(metadata, b"x")
        disk.ledger(5).entries[8] = in_transaction(entry, metadata, *TXN)


def test_a_stream_waits_at_a_transaction_and_fails_if_its_outcome_is_lost(log: MemoryLog) -> None:
    item = log.open(5, (11, 10), (11, 10))
    log.topic(item, properties={WATERMARK_PROPERTY: "5:6"})
    in_txn(log, TxnState.OPEN)
    reader = log.stream()
    assert latest(reader, {TOPIC: "5:4"}) == {TOPIC: "5:7"}
    assert latest(reader, {TOPIC: "5:7"}) == {TOPIC: "5:7"}
    assert latest(reader, {TOPIC: "5:8"}) == {TOPIC: "5:8"}
    in_txn(log, TxnState.COMMITTING)
    end = latest(reader, {TOPIC: "5:7"})
    assert end == {TOPIC: "5:9"}
    in_txn(log, TxnState.OPEN)  # metadata from a backup
    assert positions(ranges_of_stream(reader, {TOPIC: "5:7"}, end)) == entries(5, 8, 9)
    with pytest.raises(PersistenceError, match=r"5:8 is in an open transaction.*up to 5:9"):
        ranges_of_stream(log.stream(), {TOPIC: "5:7"}, end)


def test_a_reader_reaches_executors_without_what_it_knows_of_transactions(log: MemoryLog) -> None:
    log.topic(log.open(5, (11, 10), (11, 10)), properties={WATERMARK_PROPERTY: "5:6"})
    in_txn(log, TxnState.ABORTING)
    reader = log.stream()
    end = latest(reader, {TOPIC: "5:4"})
    assert reader._settled
    assert pickle.loads(pickle.dumps(reader))._settled == {}  # noqa: S301
    ranges = ranges_of_stream(reader, {TOPIC: "5:4"}, end)
    assert [list(BitMap.deserialize(ranged.aborted)) for ranged in ranges] == [[8]]


def test_a_micro_batch_that_is_repeated_reads_no_more(log: MemoryLog) -> None:
    log.topic(log.open(5, (11, 10), (11, 10)))
    reader = log.stream()
    end = latest(reader, {TOPIC: "5:4"})
    log.topic(log.closed(5, 20), log.open(6, (3, 2), (3, 2)))
    assert positions(ranges_of_stream(reader, {TOPIC: "5:4"}, end)) == entries(5, 5, 9)


def test_limits_cut_before_what_is_confirmed(log: MemoryLog) -> None:
    log.topic(log.closed(4, 10), log.open(5, (11, 10), (9, 8)))
    reader = log.stream()
    start: dict[str, Any] = {TOPIC: "4:4"}
    read: list[str] = []
    while (end := reader.latestOffset(start, ReadMaxBytes(300))) != start:
        read += positions(ranges_of_stream(reader, start, end))
        start = end
    assert read == entries(4, 5, 9) + entries(5, 0, 9)


def test_a_stream_waits_while_too_few_bookies_answer(log: MemoryLog) -> None:
    log.topic(log.open(5, (11, 10), (9, 8)))
    reader = log.stream()
    log.bookies.away = {"b0"}
    assert latest(reader, {TOPIC: "5:4"}) == {TOPIC: "5:4"}
    with pytest.raises(BookieUnavailable, match="b0, b1"):
        reader.prepareForTriggerAvailableNow()
    log.bookies.away = set()
    assert latest(reader, {TOPIC: "5:4"}) == {TOPIC: "5:9"}


def test_a_query_that_ends_reads_to_the_ends_when_it_began(log: MemoryLog) -> None:
    log.topic(log.open(5, (11, 10), (9, 8)))
    reader = log.stream()
    reader.prepareForTriggerAvailableNow()
    log.bookies.away = {"b0", "b1"}
    assert latest(reader, {TOPIC: "5:4"}) == {TOPIC: "5:9"}


def test_a_ledger_that_was_cut_below_an_offset_fails_the_query(log: MemoryLog) -> None:
    log.topic(log.closed(5, 8))
    with pytest.raises(PersistenceError, match="ends at entry 7, though 5:9 was confirmed"):
        log.stream().partitions({TOPIC: "5:4"}, {TOPIC: "5:9"})


def test_a_ledger_without_an_end_before_the_offset_fails_the_plan(log: MemoryLog) -> None:
    log.topic(log.open(5, (11, 10)), log.closed(6, 3))
    with pytest.raises(PersistenceError, match="ledger 5 has no end yet"):
        log.stream().partitions({TOPIC: "5:4"}, {TOPIC: "6:2"})


def lost(log: MemoryLog, start: dict[str, str], end: dict[str, str], text: str) -> None:
    """Asserts that the micro-batch fails and names the loss, unless failOnDataLoss is off."""
    with pytest.raises(PersistenceError, match=rf"{text}.*; set failOnDataLoss to false"):
        log.stream().partitions(start, end)


def passed_over(log: MemoryLog, start: dict[str, str], end: dict[str, str]) -> list[str]:
    return positions(ranges_of_stream(log.stream(failOnDataLoss="false"), start, end))


def deleted(log: MemoryLog, *ledger_ids: int) -> None:
    log.delete(managed_ledger_key(log_name(parse_topic(TOPIC))))
    for each in ledger_ids:
        log.delete(ledger_key(each))


def test_a_topic_that_was_deleted_behind_its_offset(log: MemoryLog) -> None:
    log.topic(log.closed(5, 11))
    deleted(log, 5)
    lost(log, {TOPIC: "5:4"}, {TOPIC: "5:10"}, "the log was deleted with what was behind 5:4")
    assert passed_over(log, {TOPIC: "5:4"}, {TOPIC: "5:10"}) == []


def test_a_topic_that_was_created_again(log: MemoryLog) -> None:
    log.topic(log.closed(9, 3))
    lost(log, {TOPIC: "5:4"}, {TOPIC: "9:2"}, "ledger 5 was never in this log")
    assert passed_over(log, {TOPIC: "5:4"}, {TOPIC: "9:2"}) == entries(9, 0, 2)


def test_a_topic_that_was_created_again_behind_its_offset(log: MemoryLog) -> None:
    log.topic(log.closed(9, 3))
    lost(log, {TOPIC: "-1:-1"}, {TOPIC: "5:10"}, "ledger 5 is not in the log any more")


def test_what_was_trimmed_while_the_query_was_down(log: MemoryLog) -> None:
    log.topic(log.closed(6, 3), trimmed_to=Position(5, 10))
    lost(log, {TOPIC: "5:4"}, {TOPIC: "6:2"}, "entries behind 5:4 up to 5:10 were trimmed")
    assert passed_over(log, {TOPIC: "5:4"}, {TOPIC: "6:2"}) == entries(6, 0, 2)
    reader = log.stream()
    for start in ("5:10", "6:0"):
        ranges = ranges_of_stream(reader, {TOPIC: start}, {TOPIC: "6:2"})
        assert positions(ranges)[-1] == "6:2"


def test_what_is_trimmed_after_the_record_was_read(log: MemoryLog) -> None:
    """Retention changes the topic's record first, then deletes the ledger's record."""
    log.topic(log.closed(5, 11), log.closed(6, 3))
    log.delete(ledger_key(5))
    lost(log, {TOPIC: "5:4"}, {TOPIC: "6:2"}, "ledger 5 is neither on bookies nor in files")
    assert passed_over(log, {TOPIC: "5:4"}, {TOPIC: "6:2"}) == entries(6, 0, 2)
    read_whole = ranges_of_stream(log.stream(), {TOPIC: "5:10"}, {TOPIC: "6:2"})
    assert positions(read_whole) == entries(6, 0, 2)


def test_a_plan_reads_the_log_once(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, entries trimmed between two reads would pass the check without being planned."""
    log.topic(log.closed(5, 11), log.closed(6, 3))
    read: list[str] = []

    async def counted(*given: Any) -> Any:
        read.append(str(given[1]))
        return await topic_log(*given)

    monkeypatch.setattr("magnetar_spark.planner.topic_log", counted)
    log.stream().partitions({TOPIC: "5:4"}, {TOPIC: "6:2"})
    log.batch(startingOffsets=f'{{"{TOPIC}": "5:4"}}')
    assert read == [TOPIC, TOPIC]


def test_what_came_and_was_trimmed_behind_an_empty_beginning(log: MemoryLog) -> None:
    log.topic(log.open(5, (0, 0), (0, 0)))
    reader = log.stream()
    start = reader.initialOffset()
    assert start == {TOPIC: "-1:-1"}
    log.topic(log.closed(6, 3), trimmed_to=Position(5, 10))
    end = latest(log.stream(), start)
    with pytest.raises(PersistenceError, match="behind -1:-1 up to 5:10 were trimmed"):
        log.stream().partitions(start, end)


def test_a_query_that_begins_with_the_earliest_asks_for_nothing_that_was_trimmed_before(
    log: MemoryLog,
) -> None:
    log.topic(log.closed(6, 3), trimmed_to=Position(5, 10))
    reader = log.stream(startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == {TOPIC: "5:10"}
    assert positions(ranges_of_stream(reader, start, latest(reader, start))) == entries(6, 0, 2)


def test_a_deleted_topic_of_a_pattern_fails_the_query(log: MemoryLog) -> None:
    """The query may not have read all of it."""
    other = f"{TOPIC}2"
    log.topic(log.closed(5, 11))
    log.topic(log.closed(6, 3), name=other)
    start = {TOPIC: "5:4", other: "6:1"}
    deleted(log, 5)
    with pytest.raises(PersistenceError, match=f"{TOPIC}: the topic was deleted"):
        latest(log.stream(topicsPattern=PATTERN), start)
    tolerant = log.stream(topicsPattern=PATTERN, failOnDataLoss="false")
    assert latest(tolerant, start) == {other: "6:2"}


def test_a_topic_that_is_not_requested_any_more_stays_where_it_was_read_to(
    log: MemoryLog,
) -> None:
    other = f"{TOPIC}2"
    log.topic(log.closed(5, 11))
    log.topic(log.closed(6, 3), name=other)
    end = latest(log.stream(), {TOPIC: "5:4", other: "6:1"})
    assert end == {TOPIC: "5:10", other: "6:1"}


@pytest.mark.parametrize("asked", [{"topic": TOPIC}, {"topicsPattern": PATTERN}])
def test_a_topic_that_was_created_again_with_partitions_fails_the_query(
    log: MemoryLog, asked: dict[str, str]
) -> None:
    """The name still has a record, and its log is deleted with the unread entries."""
    log.put(PARTITIONED, msgspec.json.encode({"partitions": 1}))
    log.topic(log.closed(7, 3), name=str(partition(0)))
    with pytest.raises(PersistenceError, match=f"{TOPIC}: the topic was deleted.*behind 5:4"):
        latest(log.stream(**asked), {TOPIC: "5:4"})
    tolerant = log.stream(**asked, failOnDataLoss="false")
    assert latest(tolerant, {TOPIC: "5:4"}) == {str(partition(0)): "7:2"}


def test_a_topic_that_is_deleted_after_it_was_left_out_of_the_query_is_no_loss(
    log: MemoryLog,
) -> None:
    other = f"{TOPIC}2"
    log.topic(log.closed(5, 11))
    assert latest(log.stream(), {TOPIC: "5:4", other: "6:1"}) == {TOPIC: "5:10"}
    narrower = log.stream(topicsPattern="public/default/t")
    assert latest(narrower, {TOPIC: "5:4", other: "6:1"}) == {TOPIC: "5:10"}


def test_a_named_topic_that_was_deleted_does_not_exist(log: MemoryLog) -> None:
    with pytest.raises(TopicNotFound, match="does not exist"):
        latest(log.stream(), {TOPIC: "5:4"})


def test_the_first_micro_batch_is_the_same_after_a_restart(log: MemoryLog) -> None:
    """Spark requests an initial offset again if the first micro-batch was not committed."""
    log.topic(log.open(5, (6, 5), (6, 5)))
    reader = log.stream()
    start = reader.initialOffset()
    assert start == {TOPIC: "5:4"}
    log.topic(log.closed(5, 9), log.open(6, (0, 0), (0, 0)))
    end = latest(reader, start)
    log.topic(log.closed(5, 9), log.open(6, (3, 2), (3, 2)))
    again = log.stream()
    newer = again.initialOffset()
    assert newer == {TOPIC: "6:1"}
    for first in (start, newer):
        assert positions(ranges_of_stream(again, first, end)) == entries(5, 5, 8)
    behind = latest(again, end)
    assert behind == {TOPIC: "6:1"}
    assert positions(ranges_of_stream(again, end, behind)) == entries(6, 0, 1)
    assert latest(again, behind) == behind


def test_a_starting_time_counts_for_the_query_that_began_with_it(log: MemoryLog) -> None:
    log.topic(log.closed(5, 11))
    reader = log.stream(startingTime="5000")
    start = reader.initialOffset()
    end = latest(reader, start)
    for again in (reader, log.stream(), log.stream(startingTime="9000")):
        assert {each.publish_ms.low for each in ranges_of_stream(again, start, end)} == {5000}
    begun_without = ranges_of_stream(reader, {TOPIC: "5:4"}, latest(reader, {TOPIC: "5:4"}))
    assert all(each.publish_ms.low < 0 for each in begun_without)


def test_an_offset_of_the_partitioned_topic_splits_all_partitions(log: MemoryLog) -> None:
    """Ledger 5 belongs to one partition; of the others, all later ledgers are read."""
    log.put(PARTITIONED, msgspec.json.encode({"partitions": 4}))
    log.topic(log.closed(3, 2), log.closed(5, 11), name=str(partition(0)))
    log.topic(log.closed(4, 2), log.closed(6, 3), name=str(partition(1)))
    log.topic(log.closed(7, 3), name=str(partition(2)))
    reader = log.stream(startingOffsets=f'{{"{TOPIC}": "5:4"}}')
    start = reader.initialOffset()
    assert start == {
        str(partition(0)): "5:3",
        str(partition(1)): "4:1",
        str(partition(2)): "-1:-1",
        str(partition(3)): "-1:-1",
    }
    read = positions(ranges_of_stream(reader, start, latest(reader, start)))
    assert read == entries(5, 4, 10) + entries(6, 0, 2) + entries(7, 0, 2)


@pytest.mark.parametrize("option", [{"endingTime": "5"}, {"endingOffsets": "latest"}])
def test_a_stream_refuses_an_end(log: MemoryLog, option: dict[str, str]) -> None:
    log.topic(log.closed(5, 11))
    named = {"metadata.url": "etcd:http://127.0.0.1:1", "topic": TOPIC}
    with pytest.raises(PreconditionFailed, match="options of batch reads"):
        PulsarDataSource({**named, **option}).streamReader(schema_of([]))


def test_partitions_and_topics_that_come_later_are_read_from_their_beginning(
    log: MemoryLog,
) -> None:
    log.put(PARTITIONED, msgspec.json.encode({"partitions": 1}))
    log.topic(log.closed(5, 11), name=str(partition(0)))
    reader = log.stream(topicsPattern=PATTERN)
    start = {str(partition(0)): "5:10"}
    assert latest(reader, start) == start
    log.put(PARTITIONED, msgspec.json.encode({"partitions": 2}))
    log.topic(log.closed(6, 3), name=str(partition(1)))
    log.topic(log.closed(7, 2), name=f"{TOPIC}2")
    end = latest(reader, start)
    assert end == {**start, str(partition(1)): "6:2", f"{TOPIC}2": "7:1"}
    found = positions(ranges_of_stream(reader, start, end))
    assert found == entries(6, 0, 2) + entries(7, 0, 1)


def test_a_partition_without_its_partitioned_topic_does_not_end_a_pattern(log: MemoryLog) -> None:
    log.topic(log.closed(5, 11))
    log.topic(log.closed(6, 3), name="persistent://public/default/lone-partition-0")
    plan = log.batch(topicsPattern=PATTERN)
    assert {each.topic for task in plan.tasks for each in task} == {
        TOPIC,
        "persistent://public/default/lone-partition-0",
    }


def test_a_ledger_that_is_trimmed_while_the_log_is_read_is_no_loss_to_the_earliest(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer record lacks an empty ledger that is dropped, or one in the middle of the list."""
    log.topic(log.closed(5, 11), log.open(6), log.closed(7, 3))
    log.delete(ledger_key(6))
    real = log.store.list

    async def then_dropped(prefix: str) -> Any:
        items = (LedgerItem(5, 1, 5, 11, 1100), LedgerItem(7, 1, 5, 3, 300))
        newer = ManagedLedgerRecord(1, 2, items)
        await log.store.put(managed_ledger_key(log_name(parse_topic(TOPIC))), encode(newer))
        return await real(prefix)

    monkeypatch.setattr(log.store, "list", then_dropped)
    (task,) = log.batch().tasks
    assert positions(list(task)) == entries(5, 0, 10) + entries(7, 0, 2)


@pytest.mark.parametrize("case", ["going", "created again", "gone"])
def test_a_batch_from_an_offset_that_is_deleted_fails(log: MemoryLog, case: str) -> None:
    if case == "going":
        log.topic(log.closed(5, 11), log.closed(6, 3))
        log.delete(ledger_key(5))
    else:
        log.topic(log.closed(9, 3), trimmed_to=Position(*((5, 10) if case == "gone" else (-1, -1))))
    offset = f'{{"{TOPIC}": "5:4"}}'
    with pytest.raises(PersistenceError, match="failOnDataLoss"):
        log.batch(startingOffsets=offset)
    found = log.batch(startingOffsets=offset, failOnDataLoss="false")
    assert len(found.tasks) == 1


def test_a_batch_from_the_earliest_asks_for_what_is_there(log: MemoryLog) -> None:
    log.topic(log.closed(5, 11), log.closed(6, 3))
    log.delete(ledger_key(5))  # retention trims meanwhile
    (task,) = log.batch().tasks
    assert positions(list(task)) == entries(6, 0, 2)
    assert log.batch(startingOffsets="latest").tasks == []


def test_a_ledger_that_is_deleted_amid_the_log_fails_a_batch(log: MemoryLog) -> None:
    log.topic(log.closed(4, 2), log.closed(5, 11), log.closed(6, 3))
    log.delete(ledger_key(5))
    with pytest.raises(PersistenceError, match="ledger 5 is neither on bookies nor in files"):
        log.batch()


def test_a_bookie_that_is_away_is_not_an_empty_ledger(log: MemoryLog) -> None:
    log.topic(log.open(5, (11, 10)))  # only b0 has entries
    log.bookies.away = {"b0"}
    with pytest.raises(BookieUnavailable, match="the end of ledger 5 is unknown"):
        log.batch()
    with pytest.raises(BookieUnavailable):
        log.stream().initialOffset()
    log.bookies.away = {"b1"}
    with pytest.raises(BookieUnavailable):
        log.batch()
    log.bookies.away = set()
    (task,) = log.batch().tasks
    assert positions(list(task)) == entries(5, 0, 9)


def test_a_ledger_that_nobody_has_anything_of_is_empty(log: MemoryLog) -> None:
    log.topic(log.open(5))
    assert log.batch().tasks == []


def test_one_bookie_may_be_away_where_two_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog(monkeypatch, bookies=3)
    log.topic(log.open(5, (11, 10), (11, 10), (11, 10), write_quorum=3, ack_quorum=2))
    log.bookies.away = {"b1"}
    (task,) = log.batch().tasks
    assert positions(list(task)) == entries(5, 0, 9)
