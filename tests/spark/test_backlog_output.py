"""The output of the job `backlog`: files, the earlier run, flows, and the summary."""

import json
from pathlib import Path
from typing import Any

import pytest

from magnetar.core.errors import MagnetarError
from magnetar_spark.jobs.backlog.report.output import Output, run_ms, run_name
from magnetar_spark.jobs.backlog.scan.flows import Flow, flow_sums, kind_of, merged, subscription_of
from magnetar_spark.jobs.backlog.scan.partials import FLOW, SumRow
from magnetar_spark.jobs.backlog.tables.tables import SCHEMAS, SizeRow, arrow_table
from magnetar_spark.jobs.summary import DETAILS_MAX, ERROR_CHARS_MAX, State, Summary

AT_MS = 1_700_000_000_123


def size(below: int, topic: str = "t") -> SizeRow:
    return SizeRow(topic=topic, below_bytes=below, messages=1, bytes=2)


def test_a_run_is_found_again_by_the_next(tmp_path: Path) -> None:
    output = Output(str(tmp_path))
    assert output.run_before(AT_MS) is None
    name = run_name(AT_MS)
    assert (name, run_ms(name)) == ("20231114T221320123Z", AT_MS)
    output.put_table("sizes", name, arrow_table("sizes", [size(8)]))
    assert output.run_before(AT_MS + 1) is None, "it has no subscriptions yet"
    output.put_table("subscriptions", name, SCHEMAS["subscriptions"].empty_table())
    assert output.run_before(AT_MS) is None, "only what was before"
    assert output.run_before(AT_MS + 1) == name
    assert output.rows(SizeRow, name) == [size(8)]
    later = run_name(AT_MS + 5)
    output.put_table("subscriptions", later, SCHEMAS["subscriptions"].empty_table())
    (tmp_path / "tables" / "subscriptions" / "run=somebody's").mkdir()
    (tmp_path / "tables" / "subscriptions" / "run=somebody's" / "x").touch()
    assert output.run_before(AT_MS + 5) == name
    assert output.run_before(AT_MS + 6) == later


def test_what_the_store_refuses_names_the_file(tmp_path: Path) -> None:
    output = Output(str(tmp_path))
    with pytest.raises(MagnetarError, match=f"{tmp_path}/tables/sizes/run=x/part-0.parquet"):
        output.rows(SizeRow, "x")
    (tmp_path / "report.html").mkdir()
    with pytest.raises(MagnetarError, match=f"{tmp_path}/report.html"):
        output.put("report.html", b"page")
    output.put("a/b.txt", b"whole")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"whole"


def flow(messages: int, number: int, **fields: Any) -> SumRow:
    more: dict[str, Any] = {
        "topic": "t",
        "key": b"origin",
        "bytes": 5,
        "oldest_ms": 7,
        "newest_ms": 9,
    }
    return SumRow(**{"kind": FLOW, "messages": messages, "number": number, **more, **fields})


def test_redeliveries_are_a_mean_over_messages() -> None:
    assert merged([flow(1, 3)])[0].redeliveries_mean == 3.0
    (one,) = merged([flow(3, 1, oldest_ms=4), flow(1, 5, newest_ms=20)])
    assert one == Flow(
        topic="t",
        origin="origin",
        messages=4,
        size_bytes=10,
        oldest_ms=4,
        newest_ms=20,
        redeliveries_max=5,
        redeliveries_mean=2.0,
    )
    names = [found.origin for found in merged([flow(1, 1, key=b"z"), flow(1, 1, key=b"\xff")])]
    assert names == ["z", "\ufffd"]


@pytest.mark.parametrize(
    ("name", "kind", "subscription"),
    [
        ("t-billing-DLQ", "dead-letter", "billing"),
        ("t-billing-retry", "retry", "billing"),
        ("t-a-b-DLQ", "dead-letter", "a-b"),
        ("u-billing-DLQ", "dead-letter", ""),
        ("t-DLQ", "dead-letter", ""),
        ("t-billing-LOG", "other", ""),
        ("poison", "other", ""),
    ],
)
def test_what_a_topics_name_says(name: str, kind: str, subscription: str) -> None:
    assert kind_of(name).value == kind
    assert subscription_of(name, "t") == subscription


def test_of_many_origins_the_rest_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    from magnetar_spark.jobs.backlog.scan import flows
    from magnetar_spark.table import PROPERTIES, PUBLISH_TIME, VALUE

    monkeypatch.setattr(flows, "ORIGINS_MAX", 2)
    properties = [{"REAL_TOPIC": name, "RECONSUMETIMES": "1"} for name in "abacd"]
    batch = pa.record_batch(
        {
            PROPERTIES: pa.array(
                [list(each.items()) for each in properties], pa.map_(pa.string(), pa.string())
            ),
            PUBLISH_TIME: pa.array([n * 1_000_000 for n in range(5)], pa.timestamp("us")),
            VALUE: pa.array([b"xy", None, b"z", b"", b"w"], pa.binary()),
        }
    )
    (sums,) = flow_sums("t", batch)
    found = {
        row["key"]: [
            row[name] for name in ("messages", "bytes", "number", "oldest_ms", "newest_ms")
        ]
        for row in sums.to_pylist()
    }
    assert found == {
        b"a": [2, 3, 1, 0, 2_000],
        b"b": [1, 0, 1, 1_000, 1_000],
        b"(others)": [2, 1, 0, 3_000, 4_000],
    }
    assert list(flow_sums("t", batch.slice(0, 0))) == []


def test_a_summary_for_people() -> None:
    summary = Summary("backlog", started_ms=10_000, finished_ms=12_500)
    summary.count("topics", 1234)
    summary.count("longer")
    summary.detail(topic="quiet")
    summary.detail(topic="t", note="kept")
    summary.failure("x" * 500, topic="u")
    assert list(summary.lines()) == [
        "backlog: partial in 2.5 s",
        "  topics  1,234",
        "  longer  1",
        "  failed  1",
        "  topic t, note kept",
        f"  topic u, error {'x' * ERROR_CHARS_MAX}",
    ]
    summary.fail("y" * 500)
    assert list(summary.lines())[-1] == "  " + "y" * ERROR_CHARS_MAX
    assert list(Summary("offload").lines()) == ["offload: succeeded in 0.0 s"]


def test_the_first_failure_is_the_summarys_error_and_details_are_bounded() -> None:
    summary = Summary("offload")
    for number in range(DETAILS_MAX + 5):
        summary.failure(f"{number}")
    found = json.loads(summary.document())
    assert (found["error"], found["state"]) == ("0", State.PARTIAL)
    assert (found["metrics"], len(found["details"])) == ({"failed": DETAILS_MAX + 5}, DETAILS_MAX)
    summary.fail("at last")
    summary.failure("after")
    assert (summary.state, summary.error) == (State.FAILED, "at last")
    assert json.loads(summary.document(2, 0)) | {"error": ""} == {
        **found, "state": "failed", "error": "", "metrics": {}, "details": found["details"][:2]
    }  # fmt: skip
