"""The job `backlog` on a partly offloaded topic, with its output in an object store."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx
import obstore
import pulsar
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession
from tests.spark.backlogs import RECEIVE_MS, Admin, printed, state_of
from tests.spark.conftest import Log
from tests.spark.offloading import Ledgers, Offload, publish
from tests.support.cluster_processes import brokers, wait_for

from magnetar.bookie.api import BookieError, ProofKind
from magnetar.cluster.local.cluster import LocalCluster
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.event_loop import run
from magnetar.ledger.bookie_calls import ask_proofs
from magnetar.offload.cold_files import ColdFiles
from magnetar.offload.stores import StoreSpec, open_object_store
from magnetar_spark.jobs.backlog.gather.policies import Keeping
from magnetar_spark.jobs.backlog.gather.topic_state import topic_state
from magnetar_spark.jobs.backlog.scan.ages import LogAges
from magnetar_spark.jobs.backlog.tables.tables import SCHEMAS, TABLES
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.settings import LogSettings

TOPIC = "persistent://public/default/half-cold"
COUNT = 130
MIDDLE = 30
"""Entries that one subscription has acked: it continues within the second ledger."""
KEPT = ("--deletion-lag", "-1")
LET_GO = ("--deletion-lag", "0")
BUCKET = "cold"
Rows = list[dict[str, Any]]

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Half:
    """A topic: two ledgers only in files, one also on bookies, the others only on bookies."""

    cluster: LocalCluster
    ledgers: Ledgers
    endpoint: str

    @property
    def admin(self) -> Admin:
        return Admin(brokers(self.cluster)[0].http_url)

    @property
    def bucket(self) -> Any:
        return open_object_store(StoreSpec("aws-s3", BUCKET, "", self.endpoint))

    def job(self, output: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        return printed(
            "backlog",
            *("--topic", TOPIC, "--output", f"s3://{BUCKET}/{output}"),
            *("--metadata-url", self.cluster.metadata_url, "--admin-url", self.admin.url),
            *arguments,
        )

    def file(self, output: str, name: str) -> bytes:
        return obstore.get(self.bucket, f"{output}/{name}").bytes().to_bytes()

    def names(self, prefix: str) -> list[str]:
        return sorted(each["path"] for page in obstore.list(self.bucket, prefix) for each in page)

    def rows(self, output: str, table: str) -> Rows:
        """Returns the rows of the newest run."""
        name = self.names(f"{output}/tables/{table}/")[-1]
        data = self.file(output, name.removeprefix(f"{output}/"))
        rows: Rows = pq.read_table(pa.BufferReader(data), schema=SCHEMAS[table]).to_pylist()
        return rows


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Starts an S3 server with an empty bucket; returns its address."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    httpx.put(f"{url}/{BUCKET}", timeout=30).raise_for_status()
    before = os.environ.get("AWS_ENDPOINT_URL")
    os.environ["AWS_ENDPOINT_URL"] = url
    yield url
    os.environ.pop("AWS_ENDPOINT_URL")
    if before is not None:
        os.environ["AWS_ENDPOINT_URL"] = before
    server.stop()


@pytest.fixture(scope="module")
def half(cluster: LocalCluster, client: pulsar.Client, s3: str, spark: SparkSession) -> Half:
    admin = Admin(brokers(cluster)[0].http_url)
    offload = Offload(Log(cluster), f"s3://{BUCKET}/ledgers?endpoint={s3}", None)  # type: ignore[arg-type]
    first = pulsar.InitialPosition.Earliest
    with closing(client.subscribe(TOPIC, "middle", initial_position=first)) as middle:
        client.subscribe(TOPIC, "never", initial_position=first).close()
        publish(client, TOPIC, COUNT)
        messages = [middle.receive(RECEIVE_MS) for _ in range(MIDDLE)]
        middle.acknowledge_cumulative(messages[-1])
        wait_for(lambda: admin.backlogs(TOPIC)["middle"] == COUNT - MIDDLE, "it is acknowledged")
    closed = offload.ledgers(TOPIC).closed
    assert len(closed) >= 5
    for upto, lag in ((closed[2], LET_GO), (closed[3], KEPT)):
        offload.ask(TOPIC, Position(upto, 0))
        code, summary = printed(*offload.arguments(TOPIC, *lag))
        assert code == 0, summary
    ledgers = offload.ledgers(TOPIC)
    assert sorted(ledgers.files) == closed[:3]
    assert [each for each in closed if each not in ledgers.on_bookies] == closed[:2]
    wait_for(lambda: _stored(cluster), "its cursors are stored")
    return Half(cluster, ledgers, s3)


def _stored(cluster: LocalCluster) -> bool:
    found = {
        each.name: -1 if each.acks is None else each.acks.backlog
        for each in state_of(cluster, TOPIC).subscriptions
    }
    return found == {"middle": COUNT - MIDDLE, "never": COUNT}


async def on_bookies(half: Half, rows: Rows) -> dict[int, int]:
    """Returns the bytes of these ledgers that the cluster's bookies prove to have."""
    found: dict[int, int] = {}
    async with opened_log(LogSettings(half.cluster.metadata_url)) as log:
        for row in rows:
            ledger_id, last = row["ledger_id"], row["entries"] - 1
            for each in log.bookies.registrations():
                proofs = await ask_proofs(log.context, ledger_id, each.identity, 0, last)
                if not isinstance(proofs, BookieError):
                    assert proofs.next_entry > last
                    present = [p for p in proofs.proofs if p.kind is ProofKind.PRESENT]
                    size = sum(proof.length_bytes for proof in present)
                    found[ledger_id] = found.get(ledger_id, 0) + size
    return found


