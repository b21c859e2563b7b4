"""BacklogGrowing: the condition from an analysis, and reading the analysis."""

import asyncio
import datetime
from typing import Any

import msgspec
import pytest
from tests.operator.test_resources_admin_client import Answer, Time, serving
from tests.support.rest_cluster import RestCluster

from magnetar.documents.backlog import BacklogRecord, Behind, Noticed
from magnetar.managed_ledger.backlog_record import record_key
from magnetar_operator.admin.client import AdminClient
from magnetar_operator.admin.target import NAMESPACE, SUBSCRIPTION, TOPIC, Target
from magnetar_operator.admin.view import ANALYSIS_FRESH_S, Analyses
from magnetar_operator.catalog.status import ANALYSIS_AGE_S_MAX, backlog_growing
from magnetar_operator.engine.status import Condition

NOW = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
AT_MS = int(NOW.timestamp() * 1000) - 300_000
NAME = "persistent://shop/orders/created"
PART = f"{NAME}-partition-1"
A_TOPIC = Target(TOPIC, NAME)
AUDIT = Target(SUBSCRIPTION, NAME, "audit")


def behind(topic: str, name: str, trend: str, growth: float | None = None) -> Behind:
    return Behind(topic, name, 1_200, 34_000, 60.0, trend, growth)


def record(*worst: Behind, findings: tuple[Noticed, ...] = (), **given: Any) -> BacklogRecord:
    """An analysis; by default it names all subscriptions that are behind."""
    trends = [row.trend for row in worst]
    counts = {
        "behind": len(worst),
        "growing": trends.count("growing"),
        "stalled": trends.count("stalled"),
        "unreadable": 0,
        "unknown": trends.count("unknown"),
    }
    return BacklogRecord(
        **{"at_ms": AT_MS, **counts, **given}, worst=[*worst], findings=[*findings]
    )


def said(target: Target, document: BacklogRecord | None) -> tuple[bool | None, str] | None:
    condition = backlog_growing(target, document, NOW)
    return None if condition is None else (condition.holds, condition.reason)


def test_a_growing_backlog_is_reported_with_its_figures() -> None:
    condition = backlog_growing(AUDIT, record(behind(NAME, "audit", "growing", 2.25)), NOW)
    assert condition == Condition(
        "BacklogGrowing",
        True,
        "Growing",
        f"subscription audit of {NAME} grows: 1,200 entries, 34,000 bytes, +2.2 entries/s "
        "(backlog analysis of 2026-03-01T11:55:00Z)",
    )


def test_a_topic_includes_its_partitions_and_subscriptions() -> None:
    rows = [behind(PART, f"s{number}", "stalled", 0.0) for number in range(4)]
    document = record(*rows, behind(NAME, "audit", "growing", 1.0))
    condition = backlog_growing(A_TOPIC, document, NOW)
    assert condition is not None
    assert (condition.holds, condition.reason) == (True, "Growing")
    assert condition.message.startswith(f"subscription audit of {NAME} grows")
    assert f"subscription s0 of {PART} is stalled" in condition.message
    assert "; and 2 more (" in condition.message
    assert said(Target(SUBSCRIPTION, NAME, "s3"), document) == (True, "Stalled")
    for other in (f"{NAME}-2", NAME[:-1], f"{NAME}-partition-1-x"):
        assert said(Target(TOPIC, other), document) == (False, "NotGrowing"), other


@pytest.mark.parametrize("name", [f"{NAME}-partition-x", f"{NAME}-partition-", f"{NAME}-partition"])
def test_a_topic_whose_name_resembles_a_partitions_is_another_topic(name: str) -> None:
    document = record(behind(name, "audit", "growing", 1.0))
    assert said(Target(TOPIC, name), document) == (True, "Growing")
    assert said(A_TOPIC, document) == (False, "NotGrowing")


def test_unreadable_cursors_are_known_from_the_findings() -> None:
    findings = (Noticed("critical", "unreadable", NAME, "audit"), Noticed("note", "holes", NAME))
    document = record(Behind(NAME, "audit"), findings=findings, unreadable=1, unknown=0)
    assert said(AUDIT, document) == (True, "Unreadable")
    condition = backlog_growing(AUDIT, document, NOW)
    assert condition is not None
    assert f"subscription audit of {NAME} cannot be read (" in condition.message


def test_a_finding_beyond_the_worst_counts() -> None:
    findings = (Noticed("warning", "growing", NAME, "audit"),)
    document = record(behind(PART, "s", "draining"), findings=findings, behind=90, growing=1)
    assert said(AUDIT, document) == (True, "Growing")


@pytest.mark.parametrize("trend", ["draining", "steady", "reset"])
def test_the_condition_of_a_stable_backlog_has_no_changing_figures(trend: str) -> None:
    first = backlog_growing(AUDIT, record(behind(NAME, "audit", trend, -3.0)), NOW)
    later = backlog_growing(AUDIT, record(behind(NAME, "audit", trend), at_ms=AT_MS + 60_000), NOW)
    assert first is not None
    assert first == later, "a new analysis that says the same writes nothing"
    assert first.holds is False


