"""The jobs on a topic with transactions, on a cluster in memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap
from tests.spark import compact_stage
from tests.spark.backlog_stage import Backlogs
from tests.spark.compact_stage import artifact, compact, counts, record
from tests.spark.job_stage import METADATA_URL, TOPIC, JobCluster, append, entry
from tests.spark.offload_stage import offload, on_this_process

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.log.ledgers import topic_log
from magnetar.jobs.log.ranges import Range, Window, ranges_of
from magnetar.jobs.log.topic_log import LedgerSpan
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.log.transactions.search import search
from magnetar.jobs.log.transactions.visible import Settled
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import DEDUPLICATION_CURSOR, WATERMARK_PROPERTY
from magnetar.metadata.records import encode
from magnetar.transactions.model import TransactionRecord, TxnId, TxnState
from magnetar.transactions.records import record_key
from magnetar.wire.entry import in_transaction, parse_metadata
from magnetar_spark.jobs.compact import job as compact_job
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.settings import LogSettings

ABORTED, COMMITTED, ENDING, OPEN = (TxnId(0, number) for number in range(4))
STATES = {
    COMMITTED: TxnState.COMMITTED,
    ENDING: TxnState.ABORTING,
    OPEN: TxnState.OPEN,
}
"""The record of the aborted one has been deleted."""


def of(txn: TxnId | None, number: int, key: str, value: str) -> bytes:
    """A message of a transaction, as a broker stores it."""
    made = entry(number, key=key, value=value.encode())
    return made if txn is None else in_transaction(made, parse_metadata(made), *txn)


HISTORY = [
    of(None, 0, "a", "plain"),
    of(ABORTED, 1, "a", "aborted"),
    of(None, 2, "b", "plain"),
    of(ABORTED, 3, "b", ""),
    of(COMMITTED, 4, "c", "committed"),
    of(ENDING, 5, "a", "ending"),
    of(ENDING, 6, "c", ""),
    of(None, 7, "d", "plain"),
    of(OPEN, 8, "d", "open"),
    of(None, 9, "a", "behind"),
    of(None, 10, "e", "behind"),
]
"""Four entries make a ledger, so the ledgers are 1 to 3."""


def position(number: int) -> Position:
    return Position(1 + number // 4, number % 4)


async def transact(ledger: ManagedLedger) -> None:
    """What the broker stored: a watermark behind the aborted transaction, and its entries."""
    await ledger.set_properties({WATERMARK_PROPERTY: str(position(3))})
    await ledger.abort_entries({1: BitMap([1, 3])})


def write(cluster: JobCluster, *, closed: bool = True) -> None:
    async def writing() -> None:
        async with cluster.broker(dies=True) as factory:
            ledger = await factory.open(log_name(parse_topic(TOPIC)))
            await append(ledger, HISTORY)
            await transact(ledger)
            if closed:
                await ledger.roll_over()

    cluster.run(writing())
    decide(cluster, STATES)


def decide(cluster: JobCluster, states: dict[TxnId, TxnState]) -> None:
    for txn, state in states.items():
        made = TransactionRecord(state=state, opened_ms=1, deadline_ms=2)
        cluster.run(cluster.store.put(record_key(txn), encode(made)))


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> JobCluster:
    monkeypatch.setattr(compact_job, "compact_by_spark", compact_stage.by_spark)
    return on_this_process(monkeypatch, JobCluster(monkeypatch, tmp_path / "store", capsys))


def positions(cluster: JobCluster) -> list[Position]:
    return [each.position for each in artifact(cluster)]


def numbered(*numbers: int) -> list[Position]:
    return [position(number) for number in numbers]


BEFORE = (0, 2, 4, 7)
"""The last values of the keys before the open transaction."""


@pytest.mark.parametrize("arguments", [(), ("--always-spark",)])
def test_compaction_stops_at_an_open_transaction_and_leaves_aborted_messages_out(
    cluster: JobCluster, arguments: Sequence[str]
) -> None:
    write(cluster)
    done = compact(cluster, *arguments)
    assert (done["code"], done["metrics"]["messagesRead"]) == (0, len(BEFORE))
    made = record(cluster)
    assert made is not None
    assert made.horizon == position(7)
    assert positions(cluster) == numbered(*BEFORE)
    decide(cluster, {OPEN: TxnState.COMMITTING, ENDING: TxnState.ABORTED})
    assert counts(compact(cluster, *arguments), "topicsCompacted") == [1]
    made = record(cluster)
    assert made is not None
    assert made.horizon == position(10)
    assert positions(cluster) == numbered(2, 4, 8, 9, 10)


def test_nothing_is_compacted_twice_while_a_transaction_is_open(cluster: JobCluster) -> None:
    write(cluster)
    compact(cluster)
    assert counts(compact(cluster), "topicsCompacted", "topicsUpToDate") == [0, 1]


@pytest.mark.parametrize("released", [False, True])
def test_offload_copies_all_entries_and_their_files_are_read_without_the_aborted(
    cluster: JobCluster, released: bool
) -> None:
    write(cluster)
    stored = [each.data for each in cluster.log()]
    done = offload(cluster, "--threshold", "0", "--deletion-lag", "0" if released else "-1")
    assert done["code"] == 0, done
    assert cluster.on_bookies() == ([3] if released else [1, 2, 3])
    content = {
        (ledger_id, entry_id): data
        for path in cluster.files()
        for ledger_id, entry_id, data in cluster.content(path)
    }
    assert [content[key] for key in sorted(content)] == stored[:8] == HISTORY[:8]
    assert compact(cluster)["code"] == 0
    assert positions(cluster) == numbered(*BEFORE)


def test_a_search_reads_the_bookies_if_a_file_is_gone(cluster: JobCluster) -> None:
    write(cluster)
    assert offload(cluster, "--threshold", "0", "--deletion-lag", "-1")["code"] == 0
    for path in cluster.files():
        (cluster.folder / path).unlink()
    settled = cluster.run(searched(cluster.run(spans())))
    assert settled.horizon == position(8)


def test_a_search_reads_the_file_of_a_ledger_that_is_offloaded_meanwhile(
    cluster: JobCluster,
) -> None:
    write(cluster)
    before = cluster.run(spans())
    assert offload(cluster, "--threshold", "0", "--deletion-lag", "0")["code"] == 0
    assert cluster.on_bookies() == [3]
    settled = cluster.run(searched(before))
    assert settled.horizon == position(8)
    assert {ledger_id: list(ids) for ledger_id, ids in settled.aborted.items()} == {2: [1, 2]}


async def spans() -> tuple[LedgerSpan, ...]:
    async with opened_log(LogSettings(METADATA_URL)) as log:
        return (await topic_log(log, parse_topic(TOPIC))).ledgers


async def searched(ledgers: tuple[LedgerSpan, ...]) -> Settled:
    """The search from the watermark on, given ledgers that were read before."""
    settled = Settled(1, position(3))
    async with opened_log(LogSettings(METADATA_URL)) as log:
        return await search(log, log_name(parse_topic(TOPIC)), ledgers, settled, position(10))


def test_what_a_task_reads_back_for_chunks_has_no_aborted_entry_either(cluster: JobCluster) -> None:
    write(cluster)
    settings = LogSettings(METADATA_URL)

    async def planned() -> tuple[list[Range], tuple[BookieRegistration, ...]]:
        async with opened_log(settings) as log:
            current = await topic_log(log, parse_topic(TOPIC))
            window = Window(first=position(6))
            return list(ranges_of(current, window, 1 << 20)), tuple(log.bookies.registrations())

    ranges, bookies = cluster.run(planned())
    with EntryReader(settings, bookies) as reader:
        read = [each.entry_id for group in reader.read(ranges[0]) for each in group]
        back = [
            Position(ledger_id, each.entry_id)
            for ledger_id, group in reader.read_back(ranges[0], 2)
            for each in group
        ]
    assert read == [3], "6 is aborted, and 8 is in an open transaction"
    assert back == numbered(4, 2, 0)


def test_an_unreadable_aborted_set_fails_the_topic(cluster: JobCluster) -> None:
    write(cluster)
    for disk in cluster.bookies.disks:
        for ledger_id in [key for key in disk._ledgers if key > 3]:
            del disk._ledgers[ledger_id]
    done = compact(cluster)
    assert (done["code"], done["state"]) == (3, "partial")
    assert "!aborted" in str(done["details"])
    assert record(cluster) is None


def test_the_backlog_counts_no_aborted_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backlogs = Backlogs(monkeypatch, tmp_path, capsys)

    async def then(ledger: ManagedLedger) -> None:
        await transact(ledger)

    def nothing(_: Any) -> None: ...

    told = backlogs.topic(TOPIC, HISTORY, {"s": nothing, DEDUPLICATION_CURSOR: nothing}, then=then)
    decide(backlogs.cluster, STATES)
    summary = backlogs.run()
    assert summary["code"] == 0, summary
    row = backlogs.row("subscriptions", subscription="s")
    assert row["entries"] == told["s"]["entries"] == len(HISTORY) - 2
    assert row["messages"] == len(HISTORY) - 2
    deduplication = backlogs.row("subscriptions", subscription=DEDUPLICATION_CURSOR)
    assert deduplication["entries"] == len(HISTORY)
    keys = {row["key_text"]: row["messages"] for row in backlogs.rows("keys")}
    assert keys == {"a": 3, "b": 1, "c": 2, "d": 2, "e": 1}