def test_bytes_are_where_the_report_says(half: Half) -> None:
    code, summary = half.job("nothing-read", "--scan-bytes-max", "0")
    assert code == 0, summary
    ledgers = [row for row in half.rows("nothing-read", "storage") if row["ledger_id"] >= 0]
    causes = {row["ledger_id"]: row["cause"] for row in ledgers}
    closed = half.ledgers.closed
    assert [causes[each] for each in closed] == [
        *("cold", "cold", "offloaded"), *["subscription"] * (len(closed) - 3)
    ]  # fmt: skip
    proven = run(on_bookies(half, ledgers))
    for row in ledgers:
        assert row["bytes_on_bookies"] == proven.get(row["ledger_id"], 0), row
        file = half.ledgers.files.get(row["ledger_id"])
        size = 0 if file is None else obstore.head(half.bucket, f"ledgers/{file.path}")["size"]
        assert row["bytes_cold"] == size, row
    (topic,) = half.rows("nothing-read", "topics")
    cursors = [row for row in half.rows("nothing-read", "storage") if row["ledger_id"] < 0]
    beside = sum(row["bytes_on_bookies"] for row in cursors)
    assert topic["bytes_on_bookies"] == sum(proven.values()) + beside
    assert topic["bytes"] == half.admin.stats(TOPIC)["storageSize"]
    (never,) = [
        r for r in half.rows("nothing-read", "subscriptions") if r["subscription"] == "never"
    ]
    needed = [row for row in ledgers if row["cause"] == "subscription"]
    assert never["holds_bytes"] == sum(row["bytes_on_bookies"] for row in needed) > 0
    assert never["messages"] is None, "nothing was read"
    assert "backlogMessages" not in summary["metrics"]


def agrees(half: Half, rows: Rows) -> None:
    """Asserts that counts, bytes and ages equal the broker's."""
    assert {row["subscription"] for row in rows} == {"middle", "never"}
    for row in rows:
        stats = half.admin.stats(TOPIC)["subscriptions"][row["subscription"]]
        assert row["entries"] == stats["msgBacklog"] > 0
        assert (row["bytes"], row["bytes_exact"]) == (stats["backlogSize"], True)
        oldest = round(row["oldest"].timestamp() * 1000)
        assert oldest == stats["earliestMsgPublishTimeInBacklog"] > 0


def test_ages_of_what_begins_in_a_cold_ledger(half: Half) -> None:
    """Ages are known even if no entry is read: they are in a column of the file."""
    code, summary = half.job("ages", "--scan-bytes-max=0", "--what-if=ttl=1s,retention=0")
    assert code == 0, summary
    rows = {row["subscription"]: row for row in half.rows("ages", "subscriptions")}
    closed = half.ledgers.closed
    assert (rows["never"]["oldest_ledger"], rows["never"]["oldest_entry"]) == (closed[0], 0)
    assert (rows["middle"]["oldest_ledger"], rows["middle"]["oldest_entry"]) == (closed[1], 10)
    agrees(half, list(rows.values()))
    (freed,) = [row for row in half.rows("ages", "what_if") if row["scenario"] != "now"]
    ledgers = [row for row in half.rows("ages", "storage") if row["ledger_id"] in closed]
    assert freed["ledgers"] == len(closed)
    assert freed["bytes_on_bookies"] == sum(row["bytes_on_bookies"] for row in ledgers)
    assert freed["bytes_cold"] == sum(file.file_bytes for file in half.ledgers.files.values())

    async def older(before: Position) -> Position | None:
        cold = ColdFiles()
        async with opened_log(LogSettings(half.cluster.metadata_url)) as log:
            state = await topic_state(log.context, parse_topic(TOPIC), Keeping(), cold)
            assert state is not None
            time_ms = await state.times.publish_ms(before)
            assert time_ms is not None
            end = await LogAges(state).older_end(time_ms)
            times = [
                await state.times.publish_ms(each)
                for each in (
                    [] if end is None else [end, Position(end.ledger_id, end.entry_id + 1)]
                )
            ]
        await cold.close()
        assert not times or (times[0] or 0) < time_ms <= (times[1] or 0)
        return end

    end = run(older(Position(closed[1], 15)))
    assert end is not None
    assert end.ledger_id == closed[1]


