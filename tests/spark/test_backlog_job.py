"""`magnetar job backlog` against a real cluster: its counts equal the broker's."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.backlogs import (
    DEAD_LETTERS,
    NAMESPACE,
    PARTITIONS,
    PREFIX,
    RECEIVE_MS,
    World,
    printed,
)

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.jobs.event_loop import run
from magnetar_spark.jobs.backlog.tables.tables import SCHEMAS, TABLES
from magnetar_spark.jobs.main import main
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.settings import LogSettings

Rows = list[dict[str, Any]]

pytestmark = pytest.mark.timeout(600)
"""The first test waits for the start of Spark and of the cluster, and for two runs."""


@dataclass(frozen=True)
class Result:
    """The output of one run."""

    output: Path
    run: str
    summary: dict[str, Any]

    def rows(self, table: str) -> Rows:
        path = self.output / "tables" / table / self.run / "part-0.parquet"
        found = pq.read_table(path, partitioning=None)
        assert found.schema.equals(SCHEMAS[table]), table
        rows: Rows = found.to_pylist()
        return rows

    def row(self, table: str, **where: Any) -> dict[str, Any]:
        (found,) = [
            row
            for row in self.rows(table)
            if all(row[name] == value for name, value in where.items())
        ]
        return found


@pytest.fixture(scope="module")
def world(cluster: LocalCluster, client: pulsar.Client) -> Iterator[World]:
    world = World(cluster, client)
    yield world
    world.close()


@pytest.fixture(scope="module")
def first(world: World, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Returns the output of the first run."""
    assert spark is not None
    scenarios = ("retention=0", "ttl=1s,retention=0")
    output = tmp_path_factory.mktemp("backlog")
    return job(world, output, *(f"--what-if={each}" for each in scenarios))


@pytest.fixture(scope="module")
def second(world: World, first: Result) -> Result:
    """Returns the output of a second run, after ten messages and 25 acks of a subscription."""
    topic = PREFIX + "plain"
    with closing(world.subscribe(topic, "middle")) as consumer:
        world.publish(topic, 10)
        for _ in range(25):
            consumer.acknowledge(consumer.receive(RECEIVE_MS))
        world.settled([topic], "middle", 20)
        world.stored()
        return job(world, first.output)


def job(world: World, output: Path, *arguments: str) -> Result:
    code, summary = printed(
        "backlog",
        *("--namespace", NAMESPACE, "--output", str(output)),
        *("--metadata-url", world.cluster.metadata_url, "--admin-url", world.admin.url),
        *arguments,
    )
    assert code == 0, summary
    return Result(output, newest(output), summary)


def newest(output: Path) -> str:
    return max(path.name for path in (output / "tables" / "subscriptions").iterdir())


def test_counts_agree_with_the_broker(world: World, first: Result) -> None:
    result = first
    rows = result.rows("subscriptions")
    seen = set()
    for row in rows:
        topic, name = row["topic"], row["subscription"]
        stats = world.admin.stats(topic)["subscriptions"][name]
        seen.add((topic, name))
        assert row["error"] == ""
        assert row["entries"] == stats["msgBacklog"], row
        assert (row["bytes"], row["bytes_exact"]) == (stats["backlogSize"], True), row
        assert row["acked_ranges"] == stats["nonContiguousDeletedMessagesRanges"], row
        assert row["unacked_messages"] == stats["unackedMessages"], row
        oldest = 0 if row["oldest"] is None else round(row["oldest"].timestamp() * 1000)
        assert oldest == stats["earliestMsgPublishTimeInBacklog"], row
        analyzed = world.admin.analyzed(topic, name)
        assert row["messages_exact"]
        assert row["messages"] + row["acked_in_batches"] == analyzed["messages"], row
        assert row["entries"] == analyzed["entries"]
    stored = {
        (topic, name)
        for topic in {row["topic"] for row in result.rows("topics")}
        for name in world.admin.stats(topic)["subscriptions"]
    }
    assert seen == stored
    assert len({name for _, name in seen}) == 8
    assert result.summary["metrics"]["backlogEntries"] == sum(row["entries"] for row in rows)
    for row in result.rows("topics"):
        stats = world.admin.stats(row["topic"])
        assert (row["bytes"], row["scan_whole"]) == (stats["storageSize"], True), row


