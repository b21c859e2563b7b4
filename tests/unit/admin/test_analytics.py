"""The backlog job's record of a namespace, over REST and on the metrics page."""

from typing import Any

import msgspec
import pytest
from tests.unit.admin.test_metrics import scrape

from magnetar.admin.metrics.analytics_series import (
    LIST_EVERY_S,
    AnalyticsSeries,
    bounded,
    values_of,
)
from magnetar.documents.backlog import BacklogRecord, Behind, Noticed
from magnetar.managed_ledger.backlog_record import record_key

from .support import Admin

PATH = "~/magnetar/analytics/backlog/t1/n1"
LABELS = '{cluster="standalone",namespace="t1/n1"}'
TOPIC = "persistent://t1/n1/a"
RECORD = BacklogRecord(
    at_ms=1_700_000_000_500,
    topics=2,
    subscriptions=3,
    behind=1,
    growing=1,
    stalled=0,
    unreadable=0,
    expiring=1,
    held_bytes=900,
    unknown=0,
    backlog_entries=70,
    backlog_bytes=7_000,
    oldest_age_seconds=12.5,
    worst=[Behind(TOPIC, "s", 70, 7_000, 12.5, "growing", 1.5)],
    findings=[Noticed("warning", "growing", TOPIC, "s")],
)


async def put(admin: Admin, namespace: str, value: bytes | None = None) -> None:
    await admin.service.store.put(record_key(namespace), value or msgspec.json.encode(RECORD))


async def test_the_rest_shows_the_jobs_record(admin: Admin) -> None:
    await put(admin, "t1/n1")
    actual = (await admin.done("GET", PATH)).json()
    assert actual["atMs"] == 1_700_000_000_500
    assert actual["worst"] == [
        {
            "topic": TOPIC,
            "subscription": "s",
            "entries": 70,
            "bytes": 7_000,
            "ageSeconds": 12.5,
            "trend": "growing",
            "growthPerSecond": 1.5,
            "drainsInSeconds": None,
        }
    ]
    assert msgspec.convert(actual, BacklogRecord) == RECORD


@pytest.mark.parametrize(
    ("namespace", "text"),
    [
        ("t1/none", "Namespace not found"),
        (
            "t1/n1",
            "There is no backlog analysis of t1/n1: run `magnetar job backlog --namespace t1/n1`",
        ),
    ],
)
async def test_without_a_run_the_reason_names_the_command(
    admin: Admin, namespace: str, text: str
) -> None:
    answer = await admin.call("GET", f"~/magnetar/analytics/backlog/{namespace}")
    assert (answer.status_code, answer.json()["reason"]) == (404, text)


async def test_the_record_is_deleted_with_its_namespace(admin: Admin) -> None:
    await put(admin, "t1/n1")
    await put(admin, "t1/other")
    await admin.done("DELETE", "~/namespaces/t1/n1")
    kept = [record.key for record in await admin.service.store.list(record_key(""))]
    assert kept == [record_key("t1/other")]


async def test_an_unreadable_record_is_reported_and_not_counted(admin: Admin) -> None:
    await put(admin, "t1/n1", b'{"atMs": "soon"}')
    answer = await admin.call("GET", PATH)
    assert answer.status_code == 500
    assert "cannot be read" in answer.json()["reason"]
    assert not analytics(await scrape(admin.page))


def analytics(series: dict[tuple[str, str], float]) -> dict[str, float]:
    return {
        name.removeprefix("magnetar_analytics_"): value
        for (name, labels), value in series.items()
        if name.startswith("magnetar_analytics_") and labels == LABELS.removeprefix("{")
    }


async def test_the_page_shows_the_known_values(admin: Admin) -> None:
    await put(admin, "t1/n1")
    assert analytics(await scrape(admin.page)) == {
        "backlog_entries": 70,
        "backlog_bytes": 7_000,
        "backlog_oldest_unacked_age_seconds": 12.5,
        "backlog_growing_subscriptions": 1,
        "backlog_stalled_subscriptions": 0,
        "backlog_unreadable_subscriptions": 0,
        "backlog_expiring_subscriptions": 1,
        "backlog_stalled_bookie_bytes": 900,
        "run_timestamp_seconds": 1_700_000_000.5,
    }


async def test_nothing_is_shown_if_no_job_ran(admin: Admin) -> None:
    assert not analytics(await scrape(admin.page))


async def test_the_store_is_listed_at_intervals_and_failures_keep_the_last_values(
    admin: Admin,
) -> None:
    now = [0.0]
    series = AnalyticsSeries(lambda: now[0])

    async def text() -> str:
        await series.refresh(admin.service, None)
        return "".join(series.families("standalone"))

    assert await text() == ""
    await put(admin, "t1/n1")
    assert await text() == "", "the store is not listed again so soon"
    now[0] += LIST_EVERY_S
    shown_first = await text()
    assert f"magnetar_analytics_backlog_entries{LABELS} 70\n" in shown_first
    await admin.service.store.close()
    now[0] += LIST_EVERY_S
    assert await text() == shown_first


def test_the_largest_are_kept_in_their_order() -> None:
    sizes: dict[str, Any] = {"a/a": 1, "a/b": 9, "a/c": 5}
    rows = {
        name: values_of(BacklogRecord(at_ms=1, backlog_bytes=size)) for name, size in sizes.items()
    }
    assert list(bounded(rows, 2)) == ["a/b", "a/c"]
    assert bounded(rows, 3) is rows