def test_tables_and_report_are_in_the_bucket(half: Half) -> None:
    """Everything is read, from files and bookies; a second run finds the first one's tables."""
    for arguments in (("--scan-bytes-max=0",), ()):
        code, summary = half.job("backlog/of-all", *arguments)
        assert code == 0, summary
    for table in TABLES:
        assert len(half.names(f"backlog/of-all/tables/{table}/")) == 2, table
        half.rows("backlog/of-all", table)
    rows = half.rows("backlog/of-all", "subscriptions")
    agrees(half, rows)
    assert {(row["messages"], row["messages_exact"]) for row in rows} == {
        (COUNT - MIDDLE, True), (COUNT, True)
    }  # fmt: skip
    (topic,) = half.rows("backlog/of-all", "topics")
    assert (topic["scan_whole"], topic["sampled"], topic["scanned_messages"]) == (
        True, False, COUNT
    )  # fmt: skip
    page = half.file("backlog/of-all", "report.html").decode()
    assert "more are in the object store" in page
    assert "half-cold" in page
    assert "Compared with the run of " in page
    assert b"magnetar_backlog_topic_cold_bytes{" in half.file("backlog/of-all", "metrics.prom")


def test_a_sample_changes_no_exact_figure_and_says_what_it_guessed(half: Half) -> None:
    (whole,) = half.rows("backlog/of-all", "topics")
    code, summary = half.job("sample", f"--scan-bytes-max={whole['scanned_bytes'] // 4}")
    assert code == 0, summary
    rows = half.rows("sample", "subscriptions")
    agrees(half, rows)
    (topic,) = half.rows("sample", "topics")
    assert (topic["scan_whole"], topic["sampled"]) == (False, True)
    assert topic["messages_per_s"] is None
    assert 0 < topic["scanned_bytes"] <= whole["scanned_bytes"] // 3
    assert {row["messages_exact"] for row in rows} == {False}
    assert {row["messages"] for row in rows} == {COUNT - MIDDLE, COUNT}, "each is an entry"
    keys = half.rows("sample", "unread_keys")
    assert {row["sampled"] for row in keys} == {True}
    read = [row["entry_id"] for row in keys if row["subscription"] == "never"]
    assert min(read) == 0, "the oldest is in every sample"
    page, lines = half.file("sample", "report.html").decode(), half.file("sample", "metrics.prom")
    assert f"≈ {COUNT:,}" in page
    assert b'subscription="never"} 0' in next(
        line for line in lines.splitlines() if line.startswith(b"magnetar_backlog_messages_exact{")
    )
    assert summary["metrics"]["backlogMessagesExact"] == 0
    assert summary["metrics"]["backlogEntries"] == 2 * COUNT - MIDDLE


def test_a_file_that_cannot_be_had_costs_what_it_has_alone(half: Half) -> None:
    """The last test of the module: it deletes the file."""
    gone = half.ledgers.files[half.ledgers.closed[0]]
    obstore.delete(half.bucket, f"ledgers/{gone.path}")
    code, summary = half.job("damaged")
    assert (code, summary["state"]) == (3, "partial")
    assert gone.path in summary["error"]
    rows = {row["subscription"]: row for row in half.rows("damaged", "subscriptions")}
    counts = half.admin.backlogs(TOPIC)
    assert {name: row["entries"] for name, row in rows.items()} == counts
    assert (rows["never"]["age_s"], rows["never"]["messages_exact"]) == (None, False)
    assert rows["middle"]["age_s"] > 0
    assert (rows["middle"]["messages"], rows["middle"]["messages_exact"]) == (
        counts["middle"],
        True,
    )
    (topic,) = half.rows("damaged", "topics")
    assert not topic["scan_whole"]