def test_what_was_set_up_is_found(first: Result) -> None:
    result = first
    plain = PREFIX + "plain"
    counts = {
        row["subscription"]: row["entries"]
        for row in result.rows("subscriptions")
        if row["topic"] == plain
    }
    assert counts["middle"] == 35
    assert counts["caught-up"] == 0
    assert counts["never"] == 65
    assert 40 <= counts["rewound"] <= 41
    parts = result.row("subscriptions", subscription="parts")
    assert (parts["entries"], parts["messages"], parts["partial_entries"]) == (9, 78, 2)
    assert parts["held_by"] == "picker"
    silent = result.row("subscriptions", topic=PREFIX + "silent")
    assert (silent["entries"], silent["messages"], silent["trend"]) == (0, 0, "unknown")
    orders = [row for row in result.rows("subscriptions") if row["subscription"] == "shipping"]
    assert len(orders) == PARTITIONS
    assert sum(row["entries"] for row in orders) == 45
    assert sum(row["acked_ranges"] for row in orders) > 0
    assert result.rows("ack_holes")[0]["entries"] > 0
    held = {row["held_by"] for row in result.rows("unread_keys") if "orders" in row["topic"]}
    assert held <= {"worker-0", "worker-1"}
    assert held
    assert {row["consumer"] for row in result.rows("consumers")} == {
        "worker-0", "worker-1", "picker"
    }  # fmt: skip


def test_keys_flows_sizes_and_rates(first: Result) -> None:
    result = first
    plain = PREFIX + "plain"
    keys = {row["key_text"]: row for row in result.rows("keys") if row["topic"] == plain}
    assert {key: row["messages"] for key, row in keys.items()} == {
        f"key-{n}": len(range(n, 65, 7)) for n in range(7)
    }
    skew = result.row("key_skew", topic=plain)
    assert (skew["keyed_messages"], skew["keys"], skew["top100_share"]) == (65, 7, 1.0)
    unread = [
        row
        for row in result.rows("unread_keys")
        if row["topic"] == plain and row["subscription"] == "middle"
    ]
    assert sum(row["messages"] for row in unread) == 35
    assert min(unread, key=lambda row: row["rank_oldest"])["key_text"] == f"key-{30 % 7}"
    flow = result.row("flows")
    assert (flow["kind"], flow["origin"], flow["messages"]) == ("dead-letter", plain, DEAD_LETTERS)
    assert (flow["subscription"], flow["redeliveries_max"], flow["whole"]) == ("middle", 3, True)
    for table in ("sizes", "rates"):
        assert sum(row["messages"] for row in result.rows(table)) == 90 + 65 + 100 + 5


def test_bytes_by_cause(world: World, first: Result) -> None:
    result = first
    plain = [row for row in result.rows("storage") if row["topic"] == PREFIX + "plain"]
    ledgers = [row for row in plain if row["ledger_id"] >= 0]
    assert (
        sum(row["bytes"] for row in ledgers) == world.admin.stats(PREFIX + "plain")["storageSize"]
    )
    assert {row["copies"] for row in ledgers} == {2}
    # "never" needs all that is closed; the last ledger is open.
    assert {(row["cause"], row["subscription"]) for row in ledgers[:-1]} == {
        ("subscription", "never")
    }
    assert ledgers[-1]["cause"] == "open"
    assert [row["cause"] for row in plain[len(ledgers) :]] == ["cursors"]
    scenarios = {
        row["scenario"]: row for row in result.rows("what_if") if row["topic"] == PREFIX + "plain"
    }
    # "never" keeps them all; a TTL would acknowledge for it, too.
    assert {name: each["ledgers"] for name, each in scenarios.items()} == {
        "now": 0,
        "retention=0": 0,
        "ttl=1s,retention=0": len(ledgers) - 1,
    }, (scenarios, ledgers)
    gone = scenarios["ttl=1s,retention=0"]
    assert gone["bytes_on_bookies"] == sum(row["bytes_on_bookies"] for row in ledgers[:-1])
    assert dict(gone["expired"])["never"] == 65