def test_an_unlisted_subscription_is_healthy_only_if_all_problems_are_listed() -> None:
    other = behind(PART, "other", "draining")
    assert said(AUDIT, record(other)) == (False, "NotGrowing")
    assert said(AUDIT, record(other, behind=2)) == (False, "NotGrowing"), "nobody grows"
    assert said(AUDIT, record(other, behind=2, growing=1)) is None
    assert said(AUDIT, record(other, behind=2, unknown=1)) is None
    assert said(AUDIT, record(other, behind=None)) == (False, "NotGrowing")
    assert said(AUDIT, record(other, behind=None, growing=None)) is None


def test_a_topic_is_healthy_only_if_all_of_its_cursors_are() -> None:
    own = behind(NAME, "audit", "draining")
    assert said(A_TOPIC, record(own, behind=9, growing=1)) is None
    assert said(AUDIT, record(own, behind=9, growing=1)) == (False, "NotGrowing")
    assert said(A_TOPIC, record(own)) == (False, "NotGrowing")
    # One partition does not determine the subscription's others.
    part = behind(PART, "audit", "draining")
    assert said(AUDIT, record(part, behind=9, growing=1)) is None
    assert said(AUDIT, record(part)) == (False, "NotGrowing")


def test_unknown_backlogs_have_no_condition() -> None:
    growing = behind(NAME, "audit", "growing")
    assert said(AUDIT, record(behind(NAME, "audit", "unknown"))) is None, "a first run"
    assert said(AUDIT, None) is None
    assert said(Target(NAMESPACE, "shop/orders"), record(growing)) is None
    old_ms = int((NOW.timestamp() - ANALYSIS_AGE_S_MAX) * 1000)
    assert said(AUDIT, record(growing, at_ms=old_ms)) == (True, "Growing")
    assert said(AUDIT, record(growing, at_ms=old_ms - 1)) is None


def test_an_analysis_with_an_impossible_time_is_ignored() -> None:
    assert backlog_growing(AUDIT, BacklogRecord(10**18), NOW) is None


@pytest.mark.parametrize(
    "answer",
    ['{"x": 1}', '{"atMs": "soon"}', '{"atMs": 5, "worst": [{"topic": 3}]}', "[]", ""],
)
async def test_an_answer_that_cannot_be_decoded_is_none(answer: str) -> None:
    async with serving(lambda _method, _path: (200, answer, {})) as url:
        client = AdminClient(url)
        assert await Analyses(client).of("shop/orders") is None
        await client.close()


async def test_concurrent_readers_share_one_read_of_a_namespace() -> None:
    asked: list[str] = []
    answers: list[Answer] = [
        (404, '{"reason": "none yet"}', {}),
        (200, '{"atMs": 5}', {}),
        (412, '{"reason": "no"}', {}),
        (404, "", {}),
    ]

    def handler(_: str, path: str) -> Answer:
        asked.append(path)
        return answers[len(asked) - 1]

    time = Time()
    async with serving(handler) as url:
        client = AdminClient(url, time)
        analyses = Analyses(client, time)

        async def read() -> list[BacklogRecord | None]:
            return list(await asyncio.gather(*(analyses.of("shop/orders") for _ in range(9))))

        for record in (None, BacklogRecord(5), BacklogRecord(5), None):
            assert await read() == [record] * 9
            assert await read() == [record] * 9
            time.now += ANALYSIS_FRESH_S
        await client.close()
    assert asked == ["/admin/v2/magnetar/analytics/backlog/shop/orders"] * 4


async def test_a_silent_cluster_fails_no_reconcile() -> None:
    async with serving(lambda _method, _path: (0, "", {})) as url:
        client = AdminClient(url)
        assert await Analyses(client).of("shop/orders") is None
        await client.close()


async def test_any_broker_serves_the_stored_analysis() -> None:
    cluster = RestCluster()
    await cluster.start(2)
    name = "persistent://public/default/a"
    backlog_record = record(behind(name, "s", "growing", 1.0))
    await cluster.store.put(record_key("public/default"), msgspec.json.encode(backlog_record))
    for member in cluster.members:
        client = AdminClient(str(member.http.base_url))
        document = await Analyses(client).of("public/default")
        assert said(Target(TOPIC, name), document) == (True, "Growing")
        assert await Analyses(client).of("public/none") is None
        await client.close()
    first, second = cluster.members
    while not first.balance.leadership.leading:
        await first.balance.leadership.wait_change()
    shows = [
        'magnetar_analytics_backlog_bytes{cluster="c1",namespace="public/default"} 0\n'
        in (await member.http.get("/metrics")).text
        for member in (first, second)
    ]
    assert shows == [True, False]
    await cluster.stop()