def test_the_next_run_tells_growth(second: Result) -> None:
    """Rates are computed from the messages published and consumed between the two runs."""
    topic, result = PREFIX + "plain", second
    middle = result.row("subscriptions", topic=topic, subscription="middle")
    seconds = middle["since_s"]
    assert middle["trend"] == "draining"
    assert round(middle["published_per_s"] * seconds) == 10
    assert round(middle["consumed_per_s"] * seconds) == 25
    assert middle["drains_in_s"] == pytest.approx(20 / 15 * seconds)
    never = result.row("subscriptions", topic=topic, subscription="never")
    assert (never["trend"], never["entries"]) == ("stalled", 75)
    assert result.row("topics", topic=topic)["appended_per_s"] == pytest.approx(10 / seconds)
    kinds = {(row["topic"], row["trend"]) for row in result.summary["details"]}
    assert (topic, "stalled") in kinds


def test_the_report_is_one_whole_page(second: Result) -> None:
    text = (second.output / "report.html").read_text()
    page = ET.fromstring(text.partition("\n")[2])  # noqa: S314 - our own
    assert "http:" not in text
    assert "https:" not in text
    for element in page.iter():
        assert element.tag not in ("script", "img", "iframe", "object", "embed", "link")
        assert not {"src", "href"} & set(element.attrib)
    titles = [element.text for element in page.iter("h2")]
    assert titles[0] == "What needs attention"
    assert len(list(page.iter("svg"))) >= 5
    shown = "".join(page.itertext())
    for name in ("never", "picker", "plain-middle-DLQ", "stalled"):
        assert name in shown


def test_metrics_and_the_published_summary(world: World, second: Result) -> None:
    lines = (second.output / "metrics.prom").read_text().splitlines()
    never = f'{{namespace="{NAMESPACE}",topic="{PREFIX}plain",subscription="never"}}'
    assert f"magnetar_backlog_entries{never} 75" in lines
    assert any(line.startswith("magnetar_backlog_topic_bookie_bytes{") for line in lines)

    async def published() -> dict[str, Any]:
        async with opened_log(LogSettings(world.cluster.metadata_url)) as log:
            record = await log.store.get(f"/analytics/backlog/{NAMESPACE}")
            assert record is not None
            found: dict[str, Any] = json.loads(record.value)
            return found

    record = run(published())
    assert record["subscriptions"] == 10
    names = [each["subscription"] for each in record["worst"]]
    assert record["behind"] == len(names) < 20, "all of them are named"
    assert record["stalled"] == [each["trend"] for each in record["worst"]].count("stalled") > 0
    assert record["drainsInSeconds"] is None, "who is stalled never drains"
    assert record["oldestAgeSeconds"] == max(each["ageSeconds"] for each in record["worst"])
    assert {"kind": "stalled", "severity": "warning", "topic": f"{PREFIX}plain"}.items() <= (
        next(each for each in record["findings"] if each["subscription"] == "never").items()
    )


def test_every_table_is_there_for_every_run(second: Result) -> None:
    for table in TABLES:
        runs = sorted((second.output / "tables" / table).glob("run=*/part-0.parquet"))
        assert len(runs) == 2, table
        for path in runs:
            assert pq.read_schema(path).equals(SCHEMAS[table])
    assert pa.types.is_timestamp(SCHEMAS["rates"].field("minute").type)


def test_flags_that_are_not_understood_end_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "backlog",
                *("--namespace", NAMESPACE, "--metadata-url", world.cluster.metadata_url),
                *("--what-if", "forget=all"),
            ]
        )
    assert ended.value.code == 2
    assert "write ttl=TIME or retention=TIME/SIZE" in capsys.readouterr().err
